# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in Chromium for the live page, with a selected past time and with the present."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from browsed_console import console_in_browser
from browser import Browser
from console_site import Console
from fake_throttler import World
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.kernel
SLOW_FIRST_ANSWER = """
const fetched = window.fetch;
window.fetch = async (...parameters) => {
  const answer = await fetched(...parameters);
  if (window.answered || !String(parameters[0]).includes("events?")) return answer;
  window.answered = true;
  await new Promise(done => setTimeout(done, 8000));
  return answer;
};
"""
"""JavaScript that delays the first answer with events by eight seconds."""
FAST_CLOCK = "const real = Date.now.bind(Date); Date.now = () => real() + 3600e3;"
REFUSE_REQUESTS = """\
const real = window.fetch;
window.fetch = (url, ...more) =>
  String(url).includes(arguments[0]) ? Promise.reject(new Error()) : real(url, ...more);
"""
RECORD_LABELS = """\
const real = CanvasRenderingContext2D.prototype.fillText;
window.labels = [];
CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
  if (text.startsWith('cap ')) window.labels.push([text, this.measureText(text).width < this.canvas.width * 0.9]);
  return real.call(this, text, ...more);
};
"""


@dataclass
class Site:
    world: World
    console: Console
    browser: Browser

    def open(self, page: str = "live") -> None:
        self.browser.open(f"{self.console.url}/#{page}")
        self.browser.until_text("#state-text", "live")
        self.browser.until_text("#legend", "wifi")

    def go_to(self, moment: float) -> None:
        self.browser.run(
            "const field = document.querySelector('#goto-time'); field.value = arguments[0];"
            "document.querySelector('#goto').requestSubmit()",
            time.strftime("%H:%M:%S", time.localtime(moment)),
        )

    def choose_range(self, seconds: int) -> None:
        self.browser.run(f"document.querySelector('[name=range][value=\"{seconds}\"]').click()")

    def graph_value(self, name: str) -> float:
        return float(self.browser.find("#graph").get_attribute(f"aria-value{name}") or 0)


def add_traffic(world: World, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        world.carry(300_000, 1_500_000)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, require: object) -> Iterator[Site]:
    require("chromium", "chromedriver")  # type: ignore[operator]
    stop = threading.Event()
    with console_in_browser(tmp_path_factory.mktemp("console"), World(counted_at=time.time())) as parts:
        threading.Thread(target=add_traffic, args=(parts.world, stop), daemon=True).start()
        yield Site(parts.world, parts.console, parts.browser)
        stop.set()


@pytest.mark.nightly
def test_graph_table_keeps_its_rows_when_updated(site: Site) -> None:
    """Defect: the table was rebuilt each second, so that a user could neither select text nor continue to read."""
    site.open()
    site.choose_range(3600)
    site.browser.find("#as-table summary").click()
    first = "document.querySelector('#graph-table tbody tr')"
    site.browser.until(lambda: site.browser.run(f"return {first} !== null"), "a row is shown")
    site.browser.run(f"window.row = {first}; getSelection().selectAllChildren(window.row)")
    selected = site.browser.run("return getSelection().toString()")
    site.browser.until(lambda: site.browser.run(f"return {first} !== window.row"), "a new row is shown")
    assert site.browser.run("return window.row.isConnected")
    assert site.browser.run("return getSelection().toString()").split()[0] == selected.split()[0]


def test_hour_view_takes_current_values_from_the_stream(site: Site) -> None:
    """Defect: the current values came from the history, which the page requested only every ten seconds."""
    site.open()
    site.choose_range(3600)
    site.browser.until_text("#legend", "cap 5 Mbit/s")
    site.browser.run(REFUSE_REQUESTS, "history")
    try:
        site.world.capped = False
        site.browser.until(lambda: "cap" not in site.browser.text("#legend"), "no cap is shown")
        site.browser.until_text("#moment tbody", "none")
        assert site.browser.text("#title-moment") == "Now"
    finally:
        site.world.capped = True
    site.browser.until_text("#legend", "cap 5 Mbit/s")


def test_page_shows_nearest_of_many_events_and_links_to_the_others(site: Site) -> None:
    """Defect: the page showed the latest events of the interval, fifteen seconds away, without a hint at others."""
    event_time = int(time.time()) - 5
    for number in range(600):
        site.world.add_event("applied", f"event {number}", time=event_time - 15 + number / 20)
    site.open()
    site.go_to(event_time)
    site.browser.until_text("#nearby-note", "Only the 100 nearest are shown")
    assert "applied" in site.browser.text("#nearby-note")
    assert site.browser.faults() == []
    numbers = site.browser.run(
        "return [...document.querySelectorAll('#nearby .what')].map(each => Number(each.textContent.split(' ')[1]))"
    )
    assert numbers == sorted(numbers, reverse=True)
    assert min(numbers) >= 245
    assert max(numbers) <= 355
    site.browser.find("#nearby-all").click()
    site.browser.until_text("#events-count", "the newest 300")
    assert site.browser.run("return document.querySelector('#events-from').value") == time.strftime(
        "%H:%M:%S", time.localtime(event_time - 15)
    )


