"""What writers choose, from the page and from the editor into the log, and back as a data set of the lab."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from citewell.lab.dataset import read_dataset
from citewell.lab.protocol import Mode, make_task
from tests.browser.conftest import PAPERS, SEED, Served
from tests.e2e.test_commands import citewell
from tests.servers.missing import missing

NEOVIM = Path(__file__).parents[1] / "e2e" / "neovim.lua"


@pytest.fixture
def page(chromium: Browser, served: Served) -> Iterator[Page]:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(served.url)
    yield page
    context.close()


def _ask(page: Page, served: Served, number: int) -> None:
    text = served.queries[number].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "[?]")
    page.fill("#text", text)
    page.fill("#title", f"Draft {number}")
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")


def _press(page: Page, item: int, button: str) -> Any:
    """Presses a button of an item; what the page sends about it."""
    with page.expect_response("**/RecordFeedback") as told:
        page.locator(".item").nth(item).get_by_text(button).click()
    assert told.value.status == 200, told.value.text()
    return told.value.request.post_data_json


def _exported(served: Served, folder: Path) -> list[dict[str, Any]]:
    """Exports all feedback into `folder`; the events."""
    corpus = folder.with_name("corpus")
    if not corpus.exists():
        made = citewell("demo-corpus", "--out", str(corpus), "--papers", str(PAPERS), "--seed", str(SEED))
        assert made.returncode == 0, made.stderr
    address = served.stack.addresses["ingestion"]
    words = ("--corpus", str(corpus), "--address", address, "--validation-share", "0")
    done = citewell("export", "feedback", str(folder), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (folder / "choices.jsonl").read_text().splitlines()]


def test_the_page_reports_choices_and_keeps_text_only_with_consent(page: Page, served: Served, tmp_path: Path) -> None:
    before = len(_exported(served, tmp_path / "before"))
    page.click("summary")
    expect(page.locator("#share")).to_be_checked()
    expect(page.locator("#keep")).not_to_be_checked()
    _ask(page, served, 0)
    shown = _press(page, 0, "Copy BibTeX")["shown"]
    assert len(shown) == 5
    _press(page, 1, "Not this one")
    page.check("#keep")
    _ask(page, served, 1)
    kept = _press(page, 2, "Copy \\cite")
    page.uncheck("#share")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    _ask(page, served, 2)
    page.locator(".item").first.get_by_text("Copy BibTeX").click()
    expect(page.locator(".item").first).to_contain_text("Copied")
    assert not [url for url in sent if "RecordFeedback" in url]

    out = tmp_path / "out"
    chosen, dismissed, with_text = _exported(served, out)[before:]
    assert (chosen["shown"], chosen["chosen"], "text" in chosen) == (shown, [shown[0]], False)
    assert (dismissed["shown"], dismissed["dismissed"], "text" in dismissed) == (shown, [shown[1]], False)
    assert chosen["answer"]["encoder_hash"]
    assert with_text["chosen"] == [kept["shown"][2]]
    context = with_text["text"]["context"]
    assert (with_text["text"]["title"], context.count("TARGETCIT")) == ("Draft 1", 1)

    data = read_dataset(out)
    assert not data.rejects
    queries = make_task(data, "test", Mode.INDUCTIVE).queries
    rows = [int(row) for row in queries if data.contexts.texts[int(row)] == context]
    assert [data.papers.ids[int(data.contexts.cited[row])] for row in rows] == [kept["shown"][2]]


@pytest.mark.parametrize("share_text", [False, True])
def test_the_editor_reports_accepted_completions(served: Served, tmp_path: Path, *, share_text: bool) -> None:
    if shutil.which("nvim") is None:
        missing("Neovim is not installed: apt-get install neovim")
    before = len(_exported(served, tmp_path / "before"))
    context = served.queries[3].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{}")
    draft = tmp_path / "draft.tex"
    draft.write_text(f"\\begin{{document}}\n{context}\n\\end{{document}}\n")
    server = [sys.executable, "-m", "citewell.cli", "lsp", "--address", served.stack.addresses["recommender"]]
    server += ["--timeout", "20", *(["--share-text"] if share_text else [])]
    told = {"CITEWELL_LSP": json.dumps(server), "CITEWELL_DRAFT": str(draft), "CITEWELL_ACCEPT": "yes"}
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-u", "NONE", "-c", f"luafile {NEOVIM}", "-c", "silent wall", "-c", "qa!"],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=120,
    )
    answer = json.loads(next(line for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")))
    (event,) = _exported(served, tmp_path / "out")[before:]
    assert len(event["shown"]) == answer["count"] == 8
    assert event["chosen"] == event["shown"][:1]
    assert ("text" in event) is share_text
    assert answer["label"] in (tmp_path / "references.bib").read_text(), "the entry is in the draft's .bib file"
