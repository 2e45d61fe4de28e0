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

from pytest_llmperf.records.text import WORDS
from pytest_llmperf.report import html, summary
from tests.report import samples
from tests.report.hostile import EVIL, hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


#: Each verdict once at least, and a load on both engines.
EVERY_STATE = replace(
    samples.FULL,
    results=(*samples.FULL.results, samples.RECORDED),
    curves=(samples.CURVE, samples.ON_VLLM_CURVE),
)


def _hostile() -> str:
    evil = hostile()
    few = replace(evil, results=evil.results[:3])
    return html.page(few, [], {x.id: f"{EVIL}\n" * 3 for s in evil.servers for x in s.launches})


PAGES = {
    "full": lambda: html.page(
        EVERY_STATE,
        [samples.HISTORY],
        samples.LOGS,
        samples.BEFORE,
    ),
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
    shown = {badge.inner_text().partition(" (")[0] for badge in page.locator("details.result > summary .badge").all()}
    assert shown == {"full": {WORDS[state] for state in summary.STATES}}.get(name, shown)
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
    channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert all(c > 200 for c in channels) if scheme == "light" else all(c < 60 for c in channels)
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    assert name == "hostile" or page.eval_on_selector_all(".scroll", wide) == []
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


def _rows(page: Page) -> list[str]:
    """Verdicts of the rows that are seen, from the top down."""
    rows = page.locator("table.results tbody tr")
    seen = [(rows.nth(i).bounding_box(), rows.nth(i).locator(".badge").inner_text()) for i in range(rows.count())]
    return [said for box, said in sorted((box["y"], said) for box, said in seen if box)]


@pytest.mark.parametrize("width", WIDTHS)
def test_results_are_filtered_and_sorted_by_verdict(width: str, browser: Browser, tmp_path: Path) -> None:
    """By the style sheet alone: the page has no script."""
    file = tmp_path / "page.html"
    file.write_text(html.page(replace(samples.FULL, servers=samples.FULL.servers[:1])), encoding="utf-8")
    page = browser.new_page(viewport={"width": WIDTHS[width], "height": 900}, java_script_enabled=False)
    page.goto(file.as_uri())
    every = [WORDS[r.verdict] + (" (weak)" if r.weak else "") for r in samples.FULL.results]
    assert _rows(page) == every
    page.locator("label", has_text="regressed").click()
    assert _rows(page) == ["regressed"]
    assert [d.locator(".badge").inner_text() for d in page.locator("details.result").all() if d.is_visible()] == [
        "regressed"
    ]
    page.locator("label", has_text="all").first.click()
    page.locator("label", has_text="worst first").click()
    in_tables = [r for r in samples.FULL.results if r.server == samples.SGLANG.key]
    ranked = [WORDS[r.verdict] + (" (weak)" if r.weak else "") for r in summary.worst_first(in_tables)]
    assert _rows(page)[: len(ranked)] == ranked
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sorted_table_keeps_its_columns(width: str, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html.page(samples.FULL, previous=samples.BEFORE), encoding="utf-8")
    page = browser.new_page(viewport={"width": WIDTHS[width], "height": 900})
    page.goto(file.as_uri())
    page.locator("label", has_text="worst first").click()
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
    for cell in ("is-value", "is-verdict", "is-change"):
        ends = page.eval_on_selector_all(
            f"section.server:first-of-type td.{cell}:not(.none)",
            "all => all.map(e => Math.round(e.getBoundingClientRect().right))",
        )
        assert len(ends) > 5
        assert max(ends) - min(ends) <= (1 if width == "desktop" else WIDTHS[width])
    shots = os.environ.get("LLMPERF_SCREENSHOTS")
    if shots:
        page.screenshot(path=Path(shots) / f"sorted-{width}.png")
    page.close()
