"""The page that says how many requests the corpora have."""

from __future__ import annotations

import re
from pathlib import Path

from corpora import conformance, malformed, open_proxy

PAGE = Path(__file__).parents[3] / "docs" / "squid-versions.md"


def test_the_page_has_the_numbers() -> None:
    said = re.search(
        r"(\d+) requests that would reach what they may not, (\d+) malformed ones and (\d+) of conformance",
        PAGE.read_text(),
    )
    assert said is not None
    assert [int(each) for each in said.groups()] == [len(each.ROWS) for each in (open_proxy, malformed, conformance)]
