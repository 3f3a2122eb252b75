# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the names of test files, and for the licence line of source files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_file_names_of_tests_are_unique() -> None:
    """pytest imports test files only by their names, and refuses a run if two have the same name."""
    names = Counter(path.name for path in TESTS.glob("**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_each_source_file_names_its_licence() -> None:
    kinds = ["py", "mjs", "js", "css", "c", "h"]
    files = [each for kind in kinds for each in TESTS.parent.glob(f"[a-z]*/**/*.{kind}")]
    ours = [each for each in files if "vendor" not in each.parts and each.read_text().strip()]
    assert len(ours) > 1000
    assert [each for each in ours if "SPDX-License-Identifier: GPL-2.0-or-later" not in each.read_text()[:200]] == []
