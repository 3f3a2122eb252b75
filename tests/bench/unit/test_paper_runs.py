# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's downloads: settings, refused downloads, and the numbers of a download."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from mutants import Load, between, constant, series

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
THROUGH_PROXY = Trial("mptcp", "through the proxy", 10_000_000)
ALONE = Trial("tcp-wifi", "alone", 10_000_000, path="wifi")
OBSERVATION = Observation(
    ended=4.0, status=0, timed_out=False, octets=10_000_000, sha256="digest", error_output="", samples=(),
    joined=0.1, counters={"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPJoinSynAckRx": 1},
    proxy_counters={"MPTcpExtMPJoinAckRx": 1}, origin_counters={},
)  # fmt: skip
FELL_BACK = {**OBSERVATION.counters, "MPTcpExtMPCapableFallbackSYNACK": 1}
USAGES = (Usage(0.0, 0.5, None, least_idle=0.2), Usage(0.0, 0.4, None, least_idle=0.3))
"""Processor usage of client and proxy."""


def observed(ethernet: Load, wifi: Load, **changes: Any) -> Observation:
    """Return an observation of paths with these loads. The samples end 0.3 s after the download."""
    samples = tuple(series({"ethernet": ethernet, "wifi": wifi}, OBSERVATION.ended + 0.3))
    return replace(OBSERVATION, samples=samples, **changes)


def settings(options: dict[str, str]) -> Settings:
    return parse(Settings, options, quick=False)


def test_only_the_downloads_of_figure_6_have_a_fixed_order() -> None:
    """In its last download, the throttler must already know the client from the previous one."""
    assert [key for key, experiment in PAPER.items() if not experiment.load().shuffled] == ["fig6"]


@pytest.mark.parametrize(
    ("trial", "change", "message"),
    [
        (ALONE, {}, ""),
        (THROUGH_PROXY, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (
            THROUGH_PROXY,
            {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}},
            "sent 1 SYN with MP_CAPABLE towards the origin",
        ),
        # The proxy refused the join, which looks established to the client.
        (THROUGH_PROXY, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH_PROXY, {"counters": {}}, "requested 0 Multipath TCP connections"),
        (THROUGH_PROXY, {"sha256": "other"}, "SHA-256"),
    ],
)
def test_download_that_failed_or_used_another_protocol_is_refused(
    trial: Trial, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(TestbedError, match=message) if message else nullcontext():
        check(trial, replace(OBSERVATION, **change), OBSERVATION.sha256)


@pytest.mark.parametrize(
    ("ethernet", "wifi", "seconds"),
    [
        (between(0, 0.1, 90, 5), 20, 0.0),
        # The excess ends with the last sample above the cap.
        (between(0, 0.9, 90, 5), 20, 0.8),
        # The transfer ends before a cap could be confirmed.
        (between(0, 3.9, 90, 5), 0, None),
        # An idle path does not count as capped.
        (constant(0), 20, None),
    ],
)
def test_time_to_throttle_is_the_time_from_the_join_to_the_last_excess(
    ethernet: Load, wifi: float, seconds: float | None
) -> None:
    found = observed(ethernet, constant(wifi))
    throttled = replace(THROUGH_PROXY, throttled=True, cap=CAP)
    numbers = numbers_of(throttled, found, USAGES)
    assert numbers.time_to_throttle == (None if seconds is None else pytest.approx(seconds))
    assert numbers.capped == (seconds is not None)
    assert numbers_of(throttled, replace(found, joined=None), USAGES).capped == 0


def test_numbers_of_a_run_come_from_its_observation() -> None:
    found = observed(
        constant(30), constant(10),
        proxy_counters={"TcpRetransSegs": 5, "TcpOutSegs": 1000},
        origin_counters={"TcpRetransSegs": 7, "TcpOutSegs": 70},
    )  # fmt: skip
    numbers = numbers_of(THROUGH_PROXY, found, USAGES)
    assert (numbers.goodput, numbers.retransmission_share) == (20_000_000, 0.005)
    assert numbers.least_idle == 0.2
    assert numbers.share_ethernet == pytest.approx(0.75)
    assert numbers.rate_wifi == pytest.approx(10e6)
    assert numbers_of(ALONE, replace(found, counters=FELL_BACK), USAGES).retransmission_share == 0.1
    assert numbers_of(ALONE, found, USAGES) == Download(fell_back=False)
    with pytest.raises(TooFewSamples):
        numbers_of(THROUGH_PROXY, replace(found, ended=0.05), USAGES)


def test_paths_and_buffer_follow_the_settings() -> None:
    # The paper computed this buffer.
    assert settings({}).buffer_needed == 480_000
    path = settings({"wifi.rtt": "30 ms", "wifi.rate": "25mbit", "wifi.loss": "1.5%"}).path("wifi")
    assert (path.down.delay, path.up.delay, path.up.loss) == (15_000, 15_000, None)
    assert (path.down.rate, path.up.rate, path.down.loss) == (25_000_000, 25_000_000, UniformLoss(0.015))
    assert parse_loss("1%, 25%, 100%, 0%") == GilbertElliott(0.01, 0.25, 1.0, 0.0)
    assert [parse_time(text) for text in ("16 ms", "0.5ms", "1 s", "7us")] == [16_000, 500, 1_000_000, 7]
    # Links of real hosts are known only if the options state them.
    links = {"ethernet.rate": "94mbit", "ethernet.rtt": "1ms", "wifi.rate": "30mbit", "wifi.rtt": "20 ms"}
    assert settings({"inventory": "hosts.yaml"}).buffer_needed is None
    assert settings({"inventory": "hosts.yaml", **links}).buffer_needed == 2 * 124e6 / 8 * 0.02
