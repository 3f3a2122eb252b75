# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake throttler: it answers the requests of docs/status.md on a status socket, about a simulated world.

The world consists of data that a test changes. A test can also advance its clock, and can make the fake throttler hang,
end and restart.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

RULE = {"policy": "policy", "rule": "spare-ethernet", "path": "ethernet", "direction": "down", "share": "path"}
RULE_TEXTS = [{"rule": "spare-ethernet", "conditions": ["path ethernet"], "does": ["cap of 5 Mbit/s"]}]
PATHS = [
    {"path": "ethernet", "conditions": ["interface wan0", "clients 10.77.1.0/24, fd77:1::/64"]},
    {"path": "wifi", "conditions": ["clients 10.77.2.0/24"]},
]
POLICY_TEXT = "version: 1\n# of the office\nrules: []\n"
REASON = "rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active"


async def run_until(condition: Callable[[], object]) -> None:
    """Run the event loop until *condition* is true, for a minute at most."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- the condition has no event to wait for
            await asyncio.sleep(0)


@dataclass
class World:
    """State of the simulated throttler: *connection_count* connections over ethernet and wifi."""

    connection_count: int = 3
    pid: int = 4711
    capped: bool = True
    dry_run: bool = False
    """Whether the policy is a dry run: it has caps, but the kernel has none of them."""
    ceil: int = 5_000_000
    """Upper limit of the cap, in bit/s. The guaranteed rate is half of it, so that tests can distinguish the two."""
    shared_classes: int = 0
    rule_texts: list[dict[str, Any]] = field(default_factory=lambda: list(RULE_TEXTS))
    """The policy's rules as text. If they differ from the default rules, they have no cap."""
    extra_caps: list[str] = field(default_factory=list)
    """Names of additional rules with the same cap as the default rule."""
    tried: list[dict[str, Any]] | None = None
    """Rules that were tried for each subflow; None for the default rules."""
    sent: dict[str, int] = field(default_factory=lambda: {"ethernet": 0, "wifi": 0})
    received: dict[str, int] = field(default_factory=lambda: {"ethernet": 0, "wifi": 0})
    events: list[dict[str, Any]] = field(default_factory=list)
    reversed_order: bool = False
    """Whether the list of connections begins with the last one."""
    over_budget: bool = False
    """Whether the first client has a budget of its own that is used up."""
    budget_restart: float | None = None
    """The time at which budgets restart; None for eight days from now."""
    plain_tcp: dict[str, int] = field(default_factory=dict)
    """Number of plain TCP connections by client."""
    is_captured: bool = True
    """Whether the throttler captures segments on the interface."""
    ledger_error: str | None = None
    dropped_segments: int = 0
    dropped_events: int = 0
    """Number of events that were dropped, oldest first."""
    clock: Callable[[], float] = time.time
    counted_at: float | None = None
    """Time when the bytes were counted; None for the time of the query."""
    queries: list[dict[str, Any]] = field(default_factory=list)

    def carry(self, ethernet: int, wifi: int) -> None:
        """Count bytes as sent over the two paths, and a tenth of them as received."""
        if self.counted_at is not None:
            self.counted_at = self.clock()
        for path, count in (("ethernet", ethernet), ("wifi", wifi)):
            self.sent[path] += count
            self.received[path] += count // 10

    def add_event(self, kind: str, text: str, **fields: Any) -> None:
        absent = dict.fromkeys(("token", "client", "remote", "local", "path", "rule", "direction"))
        head = {"seq": len(self.events) + 1, "time": self.clock(), "kind": kind}
        self.events.append(absent | {"client": ""} | head | {"text": text} | fields)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.queries.append(request)
        head = {"schema": 2, "time": self.clock(), "version": "0.1.0", "pid": self.pid}
        answers = {
            "summary": self._summary,
            "connections": self._connections,
            "clients": self._clients,
            "explain": self._explain,
            "events": self._events,
            "policy": self._policy,
            "what_if": self._what_if,
        }
        answer_to = answers.get(request.get("query", ""))
        return head | (answer_to(request) if answer_to else {"error": f"unknown query {request.get('query')!r}"})

    def _summary(self, _: dict[str, Any]) -> dict[str, Any]:
        rule = RULE | {
            "capped": self.connection_count if self.capped else 0,
            "landing": 0,
            "rate": self.ceil // 2,
            "lowest_ceil": self.ceil,
            "ceil": self.ceil,
            "total_ceil": self.ceil if self.capped else 0,
            "classes": int(self.capped),
            "shared_classes": self.shared_classes,
            "bytes": self.sent["ethernet"],
        }
        return {
            "connections": self.connection_count,
            "tunnels": [{"tunnel": "home", "path": "0", "bytes_sent": 7, "bytes_received": 5}],
            "subflows": {"active": 2 * self.connection_count, "pending": 0},
            "clients": max(1, self.connection_count // 2),
            "paths": [
                {
                    "path": path,
                    "interface": "wan0",
                    "subflows": self.connection_count,
                    "bytes_sent": self.sent[path],
                    "bytes_received": self.received[path],
                }
                for path in ("ethernet", "wifi")
            ],
            "rules": [rule | {"rule": name} for name in (rule["rule"], *self.extra_caps)]
            if self.rule_texts == RULE_TEXTS
            else [],
            "classes": [],
            "class_counts": {"down": int(self.capped), "up": 0},
            "started": self.clock() - 3600,
            "counted": self.clock() if self.counted_at is None else self.counted_at,
            "budget_totals": [
                {
                    "name": "month",
                    "per": "path",
                    "accounts": 1,
                    "used_up": 0,
                    "used": 1_200_000_000,
                    "volume": 5_000_000_000,
                    "first_volume": 5_000_000_000,
                    "until": self.clock() + 8 * 86400,
                }
            ],
            "budgets": [
                *([self._account("own", "10.77.1.2", 2_100_000_000, 2_000_000_000)] if self.over_budget else []),
                self._account("month", None, 1_200_000_000, 5_000_000_000),
            ],
            "guard": {"relaxed": 0, "interventions": 2},
            "counters": {
                "tracker": {"disagreements": 0, "joins_refused": 0, "overflows": 0},
                "observers": {
                    "segments_dropped": self.dropped_segments,
                    "kernel_events_lost": 0,
                    "resyncs": 2,
                    "reopened": 0,
                },
                "reconciler": {"failures": 0, "repairs": 1},
                "upload_reconciler": None,
            },
            "loop": {"longest": 0.012, "recent": 0.003, "late": 0},
            "reaction": {"le": [0.001, 0.01, 0.1], "count": [3, 9, 10], "total": 10, "sum": 0.05},
            "effect": {
                direction: {"le": [0.01, 1.0], "count": [4, count], "total": count, "sum": 0.2 * count}
                for direction, count in (("down", 9), ("up", 5))
            },
            "reloads": {"accepted": 1, "refused": 0, "last_refused": None, "settings": []},
            "ledger_error": self.ledger_error,
            "captures": {"wan0": self.is_captured},
            "bpf": {"pacing": True, "counting": True},
            "policy": {
                "file": "/etc/mptcp-throttler/policy.yaml",
                "since": self.clock() - 600,
                "dry_run": self.dry_run,
                "time_zone": "Europe/Athens",
                "rules": [each["rule"] for each in self.rule_texts],
                "paths_in_words": PATHS,
                "rules_in_words": self.rule_texts,
            },
            "last_event": len(self.events),
        }

    def connection(self, number: int) -> dict[str, Any]:
        """Return connection *number*, counted from 0."""
        now = self.clock()
        rate = 30_000_000 // (1 + number)
        ends = [("ethernet", 1, 40000, True), ("wifi", 2, 50000, False)]
        subflows = [
            {
                "local": "10.77.8.2:3128",
                "remote": f"10.77.{net}.{2 + number % 250}:{port + number % 10000}",
                "path": path,
                "interface": "wan0",
                "initial": initial,
                "backup": False,
                "since": now - 60 - number,
                "rule": "spare-ethernet" if path == "ethernet" and self.capped else None,
                "rate": self.ceil // 2 if path == "ethernet" and self.capped else None,
                "ceil": self.ceil if path == "ethernet" and self.capped else None,
                "classid": "4d50:10" if path == "ethernet" and self.capped and not self.dry_run else None,
                "landing": False,
                "local_id": 0,
                "remote_id": 0 if initial else 1,
                "pacing_limit": None,
                "reason": self._reason(path),
                "upload": None,
                "bytes_sent": 1_000_000 * (number + 1),
                "bytes_received": 20_000,
                "rtt": 0.021,
                "rtt_var": 0.004,
                "retransmits": 3,
                "segments_out": 1200,
                "lost": 0,
                "cwnd": 42,
                "rate_sent": rate // (1 if path == "wifi" else 6),
                "rate_received": 20_000,
                "share": 0.86 if path == "wifi" else 0.14,
            }
            for path, net, port, initial in ends
        ]
        return {
            "token": f"{0x4F037D87 + number:08x}",
            "client": f"10.77.1.{2 + number % 250}",
            "since": now - 60 - number,
            "version": 1,
            "relaxed": None,
            "bytes_sent": 2_000_000 * (number + 1),
            "bytes_received": 40_000,
            "subflows": subflows,
        }

    def _reason(self, path: str) -> str:
        if path != "ethernet" or not self.capped:
            return "no rule matches"
        return f"{REASON.replace('caps', 'would cap')} (dry run)" if self.dry_run else REASON

    def _connections(self, request: dict[str, Any]) -> dict[str, Any]:
        numbers = [
            number
            for number in range(self.connection_count)
            if request.get("client") in (None, f"10.77.1.{2 + number % 250}")
            and request.get("token") in (None, f"{0x4F037D87 + number:08x}")
            and request.get("path") in (None, "ethernet", "wifi")
            and (request.get("rule") is None or (request["rule"] == "spare-ethernet" and self.capped))
        ]
        if self.reversed_order:
            numbers.reverse()
        offset = request.get("offset", 0)
        shown = numbers[offset : offset + request.get("limit", 50)]
        return {"total": len(numbers), "connections": [self.connection(number) for number in shown]}

    def _clients(self, request: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for number in range(self.connection_count):
            connection = self.connection(number)
            client = found.setdefault(
                connection["client"],
                {"client": connection["client"], "connections": 0, "subflows": 0, "capped": 0, "budgets": []}
                | dict.fromkeys(("rate_sent", "rate_received", "bytes_sent", "bytes_received"), 0),
            )
            client["connections"] += 1
            client["subflows"] += 2
            client["capped"] += int(self.capped and not self.dry_run)
            for name in ("bytes_sent", "bytes_received"):
                client[name] += connection[name]
            for name in ("rate_sent", "rate_received"):
                client[name] += sum(each[name] for each in connection["subflows"])
        clients = list(found.values())
        if self.over_budget and clients:
            clients[0]["budgets"] = [self._account("own", clients[0]["client"], 2_100_000_000, 2_000_000_000)]
        sort = request.get("sort", "rate")
        key = {"client": lambda each: each["client"], "bytes": lambda each: -each["bytes_sent"]}
        clients.sort(key=key.get(sort, lambda each: -each["rate_sent"]))
        plain = sorted(self.plain_tcp.items(), key=lambda each: -each[1])
        return {
            "total": len(clients),
            "clients": clients[: request.get("limit", 50)],
            "plain_tcp": {
                "connections": sum(self.plain_tcp.values()),
                "total": len(plain),
                "clients": [{"client": client, "connections": number} for client, number in plain],
            },
        }

    def _account(self, name: str, client: str | None, used: int, volume: int) -> dict[str, Any]:
        return {
            "name": name,
            "rule": "lte-volume",
            "client": client,
            "used": used,
            "volume": volume,
            "left": max(0, volume - used),
            "step": volume if used >= volume else None,
            "next_step": None if used >= volume else volume,
            "until": self.budget_restart if self.budget_restart is not None else self.clock() + 8 * 86400,
        }

    def _explain(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self._connections({"token": request.get("token"), "client": request.get("client"), "limit": 20})
        return {
            "time_zone": "Europe/Athens",
            "total": found["total"],
            "connections": [
                {
                    "token": each["token"],
                    "client": each["client"],
                    "since": each["since"],
                    "subflows": [self._explanation(subflow) for subflow in each["subflows"]],
                }
                for each in found["connections"]
            ],
        }

    def _explanation(self, subflow: dict[str, Any]) -> dict[str, Any]:
        capped = subflow["rule"] is not None
        suffix = " (dry run)" if self.dry_run else ""
        return {
            **{key: subflow[key] for key in ("remote", "local", "path", "interface", "rate", "ceil", "rule", "since")},
            "direction": "down",
            "verdict": f"capped at 5 Mbit/s{suffix}" if capped else "not capped",
            "reason": subflow["reason"],
            "tried": self._tried_rules(capped) if self.tried is None else self.tried,
            "stages": [
                {
                    "stage": "budgets",
                    "what": "budget month: under 5.00 GB used until 1 December",
                    "since": subflow["since"],
                }
            ],
            "cap_state": "in force" if capped and not self.dry_run else "none",
        }

    def _tried_rules(self, capped: bool) -> list[dict[str, Any]]:
        return [
            {
                "rule": "office-hours",
                "kind": "throttle",
                "matched": False,
                "failed": "it is not between 08:00 and 18:00",
                "until": self.clock() + 3600,
            },
            {
                "rule": "spare-ethernet",
                "kind": "throttle",
                "matched": capped,
                "failed": None if capped else "the subflow is on path wifi, not on ethernet",
                "until": self.clock() + 7200 if capped else None,
            },
        ]

    def _events(self, request: dict[str, Any]) -> dict[str, Any]:
        found = [
            event
            for event in self.events
            if event["seq"] > max(request.get("after", 0), self.dropped_events)
            and all(request.get(key) in (None, event.get(key)) for key in ("client", "token", "rule"))
        ]
        return {
            "first": self.dropped_events + 1,
            "last": len(self.events),
            "events": found[: request.get("limit", 1000)],
        }

    def _what_if(self, request: dict[str, Any]) -> dict[str, Any]:
        if "rules" not in request["policy"]:
            return {"errors": ["policy:1: rules: is required"]}
        first = self.connection(0)
        changes = [
            {
                "token": first["token"],
                "remote": first["subflows"][1]["remote"],
                "path": "wifi",
                "now": "not capped",
                "direction": direction,
                "then": "capped at 1 Mbit/s by rule new",
                "why": "rule new caps path wifi at 1 Mbit/s: 2 subflows active",
            }
            for direction in ("down", "up")
        ]
        verdict = "capped at 5 Mbit/s by rule spare-ethernet"
        unchanged = {"path": "ethernet", "now": verdict, "then": verdict}
        unchanged_subflow = changes[0] | {"remote": first["subflows"][0]["remote"]} | unchanged
        return {
            "errors": [],
            "changes": changes,
            "changed": 2,
            "stay_capped": [unchanged_subflow],
            "stay_capped_count": self.connection_count,
            "capped_now": 0 if self.dry_run else self.connection_count,
            "capped_then": 2 * self.connection_count,
            "dry_run_now": self.dry_run,
            "dry_run_then": False,
        }

    def _policy(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "file": "/etc/mptcp-throttler/policy.yaml",
            "since": self.clock() - 600,
            "dry_run": self.dry_run,
            "text": POLICY_TEXT,
        }


class FakeThrottler:
    """A server that listens at *path* and answers for *world* in a thread."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self.world = world
        self.hangs = False
        self.raw_answer: bytes | None = None
        """Bytes that are sent instead of an answer."""
        self._keeps_socket = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._stop.clear()
        self._keeps_socket = False
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen()
        listener.settimeout(0.05)
        self._thread = threading.Thread(target=self._serve, args=(listener,), daemon=True)
        self._thread.start()

    def stop(self, *, is_crash: bool = False) -> None:
        """End the server. A crash does not remove its socket."""
        self._keeps_socket = is_crash
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _serve(self, listener: socket.socket) -> None:
        unanswered: list[socket.socket] = []
        with listener:
            while not self._stop.is_set():
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    continue
                client.settimeout(60)
                if self.hangs:
                    unanswered.append(client)
                    continue
                with client, suppress(OSError):
                    self._answer(client)
        for client in unanswered:
            client.close()
        if not self._keeps_socket:
            self.path.unlink(missing_ok=True)

    def _answer(self, client: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            chunk = client.recv(1 << 16)
            if not chunk:
                return
            line += chunk
        client.sendall(self.raw_answer or json.dumps(self.world.answer(json.loads(line))).encode())
