"""Links of the documentation lead to files, every page can be reached, and what is generated is up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "deploy").rglob("*.md")])
CODE = ROOT / "services" / "citewell"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert [link for link in _links(page) if not (page.parent / link).exists()] == []


def _links(page: Path) -> list[str]:
    """The files that a page links to."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def test_every_page_can_be_reached_from_the_table_of_contents() -> None:
    reached, waiting = set[Path](), [ROOT / "deploy/docs/README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [page.parent / link for link in _links(page)]
    assert [page.name for page in PAGES if page.is_relative_to(ROOT / "deploy/docs") and page not in reached] == []


def test_the_page_of_settings_shows_every_setting() -> None:
    command = [sys.executable, ROOT / "deploy/settings_page.py"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert (ROOT / "deploy/docs/settings.md").read_text(encoding="utf-8") == shown, "run make settings-page"


def test_the_first_hour_names_files_that_exist() -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", (ROOT / "deploy/docs/first-hour.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    known = {path.name for path in CODE.rglob("*.py")}
    wrong = [name for name in named if not ((CODE / name).exists() or (ROOT / name).exists() or name in known)]
    assert wrong == []
