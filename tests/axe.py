# SPDX-License-Identifier: GPL-2.0-or-later
"""axe-core in a page of a browser: what keeps people from using it."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver import Remote

SOURCE = Path(__file__).parent / "console" / "vendor" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""What axe-core looks at by itself and a choice of light or dark can change."""
RUN = "axe.run(document, arguments[0]).then(arguments[1], error => arguments[1](String(error)))"


def faults(driver: Remote, *, of_colour: bool = False) -> list[str]:
    """Return what is serious or critical in the page, a line for each element; *of_colour*: by those rules alone."""
    if not driver.execute_script("return typeof axe === 'object'"):
        driver.execute_script(SOURCE.read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": COLOUR_RULES} if of_colour else {})}
    found = driver.execute_async_script(RUN, options)
    assert isinstance(found, dict), found
    assert len(found["passes"]) > (0 if of_colour else 10), "axe looked at nothing"
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
