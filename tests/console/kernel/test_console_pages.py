# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of every page in Chromium with a fake throttler: layout, accessibility, keyboard, error messages, many clients.

If MPTCP_CONSOLE_SCREENSHOTS is set, the tests write screenshots into this directory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser import DEVICES, THEMES, Browser, browser
from console_site import Console, console
from fake_throttler import FakeThrottler, World
from reserved_port import reserved_port
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.kernel
TOKEN = "4f037d87"
PAGES = ["live", "clients", "connections", f"connection/{TOKEN}", "events", "policy", "what-if", "health"]
SETTINGS = "names: names\ngrafana: https://grafana.lan/d/mptcp\n"
READY_TEXTS = {
    "live": ("#legend", "wifi"),
    "clients": ("#clients", "10.77.1.2"),
    "connections": ("#connections", TOKEN),
    f"connection/{TOKEN}": ("#explained", "spare-ethernet"),
    "events": ("#events", "capped at 5 Mbit/s"),
    "policy": ("#rules", "spare-ethernet"),
    "what-if": ("#title-what-if", "What if"),
    "health": ("#health", "Version"),
}
LOGIN_TOKEN = "3f0c1d2e4b5a69788796a5b4c3d2e1f0"


@dataclass
class Site:
    world: World
    throttler: FakeThrottler
    console: Console
    browser: Browser
    directory: Path

    def open(self, page: str) -> None:
        self.browser.open(f"{self.console.url}/#{page}")
        self.browser.until_text(*READY_TEXTS[page])


