# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that docs/troubleshooting.md lists every warning and error of the daemons, and no others."""

from __future__ import annotations

import re

from logged_messages import HOLE, PACKAGES, REPOSITORY, messages

PAGE = (REPOSITORY / "docs/troubleshooting.md").read_text()
MAX_MESSAGES_PER_TEXT = 14
"""Maximum number of messages that one text on the page may cover."""


def patterns() -> dict[str, re.Pattern[str]]:
    """Return the page's messages: code font in the first column of tables, and in the list of operations."""
    section = PAGE.partition("\n## Messages in the journal\n")[2]
    operations, _, tables = section.partition("\n| reason |")
    cells = [operations, *(line.split("|")[1] for line in tables.splitlines() if line.startswith("| "))]
    texts = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return {text: re.compile(".*".join(map(re.escape, text.split(HOLE))), re.DOTALL) for text in texts if text != HOLE}


def test_messages_of_each_daemon_are_collected() -> None:
    assert {place.partition("/")[0] for place in messages().values()} == set(PACKAGES)
    collected = messages()
    for text in (
        "… segments were dropped by the capture buffer",  # from a format string
        "Squid does not listen on port …; the reason is in …",  # from another method
        "the keeper has ended, without which joins fail if the daemon is killed",  # from a list
        "cannot look up parent …: …",  # from a local name
        "…: …; the previous names stay in use",  # from a callback
        "not a regular file; remove it",  # from an exception
    ):
        assert text in collected


def test_each_warning_and_error_is_on_the_page() -> None:
    documented = patterns().values()
    missing = {text: place for text, place in messages().items() if not any(each.match(text) for each in documented)}
    assert missing == {}


def test_each_text_on_the_page_covers_few_existing_messages() -> None:
    found = {text: sum(1 for each in messages() if pattern.match(each)) for text, pattern in patterns().items()}
    assert {text: count for text, count in found.items() if not 0 < count <= MAX_MESSAGES_PER_TEXT} == {}
