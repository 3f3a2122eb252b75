# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the option functions of experiments that are no scenarios."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from test_options import refusal

from mptcp_bench.experiments.options import OptionError, choice, count, counts, listed, positive, refused, rtts, yes


@pytest.mark.parametrize("value", ["ten", "0", "-1", "1.5", "", " 1", "1_0", "٣", "9" * 5000])
def test_what_is_no_whole_number_is_refused(value: str) -> None:
    assert refusal(count, {"runs": value}, "runs", 5) == f"--set runs={value}: allowed are whole numbers from 1 on"


def test_whole_numbers_and_lists_of_them() -> None:
    assert count({}, "runs", 5) == 5
    assert count({"runs": "7"}, "runs", 5) == 7
    assert count({"runs": "0"}, "runs", 5, least=0) == 0
    assert counts({}, "rtt", (20, 60)) == [20, 60]
    assert counts({"rtt": "20,80"}, "rtt", (20,)) == [20, 80]
    assert "rtt=20,,80: '': allowed" in refusal(counts, {"rtt": "20,,80"}, "rtt", ())
    assert counts({"rtt": "80"}, "rtt", (), most=80) == [80]
    refused_one = refusal(counts, {"rtt": "20,81"}, "rtt", (), most=80)
    assert refused_one == "--set rtt=20,81: '81': allowed are whole numbers from 1 to 80"


def test_a_word_of_a_list_is_there_once() -> None:
    assert listed({"rtt": "20/20,20/80"}, "rtt", "") == ["20/20", "20/80"]
    assert listed({}, "rtt", "20/20") == ["20/20"]
    for call in (listed, counts, choice):
        assert refusal(call, {"n": "1,2,1"}, "n", "12") == "--set n=1,2,1: '1' is there twice"


@pytest.mark.parametrize(
    "text", ["20", "20/20/20", "-1/20", "20/-1", "nan/20", "inf/20", "20/20001", "1e300/1", "a/b", ""]
)
def test_what_cannot_be_emulated_is_no_rtt(text: str) -> None:
    assert rtts("20/0.5") == (20, 0.5)
    with pytest.raises(ValueError, match=r"RTTs|convert|unpack"):
        rtts(text)


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf", ""])
def test_what_is_no_number_is_refused(value: str) -> None:
    assert positive({"seconds": "0.5"}, "seconds", 5) == 0.5
    assert f"seconds={value}: allowed is a number" in refusal(positive, {"seconds": value}, "seconds", 5)


def test_words_are_chosen_of_those_there_are() -> None:
    assert choice({}, "cc", ("bbr", "cubic")) == ["bbr", "cubic"]
    assert choice({}, "cc", ("bbr", "cubic"), ["bbr"]) == ["bbr"]
    assert choice({"cc": "cubic"}, "cc", ("bbr", "cubic")) == ["cubic"]
    assert refusal(choice, {"cc": "reno"}, "cc", ("bbr", "cubic")) == "--set cc=reno: 'reno' is none of bbr, cubic"


def test_a_refusal_names_every_option() -> None:
    assert str(refused({"a": "one", "b": "two"})) == "--set takes a=… (one); b=… (two)"


def test_yes_is_yes_or_no() -> None:
    assert [yes({"fresh": word}, "fresh", False) for word in ("yes", "no")] == [True, False]
    assert yes({}, "fresh", True)
    assert refusal(yes, {"fresh": "1"}, "fresh", True) == "--set fresh=1: allowed are yes and no"


@drawn(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    for read in (count, positive):
        with suppress(OptionError):
            assert read({"x": text}, "x", 1) > 0
