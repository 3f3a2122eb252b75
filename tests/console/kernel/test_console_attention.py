# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in Chromium: updates keep focus and selection, errors are announced once, hidden pages do not poll."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

import pytest
from browsed_console import console_in_browser
from browser import Browser
from console_site import Console
from fake_throttler import FakeThrottler, World
from selenium.webdriver.common.keys import Keys

from mptcp_console.watch import MAX_WATCHERS

pytestmark = pytest.mark.kernel
TOKEN = "4f037d87"
SET_HIDDEN = """\
Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments[0]});
document.dispatchEvent(new Event('visibilitychange'));
"""
RECORD_TEXTS = """\
const element = document.querySelector(arguments[0]);
window.texts = [];
new MutationObserver(() => window.texts.push(element.textContent))
  .observe(element, {subtree: true, childList: true, characterData: true});
"""


@dataclass
class Site:
    world: World
    throttler: FakeThrottler
    console: Console
    browser: Browser

    def open(self, page: str) -> None:
        self.browser.open(f"{self.console.url}/#{page}")
        self.browser.until_text("#state-text", "live")

    def request_count(self, query: str) -> int:
        return sum(each["query"] == query for each in list(self.world.queries))

    def write(self, field: str, text: str) -> None:
        """Write into a field at once, like a person who pauses after typing."""
        self.browser.run(
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            field, text,
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, require: object) -> Iterator[Site]:
    require("chromium", "chromedriver")  # type: ignore[operator]
    with console_in_browser(tmp_path_factory.mktemp("console")) as parts:
        yield Site(*parts)


@pytest.fixture(autouse=True)
def _show_as_desktop(site: Site) -> None:
    site.browser.show_as("desktop", "light")


@pytest.mark.parametrize("reversed_order", [True, False])
def test_table_row_keeps_focus_and_selection_when_it_moves(site: Site, reversed_order: bool) -> None:
    """Defect: the row was removed and inserted again, which lost the focus."""
    site.world.reversed_order = not reversed_order
    first = "document.querySelector('#connections tbody a').textContent"
    links = "[...document.querySelectorAll('#connections tbody a')].map(each => each.textContent)"
    try:
        site.open("connections")
        site.browser.until(lambda: len(site.browser.run(f"return {links}")) == 3, "three connections")
        before = site.browser.run(f"return {links}")
        site.browser.run(
            "window.lost = 0; const links = [...document.querySelectorAll('#connections tbody a')];"
            "links[0].addEventListener('blur', () => { window.lost += 1; }); links[0].focus();"
            "getSelection().selectAllChildren(links[1].closest('tr').querySelector('.client'))"
        )
        selected = site.browser.run("return getSelection().toString()")
        assert selected.startswith("10.77.1.")
        site.world.reversed_order = reversed_order
        site.browser.until(lambda: site.browser.run(f"return {first}") != before[0], "another row is first")
        assert site.browser.run(f"return {links}") == before[::-1]
        assert site.browser.run("return [document.activeElement.textContent, window.lost]") == [before[0], 0]
        assert site.browser.run("return getSelection().toString()") == selected
    finally:
        site.world.reversed_order = False


def test_reasons_open_without_a_mouse(site: Site) -> None:
    """Defect: the reasons were in tooltips, which need a mouse."""
    site.open("connections")
    site.browser.until_text("#connections", TOKEN)
    summary = site.browser.find(f"#connections tbody:has(a[href='#connection/{TOKEN}']) .subflow .why summary")
    reason = site.browser.find(f"#connections tbody:has(a[href='#connection/{TOKEN}']) .subflow .why p")
    assert not reason.is_displayed()
    summary.send_keys(Keys.ENTER)
    site.browser.until(reason.is_displayed, "the reason is shown")
    assert reason.text.startswith("rule spare-ethernet caps path ethernet at 5 Mbit/s")
    before = site.request_count("connections")
    site.browser.until(lambda: site.request_count("connections") >= before + 2, "the table is updated")
    assert reason.is_displayed()
    assert site.browser.faults() == []
    site.open("what-if")
    site.browser.find("#what-if-text").send_keys("version: 1\nrules: []")
    site.browser.find("#what-if button").click()
    site.browser.until_text("#what-if-result", "rule new caps path wifi at 1 Mbit/s")
    assert site.browser.run("return document.querySelectorAll('[title]').length") == 0


def test_phone_shows_the_direction_of_each_cap(site: Site) -> None:
    site.browser.show_as("phone", "light")
    site.open("policy")
    site.browser.until_text("#rules", "spare-ethernet")
    assert site.browser.find("#rules tbody td:nth-child(2)").text.split() == ["ethernet", "down"]
    site.open(f"connection/{TOKEN}")
    site.browser.until_text("#explained", "Subflow since")
    site.browser.until_text("#explained", "Bytes1.00 MB")


def test_connection_card_keeps_selection_when_it_is_updated(site: Site) -> None:
    site.open(f"connection/{TOKEN}")
    site.browser.until_text("#explained .reason", "rule spare-ethernet caps")
    site.browser.run("getSelection().selectAllChildren(document.querySelector('#explained .reason'))")
    before = site.request_count("explain")
    site.world.sent["ethernet"] += 1000
    site.browser.until(lambda: site.request_count("explain") >= before + 2, "the card is requested again")
    assert str(site.browser.run("return getSelection().toString()")).startswith("rule spare-ethernet caps")


