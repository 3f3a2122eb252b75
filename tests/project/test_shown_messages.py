# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for messages that pages quote: their prefix, and the line numbers of configuration files in them."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((*REPOSITORY.glob("docs/*.md"), REPOSITORY / "README.md"))


def test_each_line_of_a_bench_message_has_the_prefix() -> None:
    """Defect: in a message of several lines only the first line had the prefix."""
    blocks = [block for page in PAGES for block in re.findall(r"^```\S*\n(.*?)^```$", page.read_text(), re.M | re.S)]
    messages = [block.splitlines() for block in blocks if block.startswith("mptcp-bench: ")]
    assert messages
    assert [line for block in messages for line in block if not line.startswith("mptcp-bench: ")] == []


def test_line_numbers_of_the_configuration_on_pages_are_right() -> None:
    """Defect: a page quoted the former number of a line of squid.conf."""
    quoted = [found for page in PAGES for found in re.findall(r"`(conf/[\w./-]+):(\d+): ([^:`]+): ", page.read_text())]
    assert ("conf/squid.conf", "request_entities on") in {(file, text) for file, _, text in quoted}
    for file, number, text in quoted:
        lines = (REPOSITORY / file).read_text().splitlines()
        assert lines.index(text) + 1 == int(number), f"{file}: {text}"
