"""The commands with which deploy/prove loads and publishes, run on services of this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.prove_cluster import PROOFS, ROOT
from tests.servers.ledger_stack import ledger_stack


@pytest.mark.timeout(300)
def test_the_corpus_of_the_compose_proof_is_loaded(tmp_path: Path) -> None:
    lines = [line for line in (PROOFS / "20-compose.sh").read_text().splitlines() if '"$corpus"' in line]
    made, loaded = (line for line in lines if "citewell.cli" in line)
    with ledger_stack(tmp_path) as stack:
        told = {"$PYTHON": sys.executable, "$corpus": str(tmp_path / "corpus"), "--papers 2000": "--papers 200"}
        told["127.0.0.1:7304"] = stack.addresses["ingestion"]
        for line in (made, loaded):
            for word, value in told.items():
                line = line.replace(word, value)
            done = subprocess.run(shlex.split(line), capture_output=True, text=True, cwd=ROOT, timeout=200)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert re.search(r"\b[1-9]\d* ", done.stdout + done.stderr), done.stdout
