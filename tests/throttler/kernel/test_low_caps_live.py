# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a cap so low that it would slow down the other path: the capped subflow rests until it is needed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pytest
from persistent_connection import Connection

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    Throttler,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

pytestmark = pytest.mark.kernel
POLICY = """\
version: 1
paths: {wifi: {clients: [10.77.2.0/24]}}
rules: [{name: low, paths: [wifi], throttle: {rate: 128 kbit/s}}]
"""
FILE_BYTES = 4_000_000


LIST_WIFI_SUBFLOWS = ["ss", "-tinH", "state", "established", "sport", "=", ":3128", "dst", "10.77.2.2"]


@dataclass
class Site:
    testbed: Testbed
    throttler: Throttler
    url: str

    @classmethod
    def start_on(cls, testbed: Testbed, control: str, policy: str = POLICY) -> Self:
        host = testbed["proxy"]
        throttler = start_throttler(host, write_throttler_config(host, host.write("policy.yaml", policy)))
        start_proxy(host, control=control)
        return cls(testbed, throttler, start_origin(testbed["origin"], {"file": FILE_BYTES}).url("file"))

    def connect(self) -> Connection:
        return Connection(self.testbed["client"], self.testbed["proxy"].service_address())

    def download(self, connection: Connection) -> None:
        assert len(connection.get(self.url)[2]) == FILE_BYTES

    def wifi_subflow(self) -> dict[str, Any]:
        """Return the status of the capped subflow."""
        found = [each for c in self.throttler.status()["connections"] for each in c["subflows"]]
        return next((each for each in found if each["remote"].startswith("10.77.2.")), {})

    def has_pacing_rate(self) -> bool:
        return "pacing_rate" in self.testbed["proxy"].run(LIST_WIFI_SUBFLOWS).stdout

    @contextmanager
    def without_ethernet(self) -> Iterator[None]:
        """Take Ethernet down. It has no data in flight, so no retransmission moves data to the other path."""
        with self.testbed["client"].link_down("eth0"):
            self.testbed["proxy"].run(["ss", "-K", "dst", "10.77.1.2", "sport", "=", ":3128"], check=False)
            yield


@pytest.mark.parametrize("control", ["bbr", "cubic"])
def test_low_cap_subflow_rests_and_works_when_the_other_path_is_down(
    make_testbed: Callable[..., Testbed], require: Any, control: str
) -> None:
    """A resting subflow sends nothing, so it gets no acknowledgement that would give it a pacing rate again."""
    require("htb", "bpf-pacing")
    site = Site.start_on(make_testbed(), control)
    with site.connect() as connection:
        site.download(connection)
        wait_until(lambda: site.wifi_subflow().get("pacing_limit") == 0, "the capped subflow rests")
        sent_before = site.wifi_subflow()["bytes_sent"]
        for _ in range(5):
            site.download(connection)
        assert site.wifi_subflow()["bytes_sent"] < sent_before + FILE_BYTES // 20
        assert "rests" in site.wifi_subflow()["reason"]
        with site.without_ethernet():
            wait_until(lambda: site.wifi_subflow().get("pacing_limit", 0) is None, "the capped subflow no longer rests")
            site.download(connection)


def test_low_cap_subflow_does_not_rest_after_a_stop(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "bpf-pacing")
    site = Site.start_on(make_testbed(), "bbr")
    with site.connect() as connection:
        site.download(connection)
        wait_until(lambda: not site.has_pacing_rate(), "the capped subflow rests")
        site.throttler.process.signal(signal.SIGTERM)
        site.throttler.process.wait(60)
        assert site.has_pacing_rate()
        with site.without_ethernet():
            site.download(connection)


def test_join_rests_from_its_acceptance(make_testbed: Callable[..., Testbed], require: Any) -> None:
    """The join rests before the throttler decides about it.

    Otherwise, the scheduler would give it 32 kB at a time.
    """
    require("htb", "bpf-pacing")
    site = Site.start_on(make_testbed(), "bbr")
    with site.connect() as connection:
        site.download(connection)
        wait_until(lambda: site.wifi_subflow().get("pacing_limit") == 0, "the policy is in force")
    site.throttler.process.signal(signal.SIGSTOP)
    try:
        with site.connect() as connection:
            site.download(connection)
            assert not site.has_pacing_rate()
            # On a busy machine, some segments are retransmitted over the resting subflow, but they are less than the
            # 32 kB that the scheduler gives to a subflow at a time.
            sent = re.search(r"bytes_sent:(\d+)", site.testbed["proxy"].run(LIST_WIFI_SUBFLOWS).stdout)
            assert sent is None or int(sent[1]) < 20_000
    finally:
        site.throttler.process.signal(signal.SIGCONT)


def test_join_that_gets_no_cap_stops_resting(make_testbed: Callable[..., Testbed], require: Any) -> None:
    """Both subflows are on one path, so that neither is capped. The join rested when it was accepted."""
    require("htb", "bpf-pacing")
    site = Site.start_on(make_testbed(), "bbr", POLICY.replace("10.77.2.0/24", "10.77.0.0/16"))
    with site.connect() as connection:
        site.download(connection)
        wait_until(lambda: site.wifi_subflow().get("pacing_limit", 0) is None, "the join no longer rests")
        with site.without_ethernet():
            site.download(connection)