def test_failed_event_request_is_reported_as_failure(site: Site) -> None:
    site.open()
    site.browser.run(REFUSE_REQUESTS, "near=")
    site.go_to(time.time() - 2)
    site.browser.until_text("#nearby", "The events of that time are not available: the console does not answer.")
    assert "No events within" not in site.browser.text("#nearby")


def test_new_events_around_a_selected_time_are_shown(site: Site) -> None:
    site.open()
    site.go_to(time.time())
    site.browser.until_text("#title-nearby", "Events around")
    site.world.add_event("guard", "caps relaxed at the selected time")
    site.browser.until_text("#nearby", "caps relaxed at the selected time")


@pytest.mark.nightly
def test_event_during_a_slow_events_request_is_shown(site: Site) -> None:
    """Defect: the answer was from before the event, and the page did not repeat the request."""
    site.open()
    site.browser.run(SLOW_FIRST_ANSWER)
    site.go_to(time.time())
    site.browser.until(lambda: site.browser.run("return window.answered"), "the answer is delayed")
    site.world.add_event("guard", "caps relaxed during the request")
    site.browser.until_text("#nearby", "caps relaxed during the request")


def test_time_before_the_console_started_shows_that_no_data_is_kept(site: Site) -> None:
    site.open()
    start = float(site.console.get("/api/history")["since"])
    site.go_to(start - 1200)
    site.browser.until_text("#moment tbody", "No data for this time: the console's data begin at")
    site.browser.find("#to-now").click()
    site.browser.until_text("#moment tbody", "Mbit/s")


def test_page_counts_caps_too_high_for_the_graph(site: Site) -> None:
    site.open()
    site.world.ceil = 10_000_000_000
    try:
        site.browser.until_text("#not-drawn", "1 cap far above all rates. The table has them.")
    finally:
        site.world.ceil = 5_000_000


def test_cap_label_fits_on_a_phone(site: Site) -> None:
    site.world.shared_classes = 1
    try:
        site.browser.show_as("phone", "light")
        site.open()
        site.browser.until_text("#legend", "shared with other paths")
        site.browser.run(RECORD_LABELS)
        labels = site.browser.until(lambda: site.browser.run("return window.labels"), "a label is drawn")
        assert [text for text, fits in labels if not fits] == []
        site.browser.show_as("desktop", "light")
        site.browser.until(
            lambda: any("shared" in text for text, _ in site.browser.run("return window.labels")),
            "the wide screen shows a long label",
        )
    finally:
        site.world.shared_classes = 0
        site.browser.show_as("desktop", "light")


def test_page_works_with_a_fast_browser_clock(site: Site) -> None:
    """Defect: the page requested the history by the browser's clock, and got none if that was an hour fast."""
    since = float(site.console.get("/api/history")["first"])
    script = site.browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FAST_CLOCK})
    try:
        site.open()
        site.browser.until(lambda: site.graph_value("min") <= since + 1, "all stored data are shown")
        event_time = time.time() - 2
        site.world.add_event("guard", "caps relaxed with a fast clock", time=event_time)
        site.go_to(event_time)
        site.browser.until_text("#nearby", "caps relaxed with a fast clock")
    finally:
        site.browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_selected_time_keeps_its_data_after_it_leaves_the_graph(site: Site) -> None:
    """Defect: ten seconds after a time near the edge was selected, the page said that it had no data for it.

    This is the last test, because it sets the throttler's clock forward.
    """
    site.open()
    site.choose_range(120)
    site.browser.until(lambda: site.graph_value("max") - site.graph_value("min") > 3, "some seconds have values")
    graph = site.browser.find("#graph")

    def is_time_selected() -> bool:
        """Press the keys again until they work: they have no effect before the chosen two minutes are loaded."""
        graph.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        return "At " in site.browser.text("#title-moment")

    site.browser.until(is_time_selected, "a time is selected")

    def has_rates() -> bool:
        """Select the previous second if rates are missing: on a busy machine, the console may have missed seconds."""
        if "Mbit/s" not in site.browser.text("#moment tbody"):
            graph.send_keys(Keys.ARROW_LEFT)
        return "Mbit/s" in site.browser.text("#moment tbody")

    site.browser.until(has_rates, "a time with known rates is selected")
    selected = site.graph_value("now")
    site.world.clock = lambda: time.time() + 180
    site.browser.until(lambda: site.graph_value("min") > selected, "the time has left the graph")
    site.browser.until_text("#moment tbody", "Mbit/s")
    assert "No data for" not in site.browser.text("#moment tbody")
    assert site.graph_value("now") == selected
