# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs axe-core in a web page to find accessibility faults."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver import Remote

SOURCE = Path(__file__).parent / "console" / "vendor" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The default rules of axe-core whose result depends on a light or dark theme."""
RUN_AXE = "axe.run(document, arguments[0]).then(arguments[1], error => arguments[1](String(error)))"


def faults(driver: Remote, *, of_colour: bool = False) -> list[str]:
    """Return the serious and critical faults of the page, a line for each element.

    With *of_colour*, axe-core checks only the colour rules.
    """
    if not driver.execute_script("return typeof axe === 'object'"):
        driver.execute_script(SOURCE.read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": COLOUR_RULES} if of_colour else {})}
    found = driver.execute_async_script(RUN_AXE, options)
    assert isinstance(found, dict), found
    assert len(found["passes"]) > (0 if of_colour else 10), "axe checked no element"
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
