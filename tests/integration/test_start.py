"""What keeps a service from starting is told in one line, with an exit code, and without passwords."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
