"""Looks up known vulnerabilities of the locked packages: python deploy/audit.py PIP-AUDIT [--where-possible]

Ends with 0 when every package was looked up and none is vulnerable, 1 when one is or could not be looked up, and 3 when
the advisories cannot be reached at all, or 0 then with --where-possible, for CI on machines without them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
UNREACHABLE = 3


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code for a report of pip-audit, and what to print."""
    packages = report["dependencies"]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no version'}"
        for each in packages
        for found in each.get("vulns", ())
    ]
    skipped = [each for each in packages if "skip_reason" in each]
    if len(skipped) == len(packages):
        return UNREACHABLE, [f"NOT AUDITED: no advisories of {len(packages)} packages can be had from here"]
    lines += [f"{each['name']}: not looked up: {each['skip_reason']}" for each in skipped]
    return int(bool(lines)), [*lines, f"{len(packages) - len(skipped)} packages looked up, {len(lines)} findings"]


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("program", help="path of pip-audit")
    options.add_argument("--packages", type=Path, default=ROOT / "requirements.lock", help="pinned packages")
    options.add_argument("--where-possible", action="store_true", help="end with 0 where advisories cannot be reached")
    told = options.parse_args()
    if not Path(told.program).is_file():
        options.error(f"there is no {told.program}: run `make audit`")
    command = [told.program, "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run([*command, "-r", str(told.packages)], capture_output=True, text=True, check=False)
    try:
        code, lines = verdict(json.loads(done.stdout))
    except ValueError:  # no report: it reached nothing, or it failed
        last = next(reversed(done.stderr.strip().splitlines()), "it said nothing")
        code, lines = UNREACHABLE, [f"NOT AUDITED: pip-audit ended with {done.returncode}: {last}"]
    print("\n".join(lines))
    return 0 if code == UNREACHABLE and told.where_possible else code


if __name__ == "__main__":
    sys.exit(main())
