# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with real Chromium and the proxy: a site of many files, the changing check page, and accessible pages."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe
import pytest
from persistent_connection import CHECK
from portal_browser import SCHEMES, SIZES, chromium, console_errors, is_wider_than, screenshot, set_appearance
from portal_site import LTE_CAPPED, PAGE_PORT, PATHS, VOLUME, PortalSite
from qr_reader import qr_texts
from selenium.webdriver import Remote

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, start_origin, wait_until

pytestmark = pytest.mark.kernel
TLS_PORT = 443
PICTURE_COUNT = 30
PICTURE = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
"""A GIF of one pixel. The testbed's Apache sends no types; browsers recognize a GIF by its first bytes."""
DATA = random.Random(8684).randbytes(6_000_000)
"""Data that the site's script loads: enough to use both paths."""
SCRIPT = """\
fetch("data.bin").then((answer) => answer.arrayBuffer()).then((data) => {
  document.title = "The script loaded " + new Uint8Array(data).reduce((sum, each) => (sum * 31 + each) % 1e9, 0);
});
"""
CAP_AND_VOLUME = LTE_CAPPED + (VOLUME % "50 MB").removeprefix("rules:\n").replace("name: month", "name: contract")
SITE = """\
<!doctype html><html lang="en"><title>Many files</title><link rel="stylesheet" href="style.css">
<h1>Many files</h1>{pictures}<script src="script.js"></script></html>
"""


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> PortalSite:
    require("htb", "bpf-pacing")
    site = PortalSite.create(make_module_testbed())
    site.start_portal()
    site.wait_for_all_workers()
    return site


@pytest.fixture(scope="module")
def origin(site: PortalSite) -> Origin:
    origin = start_origin(site.testbed["origin"], {"big": 20_000_000}, ports=(80,), tls_port=TLS_PORT)
    pictures = "".join(f'<img src="picture.gif?{n}" alt="">' for n in range(PICTURE_COUNT))
    files = {
        "site.html": SITE.format(pictures=pictures).encode(),
        "style.css": b"h1 { color: rgb(1, 2, 3) }",
        "script.js": SCRIPT.encode(),
        "data.bin": DATA,
        "picture.gif": PICTURE,
    }
    for folder in ("htdocs", "htdocs/direct"):
        (origin.directory / folder).mkdir(exist_ok=True)
        for name, content in files.items():
            (origin.directory / folder / name).write_bytes(content)
    return origin


def proxy_flag(site: PortalSite) -> str:
    return f"--proxy-server=http://{site.node.service_address()}:3128"


def pac_flag(site: PortalSite) -> str:
    return f"--proxy-pac-url=http://{site.node.service_address()}:{PAGE_PORT}/proxy.pac"


def checksum() -> int:
    total = 0
    for each in DATA:
        total = (total * 31 + each) % 10**9
    return total


def is_loaded(browser: Remote) -> bool:
    """Return whether all files of the site were loaded and had their effect."""
    wait_until(lambda: "loaded" in browser.title, "the script has run", timeout=90)
    widths = browser.execute_script("return [...document.images].map(each => each.naturalWidth)")
    colour = browser.execute_script("return getComputedStyle(document.querySelector('h1')).color")
    return bool(
        (browser.title, widths, colour) == (f"The script loaded {checksum()}", [1] * PICTURE_COUNT, "rgb(1, 2, 3)")
    )


def qr_code_texts(browser: Remote) -> list[str]:
    """Return the text of the page's QR code as the browser paints it."""
    width = 456
    grey = browser.execute_script(
        """
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = arguments[0];
        const context = canvas.getContext("2d");
        context.drawImage(document.querySelector("figure img"), 0, 0, canvas.width, canvas.height);
        const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
        return Array.from({length: data.length / 4}, (_, index) => data[4 * index]);
        """,
        width,
    )
    return qr_texts(bytes(grey), width)


def download(site: PortalSite, origin: Origin) -> None:
    """Download 20 MB, which count towards the client's volumes, on a separate connection."""
    command = ["mptcpize", "run", "curl", "-s", "-o", "/dev/null", "-x", site.proxy.url(), origin.url("big")]
    site.client.run(command, timeout=90)


