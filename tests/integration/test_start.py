"""What keeps a service from starting is told in one line, with an exit code, and without passwords."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from citewell.commands.stack import Stack, choose_ports

_SERVICE = """
from pydantic_settings import SettingsConfigDict
from citewell.runtime.errors import FailedPrecondition
from citewell.runtime.server import run
from citewell.runtime.settings import ServiceSettings, UnknownSetting

class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="CITEWELL_SAMPLE__")

def build(settings):
    {failure}

run("sample", Settings, build)
"""


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        ("import psycopg_of_another_world", 1, "the package psycopg_of_another_world is not installed"),
        ("raise UnknownSetting('setting X is wrong')", 2, "setting X is wrong"),
        ("raise FailedPrecondition('another schema')", 1, "another schema"),
        ("raise OSError('no answer from postgresql://me:s3cret@db\\nat all')", 1, "postgresql://me:***@db (LOG_LEVEL"),
    ],
)
def test_what_keeps_a_service_from_starting_is_one_line(failure: str, code: int, line: str) -> None:
    program = _SERVICE.format(failure=failure)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith("citewell sample: ")
    assert line in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_services_over_a_folder_leave_the_cluster_of_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `citewell demo` would serve its invented papers from the alias of a running system."""
    monkeypatch.setenv("CITEWELL_INDEX__STORE", "qdrant")
    monkeypatch.setenv("CITEWELL_INDEX__QDRANT__URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CITEWELL_INDEX__QDRANT__GRPC_PORT", "1")
    monkeypatch.setenv("CITEWELL_INGESTION__LOG__KIND", "kafka")
    stack = Stack(tmp_path, choose_ports(0))
    try:
        stack.start(["index", "ingestion"])
        stack.wait(["index", "ingestion"], seconds=60)
    finally:
        stack.stop()
    assert (tmp_path / "index" / "lock").exists()
    assert (tmp_path / "log.sqlite").exists()
