"""A short campaign over every parser, every RPC and the edge; `make fuzz` runs a long one."""

from __future__ import annotations

import pytest

from tests.fuzz.campaign import Findings, fuzz_parsers
from tests.fuzz.parsers import PARSERS
from tests.fuzz.system import running_system

SEED = 16


def test_no_parser_crashes_or_hangs() -> None:
    findings = Findings()
    fuzz_parsers(PARSERS, 6.0, SEED, findings)
    assert len(findings.tried) == len(PARSERS)
    assert not findings.problems, findings


@pytest.mark.timeout(400)
def test_no_rpc_answers_internal_or_hangs(tmp_path_factory: pytest.TempPathFactory) -> None:
    findings = Findings()
    with running_system(tmp_path_factory.mktemp("fuzz")) as system:
        system.try_rpcs(8.0, SEED, findings)
        system.try_edge(2.0, SEED, findings)
        system.check(findings)
    assert findings.answers["OK"], "some requests are sound"
    assert not findings.problems, findings
