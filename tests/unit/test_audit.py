"""deploy/audit.py: what a report of pip-audit means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy import audit

CLEAN = {"name": "numpy", "version": "2.4.0", "vulns": []}
VULNERABLE = {
    "name": "h11",
    "version": "0.15.0",
    "vulns": [{"id": "GHSA-vqfr-h8mv-ghfj", "fix_versions": ["0.16.0"], "aliases": [], "description": "…"}],
}
SKIPPED = {"name": "citewell-x", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([CLEAN], 0, "1 packages looked up, 0 findings"),
        ([CLEAN, VULNERABLE], 1, "h11 0.15.0: GHSA-vqfr-h8mv-ghfj, mended in 0.16.0"),
        ([CLEAN, SKIPPED], 1, "citewell-x: not looked up: Dependency not found"),
        ([SKIPPED, SKIPPED], audit.UNREACHABLE, "NOT AUDITED: no advisories of 2 packages can be had from here"),
    ],
)
def test_only_a_whole_audit_without_findings_passes(packages: list[object], code: int, said: str) -> None:
    ended, lines = audit.verdict({"dependencies": packages, "fixes": []})
    assert ended == code
    assert said in lines


@pytest.mark.parametrize(("more", "code"), [([], 3), (["--where-possible"], 0)])
def test_a_program_without_a_report_is_no_audit(
    more: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho 'ConnectionError: no route' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["audit.py", str(program), *more])
    assert audit.main() == code
    assert "NOT AUDITED: pip-audit ended with 1: ConnectionError: no route" in capsys.readouterr().out
