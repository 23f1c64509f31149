"""OpenVINO starts no process and opens no connection, and sessions may first run in several threads at once."""

import os
import subprocess
import sys
from pathlib import Path

from citewell.reranker.model_files import HEAD
from tests.tiny_models import RERANKER_CONFIG, write_tiny_davinci

_FIRST_RUNS = """
import sys, threading
from pathlib import Path
import numpy as np
from citewell.inference.sessions import Precision, Runtime, open_session
session = open_session(Path(sys.argv[1]), Runtime.OPENVINO, Precision.FP32, 2, side_by_side=True)
all_there = threading.Barrier(8)

inputs = {"e": np.zeros((1, int(sys.argv[2])), np.float32), "prior": np.zeros((1, 1), np.float32)}

def run():
    all_there.wait()
    session.run(inputs)

threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

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


def test_threads_may_be_the_first_to_run_together(tmp_path: Path) -> None:
    graph, width = write_tiny_davinci(tmp_path) / HEAD, RERANKER_CONFIG["hidden_size"]
    for _ in range(10):  # without the fix four in ten runs hung
        subprocess.run([sys.executable, "-c", _FIRST_RUNS, str(graph), str(width)], check=True, timeout=60)
