"""`python -m tests.fuzz`: the long campaign, over parsers, RPCs and the edge. Exit code 1: it found something."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import Findings, fuzz_parsers
from tests.fuzz.parsers import PARSERS
from tests.fuzz.system import running_system


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=1500.0, help="for all of it; half goes to the RPCs")
    options.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same inputs")
    told = options.parse_args()
    findings = Findings()
    print(f"seed {told.seed}, {told.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="citewell-fuzz-") as folder, running_system(Path(folder)) as system:
        before = system.memory()
        for number in range(10):  # in turns, so that an interrupted campaign has tried everything
            system.try_rpcs(told.seconds * 0.05, told.seed + 10 * number, findings)
            system.try_edge(told.seconds * 0.015, told.seed + 10 * number, findings)
            fuzz_parsers(PARSERS, told.seconds * 0.035, told.seed + 10 * number, findings)
            print(f"{number + 1}/10: {findings.tried.total():,} inputs, {len(findings.problems)} problems", flush=True)
        system.check(findings)
        after = system.memory()
    print(findings)
    for name, size in after.items():
        print(f"memory of {name}: {before[name] >> 20} MiB before, {size >> 20} MiB after")
    sys.exit(bool(findings.problems))


if __name__ == "__main__":
    main()
