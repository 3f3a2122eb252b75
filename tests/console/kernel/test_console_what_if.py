# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the pages of the current policy and of what-if queries, in real Chromium with a fake throttler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browsed_console import console_in_browser
from browser import Browser
from console_site import Console
from fake_throttler import POLICY_TEXT, World

pytestmark = pytest.mark.kernel
Site = tuple[World, Console, Browser]
RESULT = "#what-if-result"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, require: object) -> Iterator[Site]:
    require("chromium", "chromedriver")  # type: ignore[operator]
    with console_in_browser(tmp_path_factory.mktemp("console")) as parts:
        yield parts.world, parts.console, parts.browser


@contextmanager
def dry_run(world: World) -> Iterator[None]:
    world.dry_run = True
    try:
        yield
    finally:
        world.dry_run = False


def submit_policy(site: Site, policy: str) -> Browser:
    """Open the what-if page, enter *policy* and submit it."""
    _, console, browser = site
    browser.open(f"{console.url}/#what-if")
    browser.find("#what-if-text").send_keys(policy)
    browser.find("#what-if button.primary").click()
    return browser


def test_what_if_refuses_a_wrong_policy_and_evaluates_a_right_one(site: Site) -> None:
    browser = submit_policy(site, "version: 1")
    browser.until_text(RESULT, "it would be refused:policy:1: rules: is required")
    browser.find("#what-if-text").send_keys("\nrules: []")
    browser.find("#what-if button.primary").click()
    browser.until_text(RESULT, "Capped subflows: 3 now, 6 with this policy.")


def test_what_if_lists_changed_and_still_capped_subflows_by_direction(site: Site) -> None:
    """Defect: the table did not distinguish upload and download, and subflows that stay capped were missing."""
    browser = submit_policy(site, "rules: []")
    browser.until_text(RESULT, "2 subflows would be treated differently")
    found = browser.text(RESULT)
    assert "ConnectionClient's endPathDirectionNowThen" in found
    for direction in ("down", "up"):
        assert f"wifi{direction}not cappedcapped at 1 Mbit/s by rule new" in found
    assert "3 subflows would be capped and treated as now; the first 1" in found
    assert "ethernetdowncapped at 5 Mbit/s by rule spare-ethernet" in found


def test_what_if_marks_current_caps_as_dry_run(site: Site) -> None:
    """Defect: for the current policy without its dry-run line, the page said that nothing would change."""
    with dry_run(site[0]):
        # Use a new text, because the answer to a repeated query would come from a cache.
        browser = submit_policy(site, "rules: [] # no dry run")
        browser.until_text(RESULT, "Capped subflows: 0 now (dry run), 6 with this policy.")


def test_what_if_starts_from_the_policy_in_force(site: Site) -> None:
    _, console, browser = site
    browser.open(f"{console.url}/#what-if")
    text, start = browser.find("#what-if-text"), browser.find("#what-if-start")

    def entered_text() -> str:
        return str(text.get_property("value"))

    start.click()
    browser.until(lambda: entered_text() == POLICY_TEXT, "the text of the policy in force is shown")
    browser.until_text(RESULT, "from /etc/mptcp-throttler/policy.yaml.")
    text.send_keys("# mine")
    # The page replaces the user's text only after a confirmation.
    start.click()
    browser.driver.switch_to.alert.dismiss()
    assert entered_text() == f"{POLICY_TEXT}# mine"
    start.click()
    browser.driver.switch_to.alert.accept()
    browser.until(lambda: entered_text() == POLICY_TEXT, "the text is replaced")


def test_policy_page_shows_the_conditions_of_each_path(site: Site) -> None:
    """Defect: the page named the policy's paths, but not the conditions for a subflow to belong to them."""
    _, console, browser = site
    browser.open(f"{console.url}/#policy")
    browser.until_text("#path-words", "ethernet interface wan0; clients 10.77.1.0/24, fd77:1::/64")
    browser.until_text("#path-words", "wifi clients 10.77.2.0/24")
