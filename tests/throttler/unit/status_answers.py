# SPDX-License-Identifier: GPL-2.0-or-later
"""Synthetic answers of the status socket, as input for the commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOW = 1_700_000_000.0
Answer = dict[str, Any]


def subflow(remote: str, **changes: Any) -> Answer:
    return {
        "local": "192.0.2.1:3128",
        "remote": remote,
        "state": "active",
        "initial": False,
        "backup": False,
        "interface": "wan0",
        "since": NOW - 75,
        "path": "wifi",
        "rule": None,
        "rate": None,
        "ceil": None,
        "classid": None,
        "landing": False,
        "pacing_limit": None,
        "reason": "no rule matches",
        "bytes_sent": 14_000_000,
        "bytes_received": 20_000,
        "upload": None,
        "rtt": 0.0421,
        "rtt_var": 0.001,
        "retransmits": 12,
        "segments_out": 10_000,
        "lost": 0,
        "cwnd": 40,
        "rate_sent": 28_400_000.0,
        "rate_received": 51_000.0,
        "share": 0.85,
        **changes,
    }


def capped(remote: str, **changes: Any) -> Answer:
    reason = "rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active"
    cap = {"path": "ethernet", "rule": "spare-ethernet", "rate": 2_500_000, "ceil": 5_000_000, "classid": "4d50:10"}
    flow = {"reason": reason, "rate_sent": 5_000_000.0, "share": 0.15, "initial": True}
    return subflow(remote, **(cap | flow | changes))


def connection(number: int = 0, *subflows: Answer, **changes: Any) -> Answer:
    flows = list(subflows) or [
        capped(f"10.77.1.{number % 250 + 2}:40000"),
        subflow(f"10.77.2.{number % 250 + 2}:40001"),
    ]
    return {
        "token": f"{0x4F037D87 + number:08x}",
        "client": flows[0]["remote"].rpartition(":")[0],
        "since": NOW - 80,
        "version": 1,
        "relaxed": None,
        "bytes_sent": 16_600_000,
        "bytes_received": 40_000,
        "subflows": flows,
        **changes,
    }


def page(*connections: Answer, total: int | None = None, at: float = NOW) -> Answer:
    found = list(connections)
    return {"schema": 2, "time": at, "version": "0", "pid": 1, "total": len(found) if total is None else total} | {
        "connections": found
    }


def answer_pages_of(count: int) -> Callable[[Answer], Answer]:
    """Return a function that answers with the requested page of *count* connections."""

    def answer(request: Answer) -> Answer:
        start = request.get("offset", 0)
        return page(*(connection(number) for number in range(start, min(count, start + request["limit"]))), total=count)

    return answer
