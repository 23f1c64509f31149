"""`citewell export` runs in the build of the Triton image, which has the profiler's packages and none of the lab's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parents[2] / "deploy" / "images" / "requirements"
_CODE = """
import sys
class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {lab!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuses)
import citewell.lab.commands.export
"""


def test_export_needs_no_package_of_the_lab() -> None:
    listed = set(re.findall(r"^([\w.-]+)==", (LISTS / "profiler.txt").read_text(), re.MULTILINE))
    lab = {"bm25s", "scipy", "matplotlib", "torch", "pyarrow"} - listed
    done = subprocess.run([sys.executable, "-c", _CODE.format(lab=sorted(lab))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
