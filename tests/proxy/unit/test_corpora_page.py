"""The page that says how many requests the corpora have."""

from __future__ import annotations

import re
from pathlib import Path

from corpora import conformance, malformed, open_proxy
from corpora.every import CORPORA
from corpora.versions import DIFFERENT, said_otherwise

PAGE = Path(__file__).parents[3] / "docs" / "squid-versions.md"


def test_the_page_has_the_numbers() -> None:
    said = re.search(
        r"(\d+) requests that would reach what they may not, (\d+) malformed ones and (\d+) of conformance",
        PAGE.read_text(),
    )
    assert said is not None
    assert [int(each) for each in said.groups()] == [len(each.ROWS) for each in (open_proxy, malformed, conformance)]


def test_what_versions_do_differently_is_of_rows_that_are_there_and_of_what_they_may_get() -> None:
    rows = {row.id: row for each in CORPORA.values() for row in each}
    assert {name for name, statuses in DIFFERENT.items() if not set(statuses) <= rows[name].status} == set()
    assert f"In {len(DIFFERENT)} rows the two differ" in PAGE.read_text()


def test_a_row_that_changed_is_found() -> None:
    assert said_otherwise("trixie", {"identity": 200, "sound": 200, "two-lengths": 400}) == {"identity": 200}
    assert said_otherwise("bookworm", {"identity": 200}) == {}
