# SPDX-License-Identifier: GPL-2.0-or-later
"""A budget stage that counts the bytes of simulated sockets and connections."""

from __future__ import annotations

from datetime import datetime
from ipaddress import ip_address
from zoneinfo import ZoneInfo

from sampling import observe_all

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow
from mptcp_throttler.policy.budget import Account
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.stages.stage import Samples

ATHENS = ZoneInfo("Europe/Athens")
MB = 1_000_000
PROXY = ip_address("10.77.0.1").packed
POLICY_HEAD = """\
version: 1
time_zone: Europe/Athens
paths:
  lte: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
"""
STEPS = "steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}, {after: 3 MB, throttle: {rate: 64 kbit/s}}]"
LTE = "- {name: lte, paths: [lte], budget: {%s, " + STEPS + "}}\n"
HOURS = f"""\
- name: by-day
  paths: [lte]
  when: {{hours: ["08:00-18:00"]}}
  budget: {{period: month, {STEPS}}}
"""


def policy(rules: str, top: str = "") -> Policy:
    return load_policy(f"{POLICY_HEAD}{top}rules:\n{rules}", "policy.yaml")


MONTHLY = policy(LTE % "period: month")


def timestamp(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ATHENS).timestamp()


def four_tuple(remote: str, port: int = 40000) -> FourTuple:
    return FourTuple(PROXY, 3128, ip_address(remote).packed, port)


class Host:
    """A budget stage, the sockets of a fake kernel, and connections with one or more subflows."""

    def __init__(self, tested_policy: Policy = MONTHLY, now: str = "2026-11-20 12:00") -> None:  # a Friday
        self.stage = BudgetStage()
        self.policy = tested_policy
        self.stage.set_policy(tested_policy)
        self.now = timestamp(now)
        self.clock = 100.0  # monotonic
        self.sockets: dict[FourTuple, KernelSubflow] = {}
        self.connections: dict[int, Connection] = {}
        self.cookies = 0
        self.written: dict[Account, int] = {}

    def connect(self, token: int, *remotes: str) -> tuple[Verdict, ...]:
        subflows: list[Subflow] = []
        for remote in remotes:
            self.cookies += 1
            key = four_tuple(remote, 40000 + token)
            self.sockets[key] = KernelSubflow(token, key, not subflows, 0, 0, False, 0.0, cookie=self.cookies)
            subflows.append(Subflow(key, not subflows, 0, 0, False, None, self.clock))
        self.connections[token] = Connection(token, tuple(subflows), self.clock)
        return self.decide(token)

    def decide(self, token: int) -> tuple[Verdict, ...]:
        connection = self.connections[token]
        return self.stage.apply(connection, evaluate(self.policy, connection, self.now), self.now)

    def carry(self, token: int, octets: int, upload: int = 0, index: int = 0) -> None:
        key = self.connections[token].subflows[index].four_tuple
        socket = self.sockets[key]
        self.sockets[key] = socket._replace(
            bytes_acked=socket.bytes_acked + octets, bytes_received=socket.bytes_received + upload
        )

    def sweep(self, seconds: float = 1.0) -> set[int]:
        """Advance the clock and sample all sockets. Return the connections that need a new decision."""
        self.now += seconds
        self.clock += seconds
        stale = set(self.stage.advance(self.now, self.clock))
        self.stage.sockets.forget_unlisted(self.clock, lambda _: {socket.cookie for socket in self.sockets.values()})
        return stale | set(observe_all(self.stage, Samples(self.clock, dict(self.sockets), True)).changed)

    def close(self, token: int, report: bool = True) -> None:
        """Close the connection and its sockets. With *report*, the meter reports the sockets to the stage."""
        for subflow in self.connections.pop(token).subflows:
            socket = self.sockets.pop(subflow.four_tuple)
            if report:
                self.report(socket)
        self.stage.forget(token)

    def report(self, socket: KernelSubflow) -> None:
        addresses = socket.four_tuple.remote, socket.four_tuple.remote_port, socket.four_tuple.local_port
        self.stage.sockets.socket_closed(socket.cookie, addresses, socket.bytes_acked, socket.bytes_received)

    def total_used(self) -> dict[str, int]:
        """Return the bytes counted since the start for each budget, summed over clients and periods."""
        for account, octets in self.stage.sockets.take_pending().added.items():
            self.written[account] = self.written.get(account, 0) + octets
        found: dict[str, int] = {}
        for account, octets in self.written.items():
            found[account.budget] = found.get(account.budget, 0) + octets
        return found
