# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for rates and sizes: accepted and refused notations, and that formatting and parsing preserve the value."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.units import (
    MAX_RATE,
    MAX_SIZE,
    MIN_RATE,
    RATE_PATTERN,
    SIZE_PATTERN,
    approximate_size,
    counted,
    format_rate,
    format_size,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("written", "bits_per_second"),
    [
        ("5 Mbit/s", 5_000_000),
        ("5Mbit/s", 5_000_000),
        ("5mbit", 5_000_000),
        ("5 MBIT", 5_000_000),
        ("512kbit", 512_000),
        ("512 kbit/s", 512_000),
        ("1.5 Mbit/s", 1_500_000),
        ("0.1 Gbit/s", 100_000_000),
        ("1gbit", 1_000_000_000),
        ("8000 bit/s", 8_000),
        ("64000bit", 64_000),
        (8_000, 8_000),
        (5_000_000, 5_000_000),
        ("1000 Gbit/s", MAX_RATE),
        (" 5 Mbit/s ", 5_000_000),
    ],
)
def test_rate_is_parsed(written: object, bits_per_second: int) -> None:
    assert parse_rate(written) == bits_per_second


@pytest.mark.parametrize(
    "written",
    [
        "5 Mbps",  # tc(8) means bytes by it, most people mean bits
        "5 MB/s",
        "5 Mb/s",
        "5 Mbits",
        "5 Mibit/s",
        "5 M",
        "5",
        "5 Mbit/ s",
        "5,5 Mbit/s",
        "1e3 kbit/s",
        ".5 Mbit/s",
        "Mbit/s",
        "",
        "\u0665 Mbit/s",
        "5 Mbit/s\n5 Mbit/s",
        "7.999 kbit/s",
        "1001 Gbit/s",
        "8.0001 kbit/s",
        "-5 Mbit/s",
        0,
        -1,
        True,
        5_000_000.0,
        None,
        [5],
    ],
)
def test_invalid_rate_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a rate|is out of range|is not a whole number"):
        parse_rate(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("15 KB", 15_000),
        ("15 kB", 15_000),
        ("15KiB", 15_360),
        ("1.5 KB", 1_500),
        ("2 MB", 2_000_000),
        ("2 MiB", 2_097_152),
        ("1600 B", 1_600),
        (1_600, 1_600),
    ],
)
def test_size_is_parsed(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written", ["15 kb", "15 Kb", "15k", "15", "15 mb", "15 GB", "1.0001 KB", "65 MiB", 0, True, 1.5, "-1 B"]
)
def test_invalid_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a size|is out of range|is not a whole number"):
        parse_size(written)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (5_000_000, "5 Mbit/s"),
        (1_500_000, "1.5 Mbit/s"),
        (512_000, "512 kbit/s"),
        (1_000_000_000, "1 Gbit/s"),
        (100_000_000, "100 Mbit/s"),
        (1_234_567, "1234.567 kbit/s"),
        (999, "999 bit/s"),
        (0, "0 bit/s"),
    ],
)
def test_rate_is_formatted_exactly(rate: int, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(15_000, "15 KB"), (65_536, "64 KiB"), (1_600, "1.6 KB"), (2**20, "1 MiB"), (37_500_000, "37.5 MB"), (7, "7 B")],
)
def test_size_is_formatted_exactly(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"), [(12_700_000, "12.7 MB"), (999, "999 B"), (1_500, "1.50 KB"), (3.2e9, "3.20 GB")]
)
def test_measured_size_is_rounded(size: float, text: str) -> None:
    assert approximate_size(size) == text


@given(st.integers(MIN_RATE, MAX_RATE))
def test_formatted_rate_is_parsed_to_the_same_value(rate: int) -> None:
    text = format_rate(rate)
    assert parse_rate(text) == rate
    assert re.fullmatch(RATE_PATTERN, text)


@given(st.integers(1, MAX_SIZE))
def test_formatted_size_is_parsed_to_the_same_value(size: int) -> None:
    text = format_size(size)
    assert parse_size(text) == size
    assert re.fullmatch(SIZE_PATTERN, text)


@given(st.integers(8, 10**6), st.sampled_from(["kbit", "Kbit/s", "kBit/S", "KBIT"]), st.sampled_from(["", " ", "  "]))
def test_letter_case_and_spaces_of_a_rate_do_not_matter(number: int, unit: str, space: str) -> None:
    assert parse_rate(f"{number}{space}{unit}") == number * 1000


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_any_value_is_refused_or_in_range(value: object) -> None:
    for parse, low, high in ((parse_rate, MIN_RATE, MAX_RATE), (parse_size, 1, MAX_SIZE)):
        try:
            result = parse(value)
        except ValueError:
            continue
        assert type(result) is int
        assert low <= result <= high


@pytest.mark.parametrize(("number", "expected"), [(0, "0 rules"), (1, "1 rule"), (2, "2 rules")])
def test_counted_noun_agrees_with_its_number(number: int, expected: str) -> None:
    assert counted(number, "rule") == expected
