"""python -m tests.browser.screenshots FOLDER: pictures of every state of the page, and axe-core's report on each.

Desktop and phone, light and dark. People look at the pictures; the report fails the run if anything is serious.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from citewell.commands.stack import Stack, choose_ports
from tests.browser.conftest import AXE, CHROMIUM_ARGUMENTS, Served, serve

PATIENCE = 60_000
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
NEEDY = "Recent work has proposed linear attention to reduce the quadratic cost of self-attention."


def draft(served: Served, *numbers: int) -> str:
    """A paragraph for each query of the world, with its place marked."""
    texts = [served.queries[number].query.context.replace("OTHERCIT", "others") for number in numbers]
    return "\n\n".join(text.replace("TARGETCIT", "[?]") for text in texts)


def ask(page: Page, text: str, says: str = "answered") -> None:
    """Pastes a text, asks, and waits for what the status says in the end."""
    page.fill("#text", text)
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#status")).to_contain_text(says, timeout=PATIENCE)


def _answers(page: Page, served: Served) -> None:
    ask(page, draft(served, 0, 1), "2 of 2 places answered")


def _suggested(page: Page, served: Served) -> None:
    page.check("#suggest")
    ask(page, f"{draft(served, 0)} {NEEDY}", "2 of 2 places answered")


def _filters(page: Page, served: Served) -> None:
    page.click("summary")
    page.fill("#to", "2010")
    page.fill("#before", "2012-01-01")
    page.check("#known")
    ask(page, draft(served, 0), "1 of 1 place answered")


def _nothing_fits(page: Page, served: Served) -> None:
    page.click("summary")
    page.fill("#venues", "No such venue")
    ask(page, draft(served, 0), "1 of 1 place answered")


def _explained(page: Page, served: Served) -> None:
    ask(page, draft(served, 0), "1 of 1 place answered")
    form = page.locator(".why").first
    form.locator("input").fill(next(iter(served.queries[0].answers)))
    form.get_by_text("Explain").click()
    expect(form.locator("[role=status]")).to_contain_text("retrieval", timeout=PATIENCE)
    form.scroll_into_view_if_needed()


def _chosen(page: Page, served: Served) -> None:
    ask(page, draft(served, 0), "1 of 1 place answered")
    page.locator(".item").nth(1).get_by_text("Not this one").click()
    page.locator(".item").first.get_by_text("Copy BibTeX").click()


def _problems(page: Page, served: Served) -> None:
    text = (
        "\\begin{document}\n"
        + draft(served, 0).replace("[?]", "\\cite{?}")
        + "\n{ open\n\\input{gone}\\end{document}\n"
    )
    page.set_input_files("#file", [{"name": "draft.tex", "mimeType": "text/plain", "buffer": text.encode()}])
    expect(page.locator("#status")).to_contain_text("1 of 1 place answered", timeout=PATIENCE)


def _no_place(page: Page, served: Served) -> None:
    ask(page, "No place at all in this text.", "No open place")


def _service_gone(page: Page, served: Served) -> None:
    page.route("**/RecommendManuscript", lambda route: route.abort())
    ask(page, draft(served, 0), "cannot be reached")


STATES: dict[str, Callable[[Page, Served], None]] = {
    "empty": lambda page, served: None,
    "answers": _answers,
    "suggested": _suggested,
    "filters": _filters,
    "nothing-fits": _nothing_fits,
    "explained": _explained,
    "chosen": _chosen,
    "problems": _problems,
    "no-place": _no_place,
    "service-gone": _service_gone,
}


def main(folder: Path) -> int:
    """Takes all pictures; 1 if axe-core found something serious."""
    folder.mkdir(parents=True, exist_ok=True)
    serious = 0
    settings = {"CITEWELL_RECOMMENDER__FEEDBACK": "text"}
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        stack = Stack(Path(data), choose_ports(0), settings=settings)
        try:
            served = serve(stack)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_ARGUMENTS)
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    for state, reach in STATES.items():
                        viewport: Any = {"width": width, "height": height}
                        colours: Any = scheme
                        context = browser.new_context(
                            viewport=viewport,
                            color_scheme=colours,
                            bypass_csp=True,  # axe-core is put into the page
                            permissions=["clipboard-read", "clipboard-write"],
                        )
                        page = context.new_page()
                        page.goto(served.url)
                        reach(page, served)
                        page.screenshot(path=folder / f"{state}-{size}-{scheme}.png", full_page=True)
                        wide = page.evaluate("document.documentElement.scrollWidth") > width
                        page.add_script_tag(path=AXE)
                        found: Any = page.evaluate("axe.run()")
                        told = [(each["impact"], each["id"], len(each["nodes"])) for each in found["violations"]]
                        serious += sum(impact in ("serious", "critical") for impact, *_ in told) + wide
                        print(state, size, scheme, json.dumps(told), "scrolls sideways" if wide else "", flush=True)
                        context.close()
            browser.close()
        finally:
            stack.stop()
    return 1 if serious else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
