"""Links of the documentation lead to files, and first-hour.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "deploy").rglob("*.md")])
CODE = ROOT / "services" / "citewell"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_the_first_hour_names_files_that_exist() -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", (ROOT / "deploy/docs/first-hour.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    known = {path.name for path in CODE.rglob("*.py")}
    wrong = [name for name in named if not ((CODE / name).exists() or (ROOT / name).exists() or name in known)]
    assert wrong == []
