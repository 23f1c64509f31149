"""A real Chromium, and the services with a small world in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from citewell.commands.stack import Stack, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.demo_world import Asked, divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.servers.missing import missing

AXE = Path(__file__).parents[2] / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# The machine may have no network but loopback: Chromium then waits for hosts it looks up by itself.
CHROMIUM_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

# Answers may take long on a busy machine; Playwright's own limit is five seconds.
expect.set_options(timeout=60_000)


@dataclass(frozen=True, slots=True)
class Served:
    """A page and the services behind it."""

    stack: Stack
    queries: tuple[Asked, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.stack.ports['http']}/"


PAPERS, SEED = 200, 7


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"CITEWELL_RECOMMENDER__FEEDBACK": "text"}
    stack = Stack(tmp_path_factory.mktemp("browser"), choose_ports(0), settings=settings)
    try:
        yield serve(stack)
    finally:
        stack.stop()


def serve(stack: Stack) -> Served:
    """Starts the services and publishes the world."""
    stack.start()
    stack.wait()
    client = Client(stack.addresses)
    try:
        world = list(divided(PAPERS, SEED))
        publish(client, [publication for publication, _ in world])
        queries = tuple(asked for _, some in world for asked in some)
        client.recommend(messages.Query(title="warm"), messages.Options(rerank=False))
        return Served(stack, queries)
    finally:
        client.close()


@pytest.fixture(scope="module")  # while Playwright is open, no other event loop runs in this thread
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        missing("Chromium is not installed: apt-get install chromium")
    if not AXE.exists():
        missing("axe-core is not installed: make setup-dev, which needs npm")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=["desktop", "phone"])
def page(request: pytest.FixtureRequest, chromium: Browser, served: Served) -> Iterator[Page]:
    """The page, once as on a desk in the light, once as on a phone in the dark; its scripts must raise nothing."""
    wide = request.param == "desktop"
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900} if wide else {"width": 390, "height": 844},
        color_scheme="light" if wide else "dark",
        permissions=["clipboard-read", "clipboard-write"],
        bypass_csp=True,  # axe-core is put into the page
    )
    page = context.new_page()
    raised: list[str] = []
    page.on("pageerror", lambda error: raised.append(str(error)))
    page.goto(served.url)
    yield page
    context.close()
    assert raised == []
