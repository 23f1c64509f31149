"""Proves on your machine what could not be proved where citewell was written: Docker, a GPU, a Kubernetes cluster.

    python deploy/prove_cluster.py --list           what there is to prove, and what of it this machine can
    python deploy/prove_cluster.py                  all of it, in order; ends with 0 only if everything passed
    python deploy/prove_cluster.py --only qdrant-3  one item, or several

Each item is a script in deploy/prove/. Its head says what it proves, and what it needs of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROOFS = ROOT / "deploy" / "prove"
NOT_HERE = "not available here"
_PROBE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Proof:
    """One script."""

    name: str
    proves: str
    needs: tuple[str, ...]
    minutes: float
    script: Path


@dataclass(frozen=True, slots=True)
class Result:
    """How a proof ended: pass, fail, or not available here."""

    proof: Proof
    ending: str
    detail: str = ""
    seconds: float = 0.0


def _answers(*command: str) -> bool:
    """Whether a command is there and ends with 0."""
    if shutil.which(command[0]) is None:
        return False
    try:
        return subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


REQUIREMENTS: dict[str, tuple[str, Callable[[], bool]]] = {
    "docker": ("a Docker daemon that answers", lambda: _answers("docker", "info")),
    "compose": ("the plugin docker compose", lambda: _answers("docker", "compose", "version")),
    "gpu": ("an NVIDIA GPU", lambda: _answers("nvidia-smi")),
    "docker-gpu": (
        "containers that see the GPU (NVIDIA container toolkit)",
        lambda: (
            b"nvidia" in subprocess.run(["docker", "info"], capture_output=True).stdout
            if _answers("docker", "info")
            else False
        ),
    ),
    "kind": ("kind, for a cluster of its own", lambda: _answers("kind", "version")),
    "kubectl": ("kubectl", lambda: _answers("kubectl", "version", "--client")),
    "advisories": (
        "advisories of the package registry",
        lambda: _answers(sys.executable, str(ROOT / "deploy" / "prove" / "advisories.py")),
    ),
    "memory": ("64 GB of memory", lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") > 60e9),
    "helm": ("helm, for operators", lambda: _answers("helm", "version")),
}
"""What a script may need, in words, and how to find out."""


def read_proofs(folder: Path) -> list[Proof]:
    """The scripts of a folder in the order of their names. ValueError for a head that lacks something."""
    found = []
    for script in sorted(folder.glob("*.sh")):
        head = dict(re.findall(r"^# (proves|needs|minutes): (.+)$", script.read_text(), re.MULTILINE))
        if missing := {"proves", "needs", "minutes"} - head.keys():
            raise ValueError(f"{script.name}: its head does not say {', '.join(sorted(missing))}")
        needs = tuple(head["needs"].split())
        if unknown := [need for need in needs if need not in REQUIREMENTS]:
            raise ValueError(f"{script.name}: unknown need {unknown[0]}; known: {', '.join(REQUIREMENTS)}")
        name = re.sub(r"^\d+-", "", script.stem)
        found.append(Proof(name, head["proves"], needs, float(head["minutes"]), script))
    return found


def lacking(proof: Proof, available: Mapping[str, bool]) -> str:
    """What the machine lacks for a proof, in words; empty if nothing."""
    return ", ".join(REQUIREMENTS[need][0] for need in proof.needs if not available[need])


def run(proof: Proof, logs: Path) -> Result:
    """Runs a script; its output goes to a file, the last line of which becomes the detail."""
    log = logs / f"{proof.name}.log"
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", str(proof.script)],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHON": sys.executable},
            start_new_session=True,
        )
        try:
            code = process.wait(proof.minutes * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)  # the script's trap cleans up
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            why = f"took longer than {proof.minutes:g} minutes ({log})"
            return Result(proof, "fail", why, time.monotonic() - started)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    detail = lines[-1][:120] if lines else ""
    seconds = time.monotonic() - started
    return Result(proof, "pass", detail, seconds) if code == 0 else Result(proof, "fail", f"{detail} ({log})", seconds)


def prove(
    proofs: Sequence[Proof], available: Mapping[str, bool], logs: Path, say: Callable[[str], None]
) -> list[Result]:
    """Runs what this machine can, one after the other, and tells how each ended."""
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for proof in proofs:
        without = lacking(proof, available)
        if without:
            result = Result(proof, NOT_HERE, f"needs {without}")
        else:
            say(f"{proof.name}: running, at most {proof.minutes:g} minutes …")
            result = run(proof, logs)
        say(_line(result))
        results.append(result)
    return results


def _line(result: Result) -> str:
    took = f" [{result.seconds:.0f} s]" if result.seconds else ""
    return f"{result.ending.upper():<18} {result.proof.name:<20} {result.proof.proves}\n{'':<39} {result.detail}{took}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="run nothing; say what could run here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these items alone")
    parser.add_argument("--proofs", type=Path, default=PROOFS, help="folder of the scripts")
    parser.add_argument("--logs", type=Path, default=ROOT / ".cache" / "prove", help="folder of their output")
    told = parser.parse_args(arguments)
    proofs = read_proofs(told.proofs)
    if told.only:
        if unknown := [name for name in told.only if name not in {proof.name for proof in proofs}]:
            parser.error(f"no item {unknown[0]}; there are {', '.join(proof.name for proof in proofs)}")
        proofs = [proof for proof in proofs if proof.name in told.only]
    needed = {need for proof in proofs for need in proof.needs}
    available = {need: REQUIREMENTS[need][1]() for need in sorted(needed)}
    if told.list:
        for proof in proofs:
            without = lacking(proof, available)
            result = Result(proof, NOT_HERE, f"needs {without}") if without else Result(proof, "can run")
            print(_line(result))
        return 0
    results = prove(proofs, available, told.logs, lambda line: print(line, flush=True))
    counts = Counter(each.ending for each in results)
    written = [
        {"name": each.proof.name, "ending": each.ending, "detail": each.detail, "seconds": each.seconds}
        for each in results
    ]
    (told.logs / "results.json").write_text(json.dumps(written, indent=1))
    print(f"\n{counts['pass']} passed, {counts['fail']} failed, {counts[NOT_HERE]} not available here")
    return 0 if counts["pass"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
