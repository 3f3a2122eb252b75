# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the parameters of the paper's experiments, and for reports of mistakes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.paper.parameters import PARAMETERS, ParameterError, Parameters, parse_loss, parse_time
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss


def test_the_defaults_need_the_buffer_that_the_paper_computed() -> None:
    assert Parameters.of().receive_buffer_needed() == 480_000


def test_a_path_has_half_the_rtt_in_each_direction() -> None:
    path = Parameters.of(["wifi.rtt=30 ms", "wifi.rate=25mbit", "wifi.mtu=1400"]).path("wifi")
    assert (path.down.delay, path.up.delay, path.rtt) == (15_000, 15_000, 30_000)
    assert path.down.rate == path.up.rate == 25_000_000
    assert path.down.mtu == 1400


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("0", None),
        ("0%", None),
        ("1.5%", UniformLoss(0.015)),
        ("1%, 25%, 100%, 0%", GilbertElliott(0.01, 0.25, 1.0, 0.0)),
    ],
)
def test_losses(text: str, loss: object) -> None:
    assert parse_loss(text) == loss


@pytest.mark.parametrize(("text", "microseconds"), [("16 ms", 16_000), ("0.5ms", 500), ("1 s", 1_000_000), ("7us", 7)])
def test_times(text: str, microseconds: int) -> None:
    assert parse_time(text) == microseconds


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("wfi.rate=30mbit", "did you mean wifi.rate?"),
        ("nothing=1", "there are ethernet.rate, "),
        ("cap", "write cap=VALUE, such as cap=5 Mbit/s"),
        ("cap=5", "5 Mbit/s"),
        ("wifi.rtt=16", '"16 ms"'),
        ("wifi.loss=1%,2%", "one percentage"),
        ("wifi.loss=101%", "0 % to 100 %"),
        ("wifi.jitter=9 ms", "jitter 9000 µs: 0 to the delay, 8000 µs"),
        ("wifi.mtu=100", "576 to 9000"),
        ("congestion-control=lia", "bbr, cubic, reno"),
        ("repetitions=-1", "0 to 1000"),
        ("repetitions=ten", "a whole number from 0 to 1000 is allowed"),
        ("repetitions=" + "9" * 5000, "0 to 1000"),
        ("wifi.mtu=ten", "576 to 9000"),
        ("runs=ten", "no parameter 'runs'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(setting: str, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.of([setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.of(["cap=x", "queue=y", "wifi.rate=30mbit"])
    assert len(str(caught.value).splitlines()) == 2


def test_real_hosts_have_the_links_they_have() -> None:
    with pytest.raises(ParameterError, match="real hosts have the links they have"):
        Parameters.of(["wifi.loss=1%"], emulated=False)
    unknown = Parameters.of(["cap=2 Mbit/s"], emulated=False)
    assert unknown.as_text()["cap"] == "2 Mbit/s"
    assert "wifi.rate" not in unknown.as_text()
    assert unknown.receive_buffer_needed() is None


def test_what_real_links_are_can_be_stated() -> None:
    message = ["ethernet.rate=94mbit", "ethernet.rtt=1ms", "wifi.rate=30mbit", "wifi.rtt=20 ms"]
    parameters = Parameters.of(message, emulated=False)
    assert parameters.as_text()["wifi.rate"] == "30mbit"
    assert parameters.receive_buffer_needed() == 2 * 124e6 / 8 * 0.02


def test_every_default_can_be_set() -> None:
    settings = [f"{p.name}={p.default}" for p in PARAMETERS]
    assert Parameters.of(settings) == Parameters.of()


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused_with_words(text: str) -> None:
    for name in ("cap", "wifi.rtt", "wifi.loss", "wifi.mtu", "repetitions"):
        with suppress(ParameterError):
            Parameters.of([f"{name}={text}"])
