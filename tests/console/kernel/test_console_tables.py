# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in real Chromium with a fake throttler for the pages of connections and rules, and for their updates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsed_console import console_in_browser
from browser import Browser
from console_site import Console
from fake_throttler import World

pytestmark = pytest.mark.kernel
TOKEN = "4f037d87"
NO_POLLING = """\
const real = window.setTimeout;
window.setTimeout = (task, delay, ...more) => delay >= 1900 && delay <= 4000 ? 0 : real(task, delay, ...more);
"""
"""JavaScript that stops the pages' periodic requests, which they send every two and three seconds."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, require: object) -> Iterator[tuple[World, Console, Browser]]:
    require("chromium", "chromedriver")  # type: ignore[operator]
    with console_in_browser(tmp_path_factory.mktemp("console")) as parts:
        script = {"source": NO_POLLING}
        parts.browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        yield parts.world, parts.console, parts.browser


@pytest.mark.parametrize(
    ("page", "is_capped"),
    [
        ("connections", "[...document.querySelectorAll('#connections .badge.capped')].length > 0"),
        (f"connection/{TOKEN}", "document.querySelector('#explained').textContent.includes('capped at 5 Mbit/s')"),
        ("policy", "document.querySelector('#rules tbody td:nth-child(6)')?.textContent === '3'"),
    ],
    ids=["connections", "connection", "policy"],
)
def test_page_updates_caps_when_the_stream_reports_a_change(
    site: tuple[World, Console, Browser], page: str, is_capped: str
) -> None:
    world, console, browser = site
    browser.open(f"{console.url}/#{page}")
    browser.until_text("#state-text", "live")
    browser.until(lambda: browser.run(f"return {is_capped}"), "the cap is shown")
    for kind in ("lifted", "applied"):
        world.capped = kind == "applied"
        world.add_event(kind, f"cap {kind}", token=TOKEN, rule="spare-ethernet")
        browser.until(lambda: bool(browser.run(f"return {is_capped}")) is world.capped, f"{kind} is shown")


def test_bytes_column_sums_both_directions(site: tuple[World, Console, Browser]) -> None:
    world, console, browser = site
    browser.open(f"{console.url}/#connections")
    (first,) = world.answer({"query": "connections", "limit": 1})["connections"]
    assert (first["bytes_sent"], first["bytes_received"]) == (2_000_000, 40_000)
    browser.until_text(f"#connections tbody:has(a[href='#connection/{TOKEN}']) .connection", "2.04 MB")
    browser.until_text(f"#connections tbody:has(a[href='#connection/{TOKEN}']) .subflow", "1.02 MB")


def test_page_shows_why_a_matching_rule_does_not_cap(site: tuple[World, Console, Browser]) -> None:
    world, console, browser = site
    lifted = {"rule": "spare", "kind": "throttle", "matched": True, "failed": "lifted: the last usable path"}
    try:
        world.tried = [lifted | {"until": None}]
        browser.open(f"{console.url}/#connection/{TOKEN}")
        browser.until_text("#explained .tried", "spare matches; lifted: the last usable path")
        world.tried = []
        world.add_event("applied", "something", token=TOKEN)
        browser.until_text("#explained", "No rule applies to this direction.")
    finally:
        world.tried = None


def test_page_counts_caps_that_the_graph_does_not_draw(site: tuple[World, Console, Browser]) -> None:
    world, console, browser = site
    browser.open(f"{console.url}/#live")
    browser.until_text("#legend", "cap 5 Mbit/s")
    assert "more" not in browser.text("#not-drawn")
    world.extra_caps = [f"more-{number}" for number in range(14)]
    browser.until_text("#not-drawn", "Not drawn: 3 more caps")
    assert browser.find("#not-drawn").is_displayed()