def access_log(site: PortalSite) -> str:
    """Return Squid's access log."""
    return (site.proxy.logs / "access.log").read_text()


def text_of(browser: Remote, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText || ''", selector))


def wait_for_words(browser: Remote, words: str) -> None:
    """Wait until the check page, through its own script, shows *words*."""
    try:
        wait_until(lambda: words in text_of(browser, "#answer"), f"the page shows {words!r}", timeout=90)
    except Exception as error:
        raise AssertionError(f"{error}; it shows {text_of(browser, 'body')!r}") from None


def save_screenshots(browser: Remote, name: str) -> None:
    """If MPTCP_SCREENSHOTS names a directory, write screenshots of the page into it, in all sizes and schemes."""
    if not (directory := os.environ.get("MPTCP_SCREENSHOTS")):
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        for scheme in SCHEMES:
            set_appearance(browser, size, scheme)
            screenshot(browser, Path(directory) / f"{name}-{size}-{scheme}.png")


def assert_accessible(browser: Remote, *statuses: int) -> None:
    """Fail if the page is not accessible: colours, names, order, width.

    *statuses*: HTTP errors that answers may have.
    """
    for size in SIZES:
        for scheme in SCHEMES:
            set_appearance(browser, size, scheme)
            # A scheme changes only colours.
            assert axe.faults(browser, of_colour=scheme != SCHEMES[0]) == [], (size, scheme)
            assert not is_wider_than(browser, size), (size, scheme)
    expected = [f"status of {each}" for each in statuses]
    assert [error for error in console_errors(browser) if not any(each in error for each in expected)] == []


@pytest.mark.nightly(except_for=("https",))
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_site_of_many_files_loads(site: PortalSite, origin: Origin, scheme: str) -> None:
    host = origin.host.service_address()
    before, joined = site.client.counters(), site.node.mib()["MPTcpExtMPJoinAckRx"]
    with chromium(site, proxy_flag(site)) as browser:
        browser.get(f"{scheme}://{host}/site.html")
        assert is_loaded(browser)
    after = site.client.counters()
    received = {each: after[each].received - before[each].received for each in ("eth0", "wlan0")}
    assert min(received.values()) > len(DATA) / 20, received
    assert site.node.mib()["MPTcpExtMPJoinAckRx"] > joined

    def log_is_complete() -> bool:
        """Return whether the log is complete: Squid logs a tunnel only when it is closed."""
        log = access_log(site)
        return log.count("picture.gif") >= PICTURE_COUNT if scheme == "http" else f"CONNECT {host}:443" in log

    wait_until(log_is_complete, "Squid has logged the request")


def test_chromium_follows_proxy_pac(site: PortalSite, origin: Origin) -> None:
    """Chromium connects directly to the origin, whose address is private, and uses the proxy for the check page."""
    with chromium(site, pac_flag(site)) as browser:
        browser.get(origin.url("direct/site.html"))
        assert is_loaded(browser)
        browser.get(CHECK)
        wait_for_words(browser, "Multipath TCP")
    assert "direct" not in access_log(site)


def test_check_page_follows_changes_of_paths_and_caps(site: PortalSite, origin: Origin) -> None:
    second = next(each for each in site.testbed.topology.node("client").endpoints if each.address == "10.77.2.2")
    add = ["ip", "mptcp", "endpoint", "add", second.address, "dev", second.device, "id", str(second.id), "subflow"]
    site.client.run(["ip", "mptcp", "endpoint", "delete", "id", str(second.id)])
    try:
        with site.run_throttler() as throttler, chromium(site, pac_flag(site)) as browser:
            browser.get(CHECK)
            wait_for_words(browser, "Multipath TCP with 1 subflow")
            site.client.run(add)
            wait_for_words(browser, "Multipath TCP with 2 subflows: Wi-Fi and LTE")
            site.reload(throttler, LTE_CAPPED)
            wait_for_words(browser, "LTE is limited to 5 Mbit/s by rule evening.")
            site.reload(throttler, CAP_AND_VOLUME)
            wait_for_words(browser, "of 50 MB left")
            download(site, origin)

            def shows_smaller_volume() -> bool:
                text = text_of(browser, "#answer")
                volume = re.search(r"contract, Wi-Fi: ([\d.]+)", text)
                return bool(volume and float(volume[1]) < 49 and "LTE is limited to 5 Mbit/s by rule evening." in text)

            wait_until(shows_smaller_volume, "the page shows a smaller volume, and the cap", timeout=90)
            assert_accessible(browser)
            save_screenshots(browser, "check-multipath")
            site.reload(throttler, PATHS + VOLUME % "5 MB")
            wait_for_words(browser, "of 5 MB left")
            assert not browser.execute_script("return document.getElementById('volumes').hidden")
            download(site, origin)
            wait_for_words(browser, "all of 5 MB used up")
            wait_for_words(browser, "is limited to 8 Mbit/s by rule month.")
            assert_accessible(browser)
            save_screenshots(browser, "check-used-up")
    finally:
        site.client.run(add, check=False)


def test_check_page_shows_plain_tcp(site: PortalSite) -> None:
    """The throttler knows no subflows of a connection without MPTCP, whatever caps apply."""
    with site.run_throttler(LTE_CAPPED), chromium(site, proxy_flag(site), mptcp=False) as browser:
        browser.get(CHECK)
        wait_for_words(browser, "Plain TCP over one path")
        assert "held" not in text_of(browser, "#answer")
        assert "Which systems support Multipath TCP" in text_of(browser, "#systems")
        assert_accessible(browser)
        save_screenshots(browser, "check-plain")
        # Defect: the link led to an address of the proxy's host, to which the proxy denies access.
        browser.execute_script("document.querySelector('#systems a').click()")
        wait_until(lambda: browser.current_url == f"{CHECK}use/", "the link is followed", timeout=90)
        wait_until(lambda: "Set it up" in text_of(browser, "main"), "the page shows the steps", timeout=90)
        assert qr_code_texts(browser) == [f"http://{site.node.service_address()}:{PAGE_PORT}/"]
        assert "Get the profile" in str(browser.execute_script("return document.body.textContent"))
        assert_accessible(browser)


def test_check_page_reports_a_stopped_throttler(site: PortalSite) -> None:
    """The check page has status 200, its JSON 503."""
    with chromium(site, proxy_flag(site)) as browser:
        with site.run_throttler(LTE_CAPPED):
            browser.get(CHECK)
            wait_for_words(browser, "Wi-Fi and LTE")
        state = "return document.getElementById('answer').dataset.throttler"
        wait_until(
            lambda: browser.execute_script(state) == "absent", "the page shows that the throttler is absent", timeout=90
        )
        assert browser.execute_script("return document.getElementById('paths').hidden")
        assert_accessible(browser, 503)
        save_screenshots(browser, "check-without-throttler")


def test_squids_error_pages_are_accessible(site: PortalSite) -> None:
    with chromium(site, proxy_flag(site)) as browser:
        page = f"{site.node.service_address()}:{PAGE_PORT}"
        for kind, url in {"refused": page, "no-answer": "10.77.9.2:2999", "no-address": "a.invalid"}.items():
            browser.get(f"http://{url}/")
            assert browser.execute_script("return document.querySelector('main').dataset.proxyPage") == kind
            assert_accessible(browser, 403, 503)
            save_screenshots(browser, f"squid-{kind}")


FAKE_FETCH = """
window.answers = 0;
window.fetch = async () => {
  window.answers += 1;
  return Response.json(window.report);
};
"""
"""Replacement for the portal's answers, so that a test can choose the report that the page gets."""
WATCH_CHANGES = """
window.written = [];
new MutationObserver((changes) => {
  for (const each of changes) window.written.push((each.target.parentElement ?? each.target).closest("[id]").id);
}).observe(document.querySelector("main"), {childList: true, characterData: true, subtree: true});
"""


def report(left: str, throttler: str = "answered", transport: str = "multipath") -> dict[str, object]:
    volume: dict[str, object] = {"title": "month", "left": 40, "volume": 100, "low": 10, "getting_low": 25}
    volume["figure"] = f"{left} left"
    path = {"path": "LTE", "address": "10.77.2.2", "share": 100, "details": f"{left} carried, limit 5 Mbit/s"}
    has_answered = throttler == "answered"
    return {
        "transport": transport,
        "throttler": throttler,
        "headline": "Multipath TCP with 2 subflows" if transport == "multipath" else "Plain TCP over one path",
        "lines": ["LTE is limited to 5 Mbit/s.", f"month: {left} left."]
        if has_answered
        else ["Too many requests at the moment"],
        "advice": [],
        "subflows": [path] if has_answered else [],
        "budgets": [volume] if has_answered else [],
    }


def show_report(browser: Remote, report: dict[str, object]) -> None:
    """Let the page receive *report* twice: when it receives the second report, it has processed the first."""
    browser.execute_script("window.report = arguments[0]; window.answers = 0", report)
    wait_until(
        lambda: browser.execute_script("return window.answers") > 1, "the page has requested its data", timeout=90
    )


@pytest.mark.nightly
def test_check_page_updates_only_changed_parts(site: PortalSite) -> None:
    """Defects: the page rewrote all lines if one line changed, so that screen readers read out all lines. And when the
    portal was too busy to answer, names, caps and volumes disappeared from the page until a later answer."""
    with chromium(site, proxy_flag(site)) as browser:
        browser.get(CHECK)
        browser.execute_script(FAKE_FETCH)
        show_report(browser, report("40 MB"))
        browser.execute_script("window.lines = [...document.querySelectorAll('#lines li')]" + ";" + WATCH_CHANGES)
        show_report(browser, report("30 MB"))
        assert "month: 30 MB left." in text_of(browser, "#lines")
        assert set(browser.execute_script("return window.written")) == {"lines", "subflows", "budgets"}
        assert browser.execute_script("return window.lines.every((each) => each.isConnected)")
        assert browser.execute_script("return document.querySelectorAll('[aria-live]').length") == 1

        show_report(browser, report("", "busy"))
        assert "month: 30 MB left." in text_of(browser, "#lines")
        assert "LTE" in text_of(browser, "#subflows")
        assert "Too many requests at the moment: this is the previous state." in text_of(browser, "#state")
        assert not browser.execute_script("return document.getElementById('volumes').hidden")
        show_report(browser, report("20 MB"))
        assert "month: 20 MB left." in text_of(browser, "#lines")
        assert "Too many" not in text_of(browser, "#state")
        # The page must still show that the client now uses another connection.
        show_report(browser, report("", "busy", "tcp"))
        assert text_of(browser, "#headline") == "Plain TCP over one path"
        assert text_of(browser, "#lines") == "Too many requests at the moment"
        assert browser.execute_script("return document.getElementById('volumes').hidden")


def test_check_page_reloads_without_scripts(site: PortalSite) -> None:
    with chromium(site, proxy_flag(site), "--blink-settings=scriptEnabled=false") as browser:
        browser.get(CHECK)
        log = site.proxy.logs / "access.log"

        def load_count() -> int:
            return log.read_text().count("GET http://check.mptcp.internal/ ")

        initial_count = load_count()
        wait_until(lambda: load_count() > initial_count, "the page is loaded again", timeout=60)


def test_page_of_a_stopped_portal_reloads_until_it_runs(site: PortalSite) -> None:
    assert site.portal is not None
    site.portal.stop()
    try:
        with chromium(site, proxy_flag(site)) as browser:
            browser.get(CHECK)
            assert text_of(browser, "h1") == "The check page does not answer"
            assert_accessible(browser, 503, 404)  # the icon is missing, too
            save_screenshots(browser, "check-missing")
            site.start_portal()
            wait_until(lambda: "Multipath TCP" in text_of(browser, "#answer"), "the check page is shown", timeout=90)
    finally:
        site.portal.stop()
        site.start_portal()


def test_onboarding_page_is_accessible_and_shows_its_qr_code(site: PortalSite) -> None:
    with chromium(site, "--no-proxy-server", mptcp=False) as browser:
        browser.get(f"http://{site.node.service_address()}:{PAGE_PORT}/")
        assert qr_code_texts(browser) == [f"http://{site.node.service_address()}:{PAGE_PORT}/"]
        assert_accessible(browser)
        save_screenshots(browser, "onboarding")
        browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert_accessible(browser)
        save_screenshots(browser, "onboarding-open")
