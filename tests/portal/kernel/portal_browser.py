# SPDX-License-Identifier: GPL-2.0-or-later
"""Headless Chromium with Debian's chromedriver in a client's namespace, with the proxy in its settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from portal_site import PortalSite
from selenium.webdriver import ChromeOptions, Remote

from mptcp_lab.testbed.features import fails_when_missing
from mptcp_lab.testbed.services import accepts, mptcp_command, wait_until

DRIVER_PORT = 9515
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
    "--disable-default-apps", "--disable-extensions", "--ignore-certificate-errors", "--hide-scrollbars",
)  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")


@contextmanager
def chromium(site: PortalSite, *proxy: str, mptcp: bool = True) -> Iterator[Remote]:
    """Yield a browser; *proxy* are flags that set its proxy.

    The calling thread is in the client's namespace while the block runs.
    """
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            if fails_when_missing():
                pytest.fail(f"needs {program}, and CI may not skip", pytrace=False)
            pytest.skip(f"NOT TESTED, needs {program}: apt install chromium chromium-driver")
    client = site.client
    command = ["chromedriver", f"--port={DRIVER_PORT}"]
    home = client.directory / "browser"
    home.mkdir(exist_ok=True)
    # Its files are removed with the testbed.
    environment = {"HOME": str(home), "TMPDIR": str(home)}
    driver = client.popen(mptcp_command(command) if mptcp else command, name="chromedriver", env=environment)
    try:
        wait_until(
            lambda: accepts(client, "127.0.0.1", DRIVER_PORT), "chromedriver answers", process=driver, timeout=60
        )
        options = ChromeOptions()
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, *proxy):
            options.add_argument(flag)
        with client.entered():
            browser = Remote(f"http://127.0.0.1:{DRIVER_PORT}", options=options)
            browser.set_page_load_timeout(90)
            try:
                yield browser
            finally:
                browser.quit()
    finally:
        driver.kill_tree()


def set_appearance(browser: Remote, size: str, scheme: str) -> None:
    """Lay out the page for a window of *size* and the colour scheme *scheme*."""
    width, height = SIZES[size]
    device = {
        "width": width,
        "height": height,
        "deviceScaleFactor": 2 if size == "phone" else 1,
        "mobile": size == "phone",
    }
    _devtools(browser, "Emulation.setDeviceMetricsOverride", device)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    _devtools(browser, "Emulation.setEmulatedMedia", media)


def screenshot(browser: Remote, path: Path) -> None:
    """Write a screenshot of the whole page to *path*, including the part below the window."""
    import base64

    answer = _devtools(browser, "Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
    path.write_bytes(base64.b64decode(answer["data"]))


def console_errors(browser: Remote) -> list[str]:
    """Return Chromium's errors: violations of the page's security policy, and files that could not be loaded."""
    entries = _execute(browser, "se/log", {"type": "browser"})
    return [each["message"] for each in entries if each["level"] == "SEVERE"]


def _devtools(browser: Remote, command: str, arguments: dict[str, Any]) -> Any:
    return _execute(browser, "goog/cdp/execute", {"cmd": command, "params": arguments})


def _execute(browser: Remote, path: str, arguments: dict[str, Any]) -> Any:
    """Send a command that only chromedriver has."""
    executor: Any = browser.command_executor
    executor.add_command(path, "POST", f"/session/$sessionId/{path}")
    return browser.execute(path, arguments)["value"]


def is_wider_than(browser: Remote, size: str) -> bool:
    """Return whether the page must be scrolled sideways in a window of *size*."""
    return int(browser.execute_script("return document.documentElement.scrollWidth")) > SIZES[size][0]
