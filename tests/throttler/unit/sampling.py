# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated subflows and their sockets for tests of the stages. A test sets rate and backlog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow, TcpInfo
from mptcp_throttler.stages.stage import Action, Outcome, Samples, Stage

MBIT = 1_000_000
"""One Mbit/s, in bit/s."""
READ_AT_SAMPLE = -1.0
"""Time of reading for a socket that is read at the time of the sample."""
IDLE = TcpInfo(
    rtt=40_000,
    mss=1448,
    unacked=0,
    not_sent=0,
    pacing_rate=100 * MBIT,
    max_pacing_rate=None,
    delivery_rate=95 * MBIT,
    receive_window_limited=0,
)


def four_tuple(path: int, connection: int = 1, client: int = 77) -> FourTuple:
    return FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, client, path, 2)), 20_000 + connection)


@dataclass
class Flow:
    """A simulated subflow."""

    four_tuple: FourTuple
    capped: bool
    rate: float
    """Rate in bit/s."""
    waiting: int = 300_000
    """Bytes that wait in the send buffer."""
    unacked: int = 10
    """Segments in flight."""
    token: int = 1
    delivered: float = 0.0
    window_limited: int = 0

    def advance(self, seconds: float) -> None:
        self.delivered += self.rate / 8 * seconds

    @property
    def socket(self) -> KernelSubflow:
        tcp = IDLE
        if self.waiting or self.unacked or self.window_limited:
            limited = self.window_limited
            tcp = IDLE._replace(not_sent=self.waiting, unacked=self.unacked, receive_window_limited=limited)
        return KernelSubflow(
            self.token, self.four_tuple, True, 0, 0, False, READ_AT_SAMPLE, int(self.delivered), tcp=tcp
        )


def capped_flow(rate: float = 5 * MBIT, connection: int = 1) -> Flow:
    return Flow(four_tuple(1, connection), True, rate, token=connection)


def uncapped_flow(rate: float = 30 * MBIT, connection: int = 1) -> Flow:
    return Flow(four_tuple(2, connection), False, rate, token=connection)


def make_samples(now: float, sockets: Iterable[KernelSubflow], complete: bool = True) -> Samples:
    """Return samples of *sockets*. Those with `READ_AT_SAMPLE` are read at *now*."""
    read = [each._replace(read=now) if each.read == READ_AT_SAMPLE else each for each in sockets]
    return Samples(now, {each.four_tuple: each for each in read}, complete)


def connection_of(token: int, four_tuples: Iterable[FourTuple]) -> Connection:
    subflows = tuple(
        Subflow(each, index == 0, index, index, False, "eth0", 0.0) for index, each in enumerate(four_tuples)
    )
    return Connection(token, subflows, 0.0)


def observe_all(stage: Stage, samples: Samples) -> Outcome:
    """Process *samples* in *stage*, with all slices. Return the combined outcome."""
    changed: list[int] = []
    actions: list[Action] = []
    for outcome in stage.observe(samples):
        changed += outcome.changed
        actions += outcome.actions
    return Outcome(changed, actions)