def add_traffic(world: World, stop: threading.Event) -> None:
    """Every half second, count the bytes of about 5 Mbit/s over ethernet and 27 Mbit/s over wifi, for the graph."""
    step = 0
    while not stop.wait(0.5):
        step += 1
        ethernet = 4_900_000 if world.capped else 17_000_000
        world.carry(ethernet // 16, (27_000_000 + 3_000_000 * ((step * 7) % 5 - 2)) // 16)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, require: object) -> Iterator[Site]:
    require("chromium", "chromedriver")  # type: ignore[operator]
    directory = tmp_path_factory.mktemp("console")
    world = World(counted_at=time.time(), over_budget=True, plain_tcp={"10.77.1.9": 2})
    (directory / "names").write_text("10.77.1.3 laptop\n")
    stop = threading.Event()
    carrier = threading.Thread(target=add_traffic, args=(world, stop), daemon=True)
    with ExitStack() as stack:
        throttler = stack.enter_context(FakeThrottler(directory / "status.sock", world))
        site_console = stack.enter_context(console(directory, throttler.path, reserved_port(), settings=SETTINGS))
        carrier.start()
        stack.callback(stop.set)
        world.add_event("connection", "connection opened from 10.77.1.2:40000", token=TOKEN, client="10.77.1.2")
        world.add_event("subflow", "subflow 10.77.2.2:50000: joined", token=TOKEN, client="10.77.1.2", path="wifi")
        world.add_event(
            "applied", "10.77.1.2:40000 on path ethernet: capped at 5 Mbit/s", token=TOKEN, client="10.77.1.2",
            path="ethernet", rule="spare-ethernet",
        )  # fmt: skip
        yield Site(world, throttler, site_console, stack.enter_context(browser(directory)), directory)


@pytest.fixture(autouse=True)
def _browser_logs_no_warning(site: Site) -> Iterator[None]:
    site.browser.show_as("desktop", "light")
    site.browser.logged_warnings()
    yield
    assert [each for each in site.browser.logged_warnings() if "503" not in each and "ERR_" not in each] == []


def save_screenshot(site: Site, name: str) -> None:
    """Write a screenshot if MPTCP_CONSOLE_SCREENSHOTS is set."""
    if not (directory := os.environ.get("MPTCP_CONSOLE_SCREENSHOTS")):
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    site.browser.screenshot(Path(directory) / f"{name}.png")


@pytest.mark.nightly(except_for=("[live]",))
@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_serious_accessibility_fault(site: Site, page: str) -> None:
    for device in DEVICES:
        for theme in THEMES:
            site.browser.show_as(device, theme)
            # A theme changes only colours: do not load the page again for it, and check only its colours.
            if theme == THEMES[0]:
                site.open(page)
            assert site.browser.faults(of_colour=theme != THEMES[0]) == [], (device, theme)
            width = site.browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert width[0] <= width[1], f"{page} is wider than the screen of a {device}"
            save_screenshot(site, f"{page.partition('/')[0]}-{device}-{theme}")


def test_axe_reports_low_contrast_and_a_missing_label(site: Site) -> None:
    site.open("what-if")
    site.browser.run("document.querySelector('#title-what-if').style.color = 'color-mix(in srgb, Canvas, gray 10%)'")
    site.browser.show_as("desktop", "dark")
    assert any("color-contrast" in fault for fault in site.browser.faults(of_colour=True))
    site.browser.run("document.querySelector('label[for=what-if-text]').remove()")
    site.browser.run("document.querySelector('#what-if-text').removeAttribute('placeholder')")
    assert any("label" in fault for fault in site.browser.faults())


def test_live_page_shows_a_cap_and_its_end(site: Site) -> None:
    site.open("live")
    site.browser.until_text("#legend", "cap 5 Mbit/s")
    site.world.capped = False
    site.browser.until(lambda: "cap" not in site.browser.text("#legend"), "no cap is shown")
    site.browser.until_text("#moment tbody", "none")
    site.world.capped = True
    site.world.add_event(
        "applied", "10.77.1.2:40000 on path ethernet: capped again", token=TOKEN, rule="spare-ethernet"
    )
    site.browser.until_text("#legend", "cap 5 Mbit/s")
    site.browser.until_text("#nearby", "capped again")
    site.browser.until_text("#announcer", "capped again")


def test_dry_run_shows_no_subflow_as_capped(site: Site) -> None:
    site.open("live")
    site.browser.until_text("#legend", "cap 5 Mbit/s")
    assert not site.browser.find("#dry-run").is_displayed()
    site.world.dry_run = True
    try:
        site.browser.until(lambda: site.browser.find("#dry-run").is_displayed(), "the page shows the dry run")
        assert site.browser.text("#dry-run").startswith("Dry run: nothing is capped.")
        site.browser.until(lambda: "cap" not in site.browser.text("#legend"), "no cap is shown")
        site.browser.until_text("#tiles", "Capped subflows0")
        site.open("connections")
        site.browser.until_text("#connections", "5 Mbit/s, 2.5 Mbit/s of it guaranteed (dry run)")
        assert site.browser.run("return document.querySelectorAll('#connections .badge.capped').length") == 0
        assert site.browser.run("return document.querySelector('#connections .rule').textContent") == "spare-ethernet"
        site.open("policy")
        site.browser.until_text("#rules", "3 would be")
    finally:
        site.world.dry_run = False
    site.open("live")
    site.browser.until(lambda: not site.browser.find("#dry-run").is_displayed(), "no dry run is shown")


def test_policy_page_describes_steering_and_budget_rules(site: Site) -> None:
    """Defect: if no rule of the policy had a cap of its own, the page said that the policy has no rules."""
    before = site.world.rule_texts
    site.open("policy")
    site.browser.until_text("#rule-words", "spare-ethernet cap of 5 Mbit/sWhen: path ethernet")
    steering = {"conditions": ["Mon-Fri 08:00-18:00 (UTC)"], "does": ["steering waterfall: wifi, then lte"]}
    try:
        site.world.rule_texts = [
            {"rule": "office", **steering},
            {"rule": "rest", "conditions": [], "does": ["no budget"]},
        ]
        site.browser.until_text(
            "#rule-words", "office steering waterfall: wifi, then lteWhen: Mon-Fri 08:00-18:00 (UTC)"
        )
        site.browser.until_text("#rule-words", "rest no budgetEvery subflow")
        site.browser.until_text("#rules", "No rule has a cap of its own.")
        assert "The policy has no rules" not in site.browser.text("main")
        site.world.rule_texts = []
        site.browser.until_text("#rule-words", "The policy has no rules: nothing is capped.")
    finally:
        site.world.rule_texts = before


def test_arrow_keys_select_a_time_and_show_its_values(site: Site) -> None:
    site.open("live")
    graph = site.browser.find("#graph")
    site.browser.until(
        lambda: site.browser.run("return document.querySelector('#graph canvas') !== null"), "the graph is drawn"
    )
    site.browser.until(
        lambda: int(graph.get_attribute("aria-valuemax") or 0) - int(graph.get_attribute("aria-valuemin") or 0) > 5,
        "some seconds have values",
    )
    graph.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert site.browser.text("#title-moment").startswith("At ")
    value = graph.get_attribute("aria-valuetext") or ""
    assert "ethernet" in value
    assert "wifi" in value
    assert "Mbit/s" in value
    selected, newest = graph.get_attribute("aria-valuenow"), int(graph.get_attribute("aria-valuemax") or 0)
    site.browser.until(lambda: int(graph.get_attribute("aria-valuemax") or 0) >= newest + 2, "the graph continues")
    assert graph.get_attribute("aria-valuenow") == selected
    graph.send_keys(Keys.ESCAPE)
    assert site.browser.text("#title-moment") == "Now"


def test_page_shows_events_around_an_entered_time(site: Site) -> None:
    site.world.add_event("guard", "caps relaxed: the connection received only 1.2 Mbit/s", token=TOKEN)
    event_time = time.time()
    for _ in range(10):
        site.world.add_event("closed", "another thing", token="00000001")
    site.open("live")
    graph = site.browser.find("#graph")
    site.browser.until(
        lambda: int(graph.get_attribute("aria-valuemax") or 0) > event_time + 2, "later values are shown"
    )
    site.browser.run(
        "const field = document.querySelector('#goto-time'); field.value = arguments[0];"
        "document.querySelector('#goto').requestSubmit()",
        time.strftime("%H:%M:%S", time.localtime(event_time)),
    )
    site.browser.until_text("#title-nearby", "Events around")
    site.browser.until_text("#nearby", "caps relaxed: the connection received only 1.2 Mbit/s")
    assert site.browser.find("#to-now").is_displayed()


def test_keyboard_navigation_moves_focus_to_each_view(site: Site) -> None:
    site.open("live")
    site.browser.find("nav a[data-view=connections]").send_keys(Keys.ENTER)
    site.browser.until_text("#connections", TOKEN)
    assert site.browser.run("return document.activeElement.id") == "title-connections"
    link = site.browser.find(f'#connections a[href="#connection/{TOKEN}"]')
    link.send_keys(Keys.ENTER)
    site.browser.until_text("#explained", "it is not between 08:00 and 18:00")
    site.browser.until_text(
        "#explained", "(Europe/Athens)"
    )  # when the other rule stops matching, in the policy's time zone
    assert site.browser.run("return document.activeElement.id") == "title-connection"
    site.browser.until_text("#connection-events", "connection opened from")
    site.browser.driver.back()
    site.browser.until(lambda: site.browser.find("#view-connections").is_displayed(), "the table is shown again")


def test_clients_page_shows_usage_and_used_up_budgets(site: Site) -> None:
    site.open("clients")
    site.browser.until_text("#clients", "10.77.1.3 (laptop)")
    first = "#clients tbody tr:first-child"
    site.browser.until_text(first, "10.77.1.2")
    site.browser.until_text(first, "own: 2.10 GB of 2.00 GB")
    assert "used-up" in (site.browser.find(first).get_attribute("class") or "")
    assert site.browser.text("#plain-clients") == "10.77.1.9: 2 connections"
    site.browser.run(
        "const field = document.querySelector('#clients-sort'); field.value = 'bytes';"
        "field.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    site.browser.until_text(first, "10.77.1.4")
    site.browser.find(f"{first} a").click()
    site.browser.until_text("#connections-count", "1 connection")
    assert site.browser.find("#filter-client").get_attribute("value") == "10.77.1.4"


def test_filter_without_a_match_is_reported_and_can_be_cleared(site: Site) -> None:
    for page, field, message_selector in (
        ("connections", "#filter-client", "#connections-none"),
        ("events", "#events-client", "#events-none"),
    ):
        site.open(page)
        site.browser.find(field).send_keys("10.99.9.9")
        message = site.browser.find(message_selector)
        site.browser.until(message.is_displayed, "the page reports no result")
        save_screenshot(site, f"{page}-none-desktop-light")
        site.browser.find(f"{message_selector} button").click()
        site.browser.until_text(*READY_TEXTS[page])
        assert not message.is_displayed()
    # A name can be used instead of its address.
    site.open("connections")
    site.browser.find("#filter-client").send_keys("laptop")
    site.browser.until_text("#connections-count", "1 connection")


def test_pages_without_traffic_do_not_mention_a_filter(site: Site) -> None:
    site.world.connection_count = 0
    try:
        for page in ("live", "connections", "clients"):
            site.browser.open(f"{site.console.url}/#{page}")
            if page == "connections":
                site.browser.until_text("#connections-none", "There is no Multipath TCP connection")
                assert not site.browser.find("#connections-clear").is_displayed()
            elif page == "clients":
                site.browser.until_text("#clients tbody", "No client")
            else:
                site.browser.until_text("#tiles", "Connections0")
            save_screenshot(site, f"{page}-empty-desktop-light")
    finally:
        site.world.connection_count = 3


def test_page_of_a_closed_connection_shows_its_last_state(site: Site) -> None:
    last = f"{int(TOKEN, 16) + 2:08x}"
    site.browser.open(f"{site.console.url}/#connection/{last}")
    site.browser.until_text("#explained", "spare-ethernet")
    site.world.connection_count = 2
    try:
        site.browser.until_text("#connection-message", "Its last known state")
        assert "spare-ethernet" in site.browser.text("#explained")
        # A page that is opened later does not know the closed connection.
        site.browser.open(f"{site.console.url}/#connection/{last}")
        site.browser.until_text("#connection-message", "There is no such connection now")
        assert site.browser.text("#explained") == ""
    finally:
        site.world.connection_count = 3


def test_budget_restart_time_is_in_the_policys_time_zone(site: Site) -> None:
    driver = site.browser.driver
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
    site.world.budget_restart = 1_798_754_400.0  # midnight in Athens
    try:
        for page, budgets in (("live", "#live-budgets"), ("policy", "#budgets")):
            site.open(page)
            site.browser.until_text(budgets, "restarts 2027-01-01 00:00 (Europe/Athens)")
    finally:
        site.world.budget_restart = None
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_phone_header_keeps_its_height_with_long_texts(site: Site) -> None:
    site.browser.show_as("phone", "light")
    site.open("live")
    before = site.browser.run("return document.querySelector('.bar').offsetHeight")
    site.browser.run("document.querySelector('#logout').hidden = false")
    for words in ("throttler crashed", "live, 12 faults"):
        # The page itself overwrites this text each second, so measure in the same script.
        measured = site.browser.run(
            "document.querySelector('#state-text').textContent = arguments[0];"
            "const bar = document.querySelector('.bar'), views = document.querySelector('.views');"
            "return [bar.offsetHeight, bar.scrollWidth - bar.clientWidth, views.scrollWidth - views.clientWidth]",
            words,
        )
        assert measured == [before, 0, 0], words


def test_table_update_keeps_focus(site: Site) -> None:
    site.open("connections")
    site.browser.run(f"document.querySelector('#connections a[href=\"#connection/{TOKEN}\"]').focus()")
    before = len(site.world.queries)
    # The page repeats its request after it has shown the answer. At the third query it has updated the table twice.
    site.browser.until(
        lambda: [each["query"] for each in site.world.queries[before:]].count("connections") >= 3,
        "the table is updated twice",
    )
    assert site.browser.run("return document.activeElement.textContent") == TOKEN


def test_many_tabs_of_one_browser_are_served(site: Site) -> None:
    driver = site.browser.driver
    site.open("live")
    first = driver.current_window_handle
    try:
        # A browser opens at most six connections to one server.
        for _ in range(7):
            driver.switch_to.new_window("tab")
            site.open("connections")
    finally:
        for tab in driver.window_handles:
            if tab != first:
                driver.switch_to.window(tab)
                driver.close()
        driver.switch_to.window(first)
    # The window that the driver controls is not necessarily the visible one.
    driver.execute_cdp_cmd("Page.bringToFront", {})
    site.browser.until(lambda: site.browser.run("return !document.hidden"), "the first tab is visible")
    # The first tab shows the event when it becomes visible again.
    site.world.add_event(
        "applied", "10.77.1.2:40000 on path ethernet: capped again later", token=TOKEN, rule="spare-ethernet"
    )
    site.browser.until_text("#nearby", "capped again later")
    site.browser.until_text("#state-text", "live")


def test_late_answer_does_not_remove_a_newer_event(site: Site) -> None:
    site.open("live")
    site.browser.until_text("#state-text", "live")
    # Delay an answer from before the event until after the event.
    site.browser.run(
        "const real = window.fetch; window.fetch = async (...all) => { const answer = await real(...all);"
        "if (String(all[0]).includes('events')) await new Promise(go => { window.release = go; }); return answer; };"
        "document.querySelector('[name=range][value=\"3600\"]').click()"
    )
    site.browser.until(lambda: site.browser.run("return window.release !== undefined"), "the answer is delayed")
    site.world.add_event(
        "applied", "10.77.1.2:40000 on path ethernet: capped first", token=TOKEN, rule="spare-ethernet"
    )
    site.browser.until_text("#nearby", "capped first")
    site.browser.run("window.release()")
    # The answer to the next request arrives after the delayed one.
    site.world.add_event(
        "applied", "10.77.1.2:40000 on path ethernet: capped later", token=TOKEN, rule="spare-ethernet"
    )
    site.browser.until_text("#nearby", "capped later")
    assert "capped first" in site.browser.text("#nearby")


def test_chosen_theme_is_kept(site: Site) -> None:
    site.open("live")
    before = site.browser.run("return getComputedStyle(document.body).backgroundColor")
    site.browser.find("#theme").click()
    after = site.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert before != after
    site.open("live")
    assert site.browser.run("return getComputedStyle(document.body).backgroundColor") == after
    site.browser.find("#theme").click()
    site.browser.run("localStorage.clear()")


def test_page_escapes_markup_from_the_throttler(site: Site) -> None:
    site.world.add_event("fault", "<img src=x onerror=\"document.title='broken into'\"> &amp; <b>bold</b>")
    site.open("live")
    site.browser.until_text("#nearby", '<img src=x onerror="document.title')
    assert site.browser.run("return document.querySelector('#nearby img, #nearby b')") is None
    assert "broken" not in site.browser.driver.title


def test_page_reports_a_stopped_or_hung_throttler_and_recovers(site: Site) -> None:
    site.open("live")
    site.throttler.stop()
    site.browser.until_text("#trouble", "a stop removes all caps")
    assert site.browser.find("#trouble").is_displayed()
    site.browser.until_text("#title-moment", "Last known")
    save_screenshot(site, "trouble-desktop-light")
    # A page that is opened now shows the last known state as such.
    for page in ("live", "policy", "connections", "health", "clients"):
        site.browser.open(f"{site.console.url}/#{page}")
        site.browser.until_text("#trouble", "a stop removes all caps")
        if page == "live":
            site.browser.until_text("#tiles", "Connections3")
            assert site.browser.find("#tiles-note").is_displayed()
        if page == "policy":
            site.browser.until_text("#policy-message", "this is the last known policy")
            site.browser.until_text("#rules", "spare-ethernet")
        for device in DEVICES if os.environ.get("MPTCP_CONSOLE_SCREENSHOTS") else ():
            site.browser.show_as(device, "light")
            save_screenshot(site, f"down-{page}-{device}")
    site.browser.show_as("desktop", "light")
    site.browser.open(f"{site.console.url}/#live")
    site.world.pid += 1
    site.world.events.clear()
    site.throttler.start()
    site.browser.until(lambda: not site.browser.find("#trouble").is_displayed(), "no error is shown")
    site.browser.until_text("#nearby", "the throttler was restarted")
    site.throttler.stop(is_crash=True)
    site.browser.until_text("#trouble", "Existing caps stay")
    site.throttler.start()
    site.browser.until(lambda: not site.browser.find("#trouble").is_displayed(), "no error is shown")
    site.throttler.hangs = True
    site.browser.until_text("#trouble", "The throttler does not answer within 3 s")
    site.throttler.hangs = False
    site.browser.until(lambda: not site.browser.find("#trouble").is_displayed(), "no error is shown")


@pytest.mark.nightly
def test_page_reports_a_hung_console_and_recovers(site: Site) -> None:
    site.open("live")
    site.console.process.send_signal(signal.SIGSTOP)
    try:
        site.browser.until_text("#trouble", "The console has not answered since")
    finally:
        site.console.process.send_signal(signal.SIGCONT)
    site.browser.until(lambda: not site.browser.find("#trouble").is_displayed(), "no error is shown")
    site.browser.until_text("#state-text", "live")


def test_page_stays_usable_with_ten_thousand_connections(site: Site) -> None:
    site.world.connection_count = 10_000
    try:
        start = time.monotonic()
        site.open("connections")
        site.browser.until_text("#connections-count", "10,000 connections")
        seconds = time.monotonic() - start
        assert site.browser.run("return document.querySelectorAll('#connections tbody').length") == 50
        site.browser.find("#following").click()
        site.browser.until_text("#page-text", "51\u2013100 of 10,000")
        site.browser.run(
            "const field = document.querySelector('#filter-client'); field.value = '10.77.1.77';"
            "field.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        site.browser.until_text("#connections-count", "40 connections")
        drawing = site.browser.run(
            "const from = performance.now(); document.querySelector('#connections').getBoundingClientRect();"
            "return performance.now() - from"
        )
        status = Path(f"/proc/{site.console.process.pid}/status").read_text()
        memory = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
        print(
            f"10,000 connections: table in {seconds:.1f} s, layout {drawing:.1f} ms, console {int(memory) // 1024} MB"
        )
    finally:
        site.world.connection_count = 3


def test_console_with_a_token_requires_login(site: Site) -> None:
    (site.directory / "token").write_text(LOGIN_TOKEN)
    (site.directory / "token").chmod(0o600)
    with console(site.directory, site.throttler.path, reserved_port(), settings="token_file: token\n") as protected:
        site.browser.open(f"{protected.url}/")
        assert site.browser.driver.current_url.endswith("/login")
        for device in DEVICES:
            for theme in THEMES:
                site.browser.show_as(device, theme)
                assert site.browser.faults(of_colour=theme != THEMES[0]) == []
                save_screenshot(site, f"login-{device}-{theme}")
        site.browser.find("#token").send_keys("something else", Keys.ENTER)
        site.browser.until(lambda: site.browser.find("#refused").is_displayed(), "the page shows the refusal")
        site.browser.find("#token").send_keys(LOGIN_TOKEN, Keys.ENTER)
        site.browser.until_text("#state-text", "live")
        assert LOGIN_TOKEN not in site.browser.driver.current_url
        site.browser.until(lambda: site.browser.find("#logout").is_displayed(), "logout is shown")
        site.browser.find("#logout button").click()
        site.browser.until(lambda: site.browser.driver.current_url.endswith("/login"), "the login form is shown again")
        site.browser.open("about:blank")
    assert LOGIN_TOKEN not in protected.log.read_text()
