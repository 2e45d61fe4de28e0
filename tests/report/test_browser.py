"""The HTML page in a real headless Chromium: no error, no request, nothing wider than the screen, light and dark.

Set ``LLMPERF_SCREENSHOTS`` to a folder to keep the pictures.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.report import html
from tests.report import samples
from tests.report.hostile import EVIL, hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

WIDTHS = {"phone": 400, "desktop": 1400}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    flags = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses to run as root with it
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


def _hostile() -> str:
    evil = hostile()
    few = replace(evil, results=evil.results[:3])
    return html.page(few, [], {x.id: f"{EVIL}\n" * 3 for s in evil.servers for x in s.launches})


PAGES = {
    "full": lambda: html.page(samples.FULL, [samples.HISTORY], samples.LOGS),
    "history": lambda: html.history_page([samples.HISTORY]),
    "empty": lambda: html.page(samples.EMPTY),
    "hostile": _hostile,
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_in_chromium(name: str, width: str, scheme: str, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    trouble: list[str] = []
    page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTHS[width], "height": 900})  # type: ignore[arg-type]
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url == file.as_uri() else trouble.append(request.url))
    page.goto(file.as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    shots = Path(os.environ.get("LLMPERF_SCREENSHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)
    shot = shots / f"{name}-{width}-{scheme}.png"
    page.screenshot(path=shot, full_page=True)

    assert trouble == []
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
    channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert all(c > 200 for c in channels) if scheme == "light" else all(c < 60 for c in channels)
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    assert shot.stat().st_size > 5_000
    page.close()


def test_a_link_opens_its_result(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html.page(samples.FULL), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(file.as_uri())
    detail = page.locator("#r1")
    assert not detail.is_visible()
    page.locator("a", has_text="test_long_prompt").first.click()
    detail.wait_for(state="visible")
    assert detail.locator(".plot").first.is_visible()
    page.close()
