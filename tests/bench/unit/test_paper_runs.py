# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's runs: settings, downloads that are not data points, and a run's numbers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from mutants import Load, constant, series

from mptcp_bench.experiments.parameters import settings as parse
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.downloads import check
from mptcp_bench.paper.measurements import Download, Trial, numbers_of
from mptcp_bench.paper.settings import Settings, parse_loss, parse_time
from mptcp_lab.agent.processors import Usage
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import TooFewSamples
from mptcp_lab.testbed.transfer import Observation

CAP = 5_000_000
THROUGH = Trial("mptcp", "through the proxy", 10_000_000)
ALONE = Trial("tcp-wifi", "alone", 10_000_000, path="wifi")
SEEN = Observation(
    ended=4.0, status=0, timed_out=False, octets=10_000_000, sha256="as it should be", said="", samples=(),
    joined=0.1, counters={"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPJoinSynAckRx": 1},
    proxy_counters={"MPTcpExtMPJoinAckRx": 1}, origin_counters={},
)  # fmt: skip
FELL_BACK = {**SEEN.counters, "MPTcpExtMPCapableFallbackSYNACK": 1}
USED = (Usage(0.0, 0.5, None, least_idle=0.2), Usage(0.0, 0.4, None, least_idle=0.3))
"""Processor usage of client and proxy."""


def seen(ethernet: Load, wifi: Load, **changes: Any) -> Observation:
    """Return an observation of paths with these loads. The download ends 0.3 s before the samples."""
    samples = tuple(series({"ethernet": ethernet, "wifi": wifi}, SEEN.ended + 0.3))
    return replace(SEEN, samples=samples, **changes)


def settings(options: dict[str, str]) -> Settings:
    return parse(Settings, options, quick=False)


def test_only_the_downloads_of_figure_6_have_a_fixed_order() -> None:
    """Its last download needs a throttler that knows the client from the download before."""
    assert [key for key, experiment in PAPER.items() if not experiment.load().shuffled] == ["fig6"]


@pytest.mark.parametrize(
    ("trial", "change", "message"),
    [
        (ALONE, {}, ""),
        (THROUGH, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}}, "sent 1 SYN with MP_CAPABLE towards the origin"),
        # To the client, a refused join looks established.
        (THROUGH, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH, {"counters": {}}, "requested 0 Multipath TCP connections"),
        (ALONE, {"status": 4}, "ended with 4"),
        (THROUGH, {"sha256": "other"}, "SHA-256"),
        (THROUGH, {"status": -9, "timed_out": True}, "no end after"),
    ],
)
def test_download_is_not_a_data_point_if_it_is_not_of_the_wanted_kind(
    trial: Trial, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(TestbedError, match=message) if message else nullcontext():
        check(trial, replace(SEEN, **change), SEEN.sha256)


def until(seconds: float, rate: float, then: float) -> Load:
    return lambda time: rate if time < seconds else then


@pytest.mark.parametrize(
    ("ethernet", "wifi", "seconds"),
    [
        (until(0.1, 90, 5), 20, 0.0),
        # The excess ends with the last sample above the cap.
        (until(0.9, 90, 5), 20, 0.8),
        # The end of the transfer must not count as the moment of the cap.
        (until(3.9, 90, 5), 0, None),
        # A path that carries nothing does not count as capped.
        (constant(0), 20, None),
    ],
)
def test_time_to_throttle_is_from_the_join_to_the_last_excess(
    ethernet: Load, wifi: float, seconds: float | None
) -> None:
    found = seen(ethernet, constant(wifi))
    throttled = replace(THROUGH, throttled=True, cap=CAP)
    numbers = numbers_of(throttled, found, USED)
    assert numbers.time_to_throttle == (None if seconds is None else pytest.approx(seconds))
    assert numbers.capped == (seconds is not None)
    assert numbers_of(throttled, replace(found, joined=None), USED).capped == 0


def test_numbers_of_a_run_come_from_its_observation() -> None:
    found = seen(
        constant(30), constant(10),
        proxy_counters={"TcpRetransSegs": 5, "TcpOutSegs": 1000},
        origin_counters={"TcpRetransSegs": 7, "TcpOutSegs": 70},
    )  # fmt: skip
    numbers = numbers_of(THROUGH, found, USED)
    assert (numbers.goodput, numbers.retransmission_share) == (20_000_000, 0.005)
    assert numbers.least_idle == 0.2
    assert numbers.share_ethernet == pytest.approx(0.75)
    assert numbers.rate_wifi == pytest.approx(10e6)
    assert numbers_of(ALONE, replace(found, counters=FELL_BACK), USED).retransmission_share == 0.1
    assert numbers_of(ALONE, found, USED) == Download(fell_back=False)
    with pytest.raises(TooFewSamples):
        numbers_of(THROUGH, replace(found, ended=0.05), USED)


def test_paths_and_buffer_follow_the_settings() -> None:
    # The paper computed this buffer.
    assert settings({}).buffer_needed == 480_000
    path = settings({"wifi.rtt": "30 ms", "wifi.rate": "25mbit", "wifi.loss": "1.5%"}).path("wifi")
    assert (path.down.delay, path.up.delay, path.up.loss) == (15_000, 15_000, None)
    assert (path.down.rate, path.up.rate, path.down.loss) == (25_000_000, 25_000_000, UniformLoss(0.015))
    assert parse_loss("1%, 25%, 100%, 0%") == GilbertElliott(0.01, 0.25, 1.0, 0.0)
    assert [parse_time(text) for text in ("16 ms", "0.5ms", "1 s", "7us")] == [16_000, 500, 1_000_000, 7]
    # The links of real hosts are known only if they are stated.
    links = {"ethernet.rate": "94mbit", "ethernet.rtt": "1ms", "wifi.rate": "30mbit", "wifi.rtt": "20 ms"}
    assert settings({"inventory": "hosts.yaml"}).buffer_needed is None
    assert settings({"inventory": "hosts.yaml", **links}).buffer_needed == 2 * 124e6 / 8 * 0.02
