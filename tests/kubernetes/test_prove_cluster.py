"""deploy/prove_cluster.py: what it runs, what it says, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from deploy import prove_cluster
from deploy.images.own_code import STARTS
from deploy.prove_cluster import PROOFS, main, read_proofs

HEAD = "#!/usr/bin/env bash\n# proves: {proves}\n# needs: {needs}\n# minutes: 1\nset -e\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts of which one passes, one fails, and one needs what this machine lacks."""
    there = {"docker": ("a Docker daemon that answers", lambda: True), "gpu": ("an NVIDIA GPU", lambda: False)}
    monkeypatch.setattr(prove_cluster, "REQUIREMENTS", there)
    (tmp_path / "proofs").mkdir()
    for name, needs, body in (
        ("10-works", "docker", "echo first; echo 3 points are found"),
        ("20-breaks", "docker", "echo about to break; false; echo never"),
        ("30-computes", "docker gpu", "echo never"),
    ):
        text = HEAD.format(proves=f"that it {name[3:]}", needs=needs) + body + "\n"
        (tmp_path / "proofs" / f"{name}.sh").write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return main([*arguments, "--proofs", str(folder / "proofs"), "--logs", str(folder / "logs")])


def test_each_item_ends_as_pass_fail_or_not_available(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 1
    told = capsys.readouterr().out
    assert "PASS               works" in told
    assert "3 points are found" in told
    assert "FAIL               breaks" in told
    assert "about to break" in told
    assert "NOT AVAILABLE HERE computes" in told
    assert "needs an NVIDIA GPU" in told
    assert told.endswith("1 passed, 1 failed, 1 not available here\n")
    results = json.loads((folder / "logs" / "results.json").read_text())
    assert [each["ending"] for each in results] == ["pass", "fail", "not available here"]


@pytest.mark.parametrize(("name", "code"), [("works", 0), ("breaks", 1), ("computes", 1)])
def test_only_what_passed_ends_with_0(folder: Path, name: str, code: int) -> None:
    assert run(folder, "--only", name) == code


def test_list_runs_nothing_and_ends_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--list") == 0
    told = capsys.readouterr().out
    assert "CAN RUN            works" in told
    assert "NOT AVAILABLE HERE computes" in told
    assert not (folder / "logs").exists()


def test_a_proof_that_takes_too_long_fails_and_cleans_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "proofs" / "10-works.sh"
    head = script.read_text().replace("minutes: 1", "minutes: 0.06")
    script.write_text(head + f"trap 'touch {folder}/cleaned' EXIT\nsleep 60 &\nwait\n")
    assert run(folder, "--only", "works") == 1
    assert "longer than 0.06 minutes" in capsys.readouterr().out
    assert (folder / "cleaned").exists()


@pytest.mark.parametrize(("old", "new", "why"), [("# needs: docker\n", "", "needs"), ("docker", "dokcer", "dokcer")])
def test_a_wrong_head_is_refused(folder: Path, old: str, new: str, why: str) -> None:
    script = folder / "proofs" / "10-works.sh"
    script.write_text(script.read_text().replace(old, new))
    with pytest.raises(ValueError, match=why):
        run(folder, "--list")


def test_an_unknown_name_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(folder, "--only", "wroks")
    assert "no item wroks; there are works, breaks, computes" in capsys.readouterr().err


def test_the_real_proofs_can_be_read_and_are_scripts() -> None:
    proofs = read_proofs(PROOFS)
    assert len(proofs) > 15
    assert len({proof.name for proof in proofs}) == len(proofs)
    for path in (*(proof.script for proof in proofs), PROOFS / "kind.inc"):
        checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        assert "! tool" not in path.read_text(), "errexit does not see a negated command"


def test_commands_in_pods_are_in_the_image_of_the_tools() -> None:
    used = {
        name
        for proof in read_proofs(PROOFS)
        for line in proof.script.read_text().splitlines()
        if line.startswith("tool ")
        for name in re.findall(r"citewell\.cli ([a-z-]+)", line)
    }
    assert {"publish", "recommend"} <= used
    assert {f"citewell.commands.{name.replace('-', '_')}" for name in used} <= set(STARTS["tools"])
