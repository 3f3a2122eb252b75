# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the limits on regular expressions of squid.conf, for which the C library may need much time and memory."""

from __future__ import annotations

import pytest

from mptcp_proxy.configuration import patterns
from mptcp_proxy.configuration.patterns import matches_any, part_count

LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
TOO_COSTLY = [
    "(a?){20000}",
    "(a?){32767}",
    f"({'a?' * 450}){{100}}",
    f"({'a?' * 450}){{1000}}",
    f"({'(a?)*' * 190}){{8}}",
    f"({'|' * 900}){{11}}",
    "(((a{,200}){,200}){,100})",
    "(((a{200,}){200,}){100,})",
    f"{'(' * 22}a{'+)' * 22}",
    "(a)(" + "\\1?" * 320 + ")",
    "[a-z]{0,10000}$",
    r"\w{1,19000}$",
    r"(\b.?){100}",
    r"(\<.?){100}",
]
"""Patterns that need gigabytes or a minute, or that end the process."""


@pytest.mark.parametrize("pattern", TOO_COSTLY, ids=range(len(TOO_COSTLY)))
def test_library_does_not_get_a_costly_pattern(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the check did not count the library's copies for ``{,n}`` and ``+``, nor their total size."""
    # Without the library, evaluating a pattern fails. A pattern that is not evaluated counts as a match.
    monkeypatch.setattr(patterns, "_LIBRARY", None)
    assert matches_any(pattern, ())


@pytest.mark.parametrize(
    "pattern",
    [
        r"([a-z0-9-]{1,63}\.){1,127}example\.com",
        rf"^({LABEL}\.){{1,127}}example\.com$",
        rf"^({LABEL}\.)+(example|beispiel)\.(com|net|org|de)$",
        r"^([0-9]{1,3}-){3}[0-9]{1,3}\.example$",
        r"^[^]{9}[:alpha:]]{1,1000}\.example$",
        r"\<www\>.*\bexample\b",
    ],
)
def test_ordinary_pattern_is_evaluated(pattern: str) -> None:
    assert not matches_any(pattern, ("none", "client.elsewhere.net", "b"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        *(("", 0), ("abc", 3), ("a{3}", 4), ("a{2,3}", 4), ("a{3,}", 5), ("a+", 3), ("(ab){3}", 13), ("ab{3}", 5)),
        *((r"\(ab\){3}", 7), ("[(]{3}", 4), ("[]{9}]{2}", 3), ("[[:alpha:]{9}]{2}", 3), (r"a\{3}", 4), (")", 1)),
        *(
            ("a?", 21),
            ("a*", 21),
            ("a|b", 22),
            ("a{,3}", 23),
            ("a{1,101}", 122),
            (r"\ba\>", 801),
            ("((a{2}){3}){4}", 73),
            ("(((", 0),
        ),
    ],
)
def test_parts_of_a_pattern_are_counted_with_their_copies(pattern: str, expected: int) -> None:
    assert part_count(pattern) == expected
