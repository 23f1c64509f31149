"""Prints deploy/docs/errors.md: every reason of the catalogue protos/citewell/types/v1/reason.proto."""

from __future__ import annotations

from pathlib import Path

CATALOGUE = Path(__file__).parent.parent / "protos/citewell/types/v1/reason.proto"
HEAD = """# Reasons

Written by `deploy/errors_page.py` from `protos/citewell/types/v1/reason.proto`; a test compares both with the code.

A failed call carries google.rpc.Status with one ErrorInfo (domain `citewell`); its `reason` is one of these. BadRequest
names a wrong field, RetryInfo the time after which a retry helps. Dead letters, `degraded` and `partial_reason`
use the same words. Retry UNAVAILABLE at once (the service config does so for idempotent methods) and RESOURCE_EXHAUSTED
after RetryInfo's time; nothing else gets better by itself.
"""
COLUMNS = "| reason | where | meaning, and what to do |\n|---|---|---|\n"


def page(catalogue: str) -> str:
    """The page for the text of the catalogue."""
    lines, comment = [HEAD], list[str]()
    for line in map(str.strip, catalogue.splitlines()):
        if line.startswith("// ---- "):
            lines.append(
                f"\n## {line.removeprefix('// ---- ')}\n\n| reason | where | meaning, and what to do |\n|---|---|---|\n"
            )
            comment = []
        elif line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
        elif line.startswith("REASON_"):
            name = line.partition(" =")[0].removeprefix("REASON_")
            where, _, meaning = " ".join(comment).partition(": ")
            if name != "UNSPECIFIED":
                lines.append(f"| `{name}` | {where} | {meaning} |\n")
            comment = []
    return "".join(lines)


if __name__ == "__main__":
    print(page(CATALOGUE.read_text()), end="")
