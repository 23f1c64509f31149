"""The runtimes do what they are asked, and nothing else."""

import os
import subprocess
import sys

_WATCHED = """
import sys

def report(event, arguments):
    if event in ("os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        print("SEEN", event, file=sys.stderr)

sys.addaudithook(report)
from citewell.inference.sessions import cpu_has_bf16
cpu_has_bf16()
"""


def test_openvino_starts_no_process_and_calls_nobody() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "TF_BUILD", "JENKINS_URL")}
    done = subprocess.run([sys.executable, "-c", _WATCHED], env=environment, capture_output=True, text=True, check=True)
    assert "SEEN" not in done.stderr
