"""Ends with 0 where advisories can be reached: pip-audit looks up one package, installed by `make audit`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

with tempfile.NamedTemporaryFile("w", suffix=".txt") as one:
    one.write((ROOT / "requirements.lock").read_text().partition("\n")[0])
    one.flush()
    audit = [str(ROOT / "deploy" / "audit.py"), str(ROOT / ".venv-audit" / "bin" / "pip-audit"), "--packages", one.name]
    sys.exit(subprocess.run([sys.executable, *audit], capture_output=True).returncode not in (0, 1))
