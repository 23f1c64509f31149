"""The page as a writer uses it, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import AXE, Served


def _draft(served: Served, *numbers: int) -> str:
    texts = [served.queries[number].query.context.replace("OTHERCIT", "others") for number in numbers]
    return "\n\n".join(text.replace("TARGETCIT", "[?]") for text in texts)


def _ask(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.locator("#text").press("Control+Enter")


def _assert_accessible(page: Page) -> None:
    page.add_script_tag(path=AXE)
    found: Any = page.evaluate("axe.run()")
    serious = [
        (each["id"], each["nodes"][0]["html"])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_a_paragraph_is_marked_by_keyboard_and_answered(page: Page, served: Served) -> None:
    text = _draft(served, 0)
    before, after = text.split("[?]")
    page.fill("#text", before.rstrip() + after)
    page.evaluate(f"document.getElementById('text').setSelectionRange({len(before.rstrip())}, {len(before.rstrip())})")
    page.locator("#text").press("Alt+m")
    assert "[?]" in page.input_value("#text")
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
    assert page.locator(".item").count() == 5
    expect(page.locator(".item blockquote").first).not_to_contain_text("TARGETCIT")
    _assert_accessible(page)


def test_several_places_come_in_the_order_of_the_draft(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0, 1, 2))
    expect(page.locator("#status")).to_have_text("3 of 3 places answered")
    lines = page.locator(".place h2 .quiet").all_inner_texts()
    assert lines == sorted(lines)


def test_filters_hold_and_an_empty_answer_says_so(page: Page, served: Served) -> None:
    page.click("summary")
    page.fill("#to", "2005")
    _ask(page, _draft(served, 0))
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
    for text in page.locator(".item h3 + p").all_inner_texts():
        assert any(str(year) in text for year in range(1900, 2006)), text
    page.fill("#venues", "No such venue")
    _ask(page, _draft(served, 0))
    expect(page.locator(".place")).to_contain_text("No paper fits")
    _assert_accessible(page)


def test_bibtex_and_citation_are_copied(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    first = page.locator(".item").first
    first.get_by_text("Copy BibTeX").click()
    expect(first).to_contain_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    title = first.locator("h3").inner_text().split(" ", 1)[1]
    assert copied.startswith("@")
    assert title in copied
    first.get_by_text("Copy \\cite").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('\\\\cite{')")


def test_a_button_pressed_twice_says_again_what_it_copies(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    button = page.locator(".item").first.locator("button").nth(1)
    expect(button).to_have_text("Copy BibTeX")
    page.clock.install()  # the page's timers run only when told
    for _ in range(2):
        button.click()
        expect(button).to_have_text("Copied")
    page.clock.fast_forward(60_000)
    expect(button).to_have_text("Copy BibTeX")


def test_why_not_this_paper(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    form = page.locator(".why").first
    form.locator("input").fill(next(iter(served.queries[0].answers)))
    form.get_by_text("Explain").click()
    expect(form.locator("[role=status]")).to_contain_text("retrieval")
    form.locator("input").fill("nobody")
    form.get_by_text("Explain").click()
    expect(form.locator("[role=status]")).to_contain_text("nobody")


def test_all_stages_have_plain_names(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    form = page.locator(".why").first
    form.locator("input").fill(page.locator(".item .id").first.inner_text().removeprefix("id "))
    form.get_by_text("Explain").click()
    told = form.locator("[role=status]")
    expect(told).to_contain_text("by retrieval and reading together")
    expect(told).not_to_contain_text("joined")


def test_why_not_this_paper_by_its_title(page: Page, served: Served) -> None:
    wanted = next(iter(served.queries[0].answers))
    _ask(page, _draft(served, 0))
    form = page.locator(".why").first
    form.locator("input").fill(wanted)
    form.get_by_text("Explain").click()
    told = form.locator("[role=status]")
    expect(told).to_contain_text(" is number ")
    title = told.inner_text().split(" is number ")[0]
    form.locator("input").fill(title.lower())
    form.get_by_text("Explain").click()
    told.get_by_role("button", name=title, exact=True).click()
    expect(told).to_contain_text(f"{title} is number ")


def test_an_explanation_that_cannot_be_had_says_why(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    form = page.locator(".why").first
    form.locator("input").fill("p1")
    page.route("**/Explain", lambda route: route.abort())
    form.get_by_text("Explain").click()
    expect(form.locator("[role=status]")).to_contain_text("cannot be reached")


def test_what_was_known_needs_a_date(page: Page, served: Served) -> None:
    page.click("summary")
    page.check("#known")
    _ask(page, _draft(served, 0))
    expect(page.locator("#status")).to_contain_text("needs a date")
    page.fill("#before", "2015-01-01")
    _ask(page, _draft(served, 0))
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")


def test_the_keyboard_goes_from_paper_to_paper(page: Page, served: Served) -> None:
    _ask(page, _draft(served, 0))
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
    papers = page.locator(".item h3")
    for key, number in (("Alt+ArrowDown", 0), ("Alt+ArrowDown", 1), ("Alt+ArrowUp", 0)):
        page.keyboard.press(key)
        expect(papers.nth(number)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".item").first).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("\\cite{")


def test_escape_stops(page: Page, served: Served) -> None:
    _ask(page, "\n\n".join([_draft(served, 0)] * 100))
    expect(page.locator(".place").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_contain_text("Stopped; ")
    expect(page.locator("#stop")).to_be_hidden()


def test_a_file_is_read_with_its_problems(page: Page, served: Served, tmp_path: Path) -> None:
    draft = tmp_path / "draft.tex"
    draft.write_text(
        "\\begin{document}\n" + _draft(served, 0).replace("[?]", "\\cite{?}") + "\n{ open\n\\end{document}\n"
    )
    page.set_input_files("#file", draft)
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
    expect(page.locator("#problems li").first).to_contain_text("draft.tex:")


@pytest.mark.parametrize(("text", "says"), [("no place at all", "No open place"), ("x" * 2_000_001, "at most 2000000")])
def test_wrong_input_is_told(page: Page, text: str, says: str) -> None:
    _ask(page, text)
    expect(page.locator("#status")).to_contain_text(says)


def test_a_service_that_is_gone_is_told_and_found_again(page: Page, served: Served) -> None:
    served.stack.stop(["recommender"])
    try:
        _ask(page, _draft(served, 0))
        expect(page.locator("#status")).to_contain_text("did not work", timeout=90_000)
        served.stack.stop(["edge"])
        _ask(page, _draft(served, 0))
        expect(page.locator("#status")).to_contain_text("cannot be reached")
    finally:
        served.stack.start(["recommender", "edge"])
        served.stack.wait(["recommender", "edge"])
    _ask(page, _draft(served, 0))
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
