# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that docs/policy.md and docs/status.md describe every key of the schemas."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from key_tables import PAGES, sections, update_tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_key_tables_in_the_pages_match_the_schemas(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert update_tables(text) == text, "update the tables: python tests/throttler/key_tables.py"


def test_pages_contain_every_section() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- keys: (\S+) -->", text)) == sorted([*sections(), "queries", "answers"])
