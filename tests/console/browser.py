# SPDX-License-Identifier: GPL-2.0-or-later
"""Drives Debian's headless Chromium through its chromedriver, in any network namespace; axe-core checks its pages."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import axe
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps",
)  # fmt: skip
DEVICES = {"desktop": (1280, 860, 1, False), "phone": (390, 844, 2, True)}
THEMES = ("light", "dark")
Theme = Literal["light", "dark"]


class Browser:
    """One running Chromium."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load *url* completely, whatever page is open."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of an element, visible or not; empty if it does not exist."""
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(self.driver.execute_script(script, selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any], description: str, timeout: float = 60.0) -> Any:
        """Poll *condition* until it is true, and return its value. The timeout error contains the page's content."""

        def current_value() -> Any:
            # The page may have replaced an element after it was found.
            with suppress(StaleElementReferenceException):
                return condition()
            return None

        deadline = time.monotonic() + timeout
        while not (found := current_value()):
            if time.monotonic() > deadline:
                visibility = self.run("return document.visibilityState")
                page = f"{visibility}, {self.text('#state-text')!r}: {self.text('main')[:2000]}"
                raise AssertionError(f"{description}: not within {timeout:g} s; the page is {page}")
            time.sleep(0.05)
        return found

    def until_text(self, selector: str, text: str, timeout: float = 60.0) -> None:
        self.until(lambda: text in self.text(selector), f"{selector} has {text!r}", timeout)

    def show_as(self, device: str, theme: str) -> None:
        """Emulate the screen of *device* and a light or dark *theme*."""
        width, height, scale, mobile = DEVICES[device]
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._command("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the page, of at most 3000 pixels in height."""
        height = self.run("return Math.max(document.documentElement.scrollHeight, innerHeight)")
        width = self.run("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 3000), "scale": 1}
        shot = self._command("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        file.write_bytes(base64.b64decode(shot["data"]))

    def faults(self, *, of_colour: bool = False) -> list[str]:
        """Return the serious and critical faults that axe-core finds; *of_colour*: only with its colour rules."""
        return axe.faults(self.driver, of_colour=of_colour)

    def logged_warnings(self) -> list[str]:
        """Return warnings and errors that the browser has logged since the last call."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [json.dumps(entry) for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)


@contextmanager
def browser(
    directory: Path,
    prefix: Sequence[str] = (),
    enter: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Browser]:
    """Start Chromium with a new profile; *prefix* runs it in a namespace, and *enter* moves this thread there."""
    home = directory / "browser"
    home.mkdir()
    options = Options()
    # If both programs are given, selenium does not download any.
    options.binary_location = _program("chromium")
    for flag in (*FLAGS, f"--user-data-dir={home / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    starter = home / "chromedriver"
    starter.write_text(f'#!/bin/sh\nexec {shlex.join([*prefix, _program("chromedriver")])} "$@"\n')
    starter.chmod(0o755)
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "SE_OFFLINE": "true"}
    with enter():
        driver = webdriver.Chrome(options, Service(str(starter), env=environment))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"the program {name} is not installed"
    return found
