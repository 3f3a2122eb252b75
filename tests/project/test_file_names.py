"""Names of the tests' files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by their name alone, and refuses a run of all where two have the same."""
    names = Counter(path.name for path in TESTS.glob("**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
