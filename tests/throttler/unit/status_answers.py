"""Answers of the status socket made by hand, and a socket that gives them: what the commands for people are shown."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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
    cap = {"path": "ethernet", "rule": "spare-ethernet", "rate": 5_000_000, "ceil": 5_000_000, "classid": "4d50:10"}
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
    return {"schema": 1, "time": at, "version": "0", "pid": 1, "total": len(found) if total is None else total} | {
        "connections": found
    }


def many(count: int) -> Callable[[Answer], Answer]:
    """Return what answers with the page that is asked for, of *count* connections."""

    def answer(request: Answer) -> Answer:
        start = request["offset"]
        return page(*(connection(at) for at in range(start, min(count, start + request["limit"]))), total=count)

    return answer


@contextmanager
def answering(path: Path, answer: Callable[[Answer], Answer]) -> Iterator[list[tuple[float, Answer]]]:
    """Have *answer* answer at *path*; yield the requests that came, with their times."""
    asked: list[tuple[float, Answer]] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines:
                request = json.loads(lines.readline() or b'{"query": "status"}')
                asked.append((time.monotonic(), request))
                with suppress(BrokenPipeError):  # who asked has gone
                    client.sendall(json.dumps(answer(request)).encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)
        path.unlink()