def test_incomplete_address_filter_shows_all_clients_and_a_hint(site: Site) -> None:
    """Defect: a pause after half an address caused an error message."""
    site.open("connections")
    site.browser.until_text("#connections-count", "3 connections")
    site.write("#filter-client", "10.77")
    site.browser.until_text("#filter-client-hint", "The address is incomplete: all clients are shown.")
    before = site.request_count("connections")
    site.browser.until(lambda: site.request_count("connections") > before, "the table is updated")
    assert site.browser.text("#connections-message") == ""
    assert site.browser.text("#connections-count") == "3 connections"
    site.write("#filter-client", "10.77.1.2")
    site.browser.until_text("#connections-count", "1 connection")
    assert site.browser.text("#filter-client-hint") == ""


def test_event_filter_accepts_any_spelling_of_an_address(site: Site) -> None:
    """Defect: live events were compared by the text of the address."""
    site.open("events")
    site.write("#events-client", "FD77:0::1")
    site.browser.until_text("#events", "No event matches the filter.")
    site.world.add_event("applied", "another client", client="fd77::2")
    site.world.add_event("applied", "the same client", client="fd77::1")
    site.browser.until_text("#events", "the same client")
    assert "another client" not in site.browser.text("#events")


def test_hidden_page_stops_polling_and_resumes_when_shown(site: Site) -> None:
    site.open("connections")
    site.browser.until_text("#connections", TOKEN)
    site.browser.run(SET_HIDDEN, True)
    try:
        before = site.request_count("connections")
        summaries = site.request_count("summary")
        # While the page is hidden, the console itself queries every five seconds. For a visible table it would query
        # every two seconds.
        site.browser.until(lambda: site.request_count("summary") >= summaries + 4, "time passes")
        assert site.request_count("connections") <= before + 1
        before = site.request_count("connections")
    finally:
        site.browser.run(SET_HIDDEN, False)
    site.browser.until(lambda: site.request_count("connections") > before, "the table is requested")
    site.browser.until_text("#state-text", "live")


def test_page_shows_faults_of_a_throttler_that_answers(site: Site) -> None:
    """Defect: if an interface was not captured, the page still said that everything is live."""
    site.open("live")
    assert not site.browser.find("#faults").is_displayed()
    site.world.is_captured, site.world.ledger_error = False, "ledger l: disk full"
    try:
        site.browser.until_text("#faults", "Nothing is captured on wan0, which is down or missing")
        site.browser.until_text("#faults", "Budget usage cannot be saved to disk (ledger l: disk full)")
        assert site.browser.find("#faults").is_displayed()
        assert site.browser.text("#state-text") == "live, 2 faults"
        assert site.browser.text("#title-moment") == "Now"
        assert site.browser.faults() == []
        site.browser.open(f"{site.console.url}/#health")
        site.browser.until_text("#health", "Captures onnot on wan0")
        site.browser.until_text("#health", "no: ledger l: disk full")
    finally:
        site.world.is_captured, site.world.ledger_error = True, None
    site.browser.until(lambda: not site.browser.find("#faults").is_displayed(), "no fault is shown")
    site.browser.until_text("#health", "Captures onwan0")
    site.world.dropped_segments += 5
    site.browser.until_text("#faults", "5 segments lost by the capture")


def test_screen_reader_announces_an_error_once(site: Site) -> None:
    """Defect: the message contained its age, so that screen readers read it each second."""
    site.open("live")
    site.browser.run(RECORD_TEXTS, "[role=alert]")
    site.throttler.stop()
    try:
        site.browser.until_text("#trouble", "The throttler does not run")
        # A query during the stop may get a partial answer, which causes one more message.
        ages: set[str] = set()

        def has_grown() -> bool:
            ages.add(site.browser.text("#trouble-age"))
            return len(ages) > 3

        site.browser.until(has_grown, "the shown age grows")
        announced = site.browser.run("return window.texts")
        assert len(announced) == len(set(announced)) <= 2
    finally:
        site.throttler.start()
    site.browser.until(lambda: not site.browser.find("#trouble").is_displayed(), "no error is shown")


@contextmanager
def open_streams(site: Site, count: int) -> Iterator[None]:
    """Keep *count* streams of the live page open, as *count* viewers would."""
    with ExitStack() as stack:
        for _ in range(count):
            opener = build_opener(ProxyHandler({}))
            stack.enter_context(opener.open(f"{site.console.url}/api/live", timeout=60))
        yield


def test_page_above_the_viewer_limit_reports_it_and_retries(site: Site) -> None:
    """Defect: a page above the limit alternated between "the console does not answer" and no message."""
    site.browser.open("about:blank")
    no_viewers = {"watching": 0, "most": MAX_WATCHERS}
    site.browser.until(lambda: site.console.get("/api/viewers") == no_viewers, "no browser watches")
    with open_streams(site, MAX_WATCHERS):
        site.browser.open(f"{site.console.url}/#live")
        site.browser.until_text("#state-text", "console full")
        site.browser.run(RECORD_TEXTS, "#trouble")
        site.browser.until(lambda: len(site.browser.run("return window.texts")) > 7, "the page retries")
        assert [each for each in site.browser.run("return window.texts") if "Too many pages" not in each] == []
    site.browser.until_text("#state-text", "live")
