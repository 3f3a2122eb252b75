# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which one connection opens and closes thousands of subflows: the tracker tracks and forgets each."""

from __future__ import annotations

import gc
import sys

from examples import examples
from mptcp_dialogue import PORT, ClientSubflow, Host, kinds, open_connection
from test_mptcp_fuzz import frame

from mptcp_throttler.mptcp.model import KernelEventKind
from mptcp_throttler.mptcp.segment import parse_frame
from mptcp_throttler.mptcp.tracker import Tracker

SUBFLOWS = examples(70_000)
CLIENTS = ("203.0.113.1", "203.0.113.2")
"""Two addresses, because one has only 65,535 ports."""
ETHERNET, IPV4 = 14, 20


def handshake_frames(host: Host, address: str) -> list[tuple[bytearray, int, bool]]:
    """Return the frames of a subflow's handshake, the offset of the client's port, and whether the proxy sent it."""
    sent = [(each, each.source_port == PORT) for each in ClientSubflow(host, address, 1, False).handshake()]
    return [
        (bytearray(frame(each)), ETHERNET + IPV4 + (2 if from_proxy else 0), from_proxy) for each, from_proxy in sent
    ]


def churn(tracker: Tracker, count: int, name: str, now: float) -> tuple[list[str], float]:
    """Open and close *count* subflows of one connection. Return the kinds of events, and the time of the last one."""
    host = Host(name, now)
    open_connection(tracker, host)
    now = host.time
    frames_by_client = [handshake_frames(host, address) for address in CLIENTS]
    events: list[str] = []
    for number in range(count):
        subflow = ClientSubflow(host, CLIENTS[number % 2], 1024 + number // 2, False)
        port = subflow.four_tuple.remote_port.to_bytes(2, "big")
        for data, position, from_proxy in frames_by_client[number % 2]:
            data[position : position + 2] = port
            now += 0.00001
            segment = parse_frame(bytes(data), now, "eth0", ETHERNET, from_proxy)
            assert segment is not None
            events += kinds(tracker.apply_segment(segment))
        for kind in (KernelEventKind.SUBFLOW_ESTABLISHED, KernelEventKind.SUBFLOW_CLOSED):
            events += kinds(tracker.apply_event(subflow.kernel_event(kind, time=now)))
    return events, now


def expire_and_measure(tracker: Tracker, now: float) -> tuple[dict[str, int], int]:
    """End and expire all connections. Return the sizes of the tables, and the number of Python's memory blocks."""
    tracker.resync([], now + 100)
    tracker.expire(now + 86_400)
    gc.collect()
    return dict(tracker.table_sizes), sys.getallocatedblocks()


def test_each_subflow_is_tracked_and_later_forgotten() -> None:
    tracker = Tracker([PORT])
    _, now = churn(tracker, 1_000, "before", 1000.0)
    sizes, blocks = expire_and_measure(tracker, now)
    events, now = churn(tracker, SUBFLOWS, "churn", now + 100_000)
    assert events.count("subflow-active") == SUBFLOWS
    assert events.count("subflow-closed") == SUBFLOWS
    events.clear()
    sizes_after, blocks_after = expire_and_measure(tracker, now)
    assert sizes_after == sizes
    assert blocks_after - blocks < SUBFLOWS / 35, "one memory block or more was left per 35 subflows"
