# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments goodput, datapath, reaction, control-plane and recovery."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import MBIT, Judge, Load, constant, series

from mptcp_bench.experiments import (
    control_plane_judging,
    datapath_judging,
    goodput_judging,
    reaction_judging,
    recovery_judging,
)
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.goodput_judging import CELLS, Cell, Measurement
from mptcp_bench.experiments.payload import payload_share
from mptcp_bench.experiments.recovery_judging import Observed
from mptcp_lab.testbed import TestbedError, system_state
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.system_state import State

CAP = 5 * MBIT
ROUNDS = 3


def capped(cell: Cell) -> bool:
    return cell.policy and cell.multipath and cell.subflows == 2


def measurement(
    cell: Cell,
    *,
    ethernet: float = 100,
    wifi: float = 30,
    cap: float | None = 5,
    wifi_cap: float | None = None,
    digest_ok: bool = True,
    fallback: bool = False,
) -> Measurement:
    """Return a download over links of *ethernet* and *wifi* Mbit/s, where the policy caps Ethernet."""
    if capped(cell):
        ethernet = ethernet if cap is None else min(ethernet, cap)
        wifi = wifi if wifi_cap is None else min(wifi, wifi_cap)
    if cell.subflows == 1 or not cell.multipath:
        wifi = 0
    steady = {"eth0": ethernet * MBIT, "wlan0": wifi * MBIT}
    payload = (ethernet + wifi) * MBIT * payload_share(cell.family, multipath=cell.multipath)
    protocol = Protocol(int(cell.multipath), int(fallback), (cell.subflows - 1) * cell.multipath, 0)
    if why := goodput_judging.void(cell, protocol):
        raise TestbedError(why)
    return Measurement(cell, 0.99 * payload, steady, digest_ok, protocol)


def goodput(rounds: int = ROUNDS, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge *rounds* rounds; the first one is changed by *change*."""

    def judged() -> Sequence[Aim]:
        measured = [measurement(cell, **(change if number == 0 else {})) for number in range(rounds) for cell in CELLS]
        return goodput_judging.judge(measured, ROUNDS, CAP)

    return judged


def goodput_always(**change: Any) -> Callable[[], Sequence[Aim]]:
    def judged() -> Sequence[Aim]:
        measured = [measurement(cell, **change) for _ in range(ROUNDS) for cell in CELLS]
        return goodput_judging.judge(measured, ROUNDS, CAP)

    return judged


def lone_capped() -> Sequence[Aim]:
    measured = [
        measurement(cell) if capped(cell) or not cell.policy else measurement(cell, ethernet=5)
        for _ in range(ROUNDS)
        for cell in CELLS
    ]
    return goodput_judging.judge(measured, ROUNDS, CAP)


GOODPUT = Judge(
    goodput(),
    {
        "dead throttler, in one round of three": goodput(cap=None),
        "the wrong path is capped": goodput(cap=None, wifi_cap=5),
        "both are": goodput(wifi_cap=5),
        "the cap is too low": goodput(cap=4.7),
        "second path unused": goodput_always(wifi=0),
        "links are not shaped": goodput_always(ethernet=1000, wifi=300),
        "a connection of one subflow, and one of plain TCP, is capped": lone_capped,
        "other bytes came": goodput(digest_ok=False),
        "fallback to TCP": goodput(fallback=True),
        "a round is missing": goodput(rounds=2),
        "nothing measured": goodput(rounds=0),
    },
    refused={
        "fallback to TCP": "GET, IPv4: the connection fell back to plain TCP",
    },
)


def entries(
    rounds: int = 30, carried: float = 1.0, *, noise: bool = False, **change: float
) -> Callable[[], Sequence[Aim]]:
    """Judge goodput in Gbit/s by number of entries; *change* changes it for some, *noise* adds about 40 %."""
    rates = {"nothing": 10.3, "0 entries": 10.0, "1,000 entries": 10.0, "50,000 entries": 10.0}
    rates |= {{"few": "1,000 entries", "many": "50,000 entries"}[name]: rate for name, rate in change.items()}
    found = {"nftables": {name: [rate] * rounds for name, rate in rates.items()}}
    if noise:
        found["nftables"] |= {name: [6.0, 14.0] * (rounds // 2) for name in ("1,000 entries", "50,000 entries")}
    return lambda: datapath_judging.judge(found, {"nftables": carried}, ["nftables"], 30)


DATAPATH = Judge(
    entries(),
    {
        "1,000 entries slow it down": entries(few=9.7),
        "50,000 entries do": entries(many=9.7),
        "1,000 entries slow it down by more than the margin": entries(few=9.4),
        "50,000 entries do so": entries(many=9.4),
        "noise hides what they do": entries(noise=True),
        "dead throttler: nothing of ours is in the way": entries(carried=0.0),
        "a quarter goes round the class": entries(carried=0.75),
        "the class is counted for longer than the device": entries(carried=1.36),
        "a round is missing": entries(rounds=29),
        "nothing measured": entries(rounds=0),
        "an adapter was not measured": lambda: datapath_judging.judge({}, {}, ["nftables"], 30),
    },
)


def reactions(
    count: int = 200,
    late: int = 50,
    delays: Sequence[float] = (),
    offered: Sequence[str] = ("iptables",),
) -> Callable[[], Sequence[Aim]]:
    """Judge joins, the first of which have these *delays* in ms."""
    measured = [*delays, *[1.5] * (200 - len(delays))][:count]
    samples = [
        {"delay_ms": delay, "gap_ms": 0.3, "age_ms": 400.0 if number < late else 20.0, "bytes": 3000.0}
        for number, delay in enumerate(measured)
    ]
    return lambda: reaction_judging.judge({"iptables": samples}, offered, 200)


REACTION = Judge(
    reactions(),
    {
        "dead throttler: no cap ever comes": reactions(delays=[math.inf] * 200),
        "one connection has none": reactions(delays=[math.inf]),
        "one was not joined": reactions(count=199),
        "none was": reactions(count=0),
        "one was capped before": reactions(delays=[-200.0]),
        "three are late": reactions(delays=[6.0] * 3),
        "none joined in mid-transfer": reactions(late=0),
        "an adapter was not measured": reactions(offered=("iptables", "nftables")),
    },
)

OPENED = {
    "backend": "x", "asked": control_plane_judging.AIM_RATE, "rate": control_plane_judging.AIM_RATE,
    "connections": 10_000, "joins": 10_000,
    "opened_less_made": 0, "activated_less_made": 0, "lost": 0, "events_lost": 0, "dropped": 0, "cpu": 0.5,
}  # fmt: skip


def opened(**change: float) -> Callable[[], Sequence[Aim]]:
    return lambda: control_plane_judging.judge([{**OPENED, **change}], ["x"])


CONTROL_PLANE = Judge(
    opened(),
    {
        "dead throttler": opened(opened_less_made=-10_000, activated_less_made=-20_000, lost=10_000, cpu=0),
        "the cap never comes": opened(lost=10_000),
        "second path unused": opened(joins=0),
        "fallback to TCP": opened(joins=0, opened_less_made=-10_000, activated_less_made=-10_000, lost=10_000),
        "too slow a client": opened(rate=0.979 * control_plane_judging.AIM_RATE),
        "some connections have no join": opened(joins=9_799),
        "a connection was missed": opened(opened_less_made=-1),
        "one was invented": opened(opened_less_made=1),
        "a subflow was missed": opened(activated_less_made=-1),
        "one was invented too": opened(activated_less_made=1),
        "an entry stayed": opened(lost=1),
        "entries of nobody": opened(lost=-1),
        "an event was lost": opened(events_lost=1),
        "a segment was dropped": opened(dropped=1),
        "more than a core": opened(cpu=1.1),
        "not at the rate aimed at": opened(asked=250, rate=250.0),
        "nothing was opened": opened(rate=0.0, connections=0, joins=0),
        "nothing measured": lambda: control_plane_judging.judge([], ["x"]),
    },
)

KILLED, RESTARTED, READY, END = 5.0, 7.0, 8.0, 12.0


ETHERNET, WIFI = constant(5), constant(30)
UNTOUCHED: State = {
    system_state.SYSCTLS: "net.mptcp.pm_type = 0",
    system_state.LINKS: "1: lo: <UP>\n2: wan0@if4: <UP>",
    system_state.QDISCS: "qdisc noqueue 0: dev wan0 root",
    system_state.CLASSES: "wan0:",
    "nft list ruleset": "",
    system_state.PROCESSES: "squid",
    system_state.BPF: "",
    system_state.FILES: "",
}
TOUCHED: State = {
    system_state.SYSCTLS: "net.mptcp.pm_type = 1\nnet.ipv4.conf.mptcp-up.forwarding = 1",
    system_state.LINKS: "1: lo: <UP>\n2: wan0@if4: <UP>\n3: mptcp-up: <UP>",
    system_state.QDISCS: "qdisc htb 4d50: dev wan0 root",
    system_state.CLASSES: "wan0:\nclass htb 4d50:10",
    "nft list ruleset": "table inet mptcp_throttler",
    system_state.PROCESSES: "mptcp-throttler run\nsquid",
    system_state.BPF: "mptcp-throttler run: anon_inode:bpf-map",
    system_state.FILES: "/run/mptcp-throttler/status.sock",
}
"""System state, by name of the dump, with the traces of a running throttler."""


MADE = recovery_judging.made(UNTOUCHED, TOUCHED)


def observed(ethernet: Load = ETHERNET, wifi: Load = WIFI, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge a run with a kill after 5 s and a restart after 7 s."""
    sound = Observed(
        "x", series({"eth0": ethernet, "wlan0": wifi}, END), KILLED, RESTARTED, READY - 0.3, READY, END,
        capped=1, made=MADE, fail_open=0.4, by_kill=(), by_restart=(), capped_at_stop=1, at_stop=(),
        after_stop=(), exit_code=0, capped_at_cleanup=1, at_cleanup=(),
    )  # fmt: skip
    return lambda: recovery_judging.judge(replace(sound, **change), CAP, 30 * MBIT)


def untouched(name: str) -> Callable[[], Sequence[Aim]]:
    """Judge a run in which the start changed nothing in the dump *name*."""
    return observed(made=recovery_judging.made(UNTOUCHED, TOUCHED | {name: UNTOUCHED[name]}))


def between(start: float, end: float, then: float, otherwise: float) -> Load:
    return lambda time: then if start <= time < end else otherwise


RECOVERY = Judge(
    observed(),
    {
        "dead throttler": observed(ethernet=constant(100), capped=0, made=recovery_judging.made(UNTOUCHED, UNTOUCHED)),
        "the wrong path is capped": observed(ethernet=constant(100), wifi=constant(5)),
        "second path unused": observed(wifi=constant(0)),
        "fallback to TCP": observed(ethernet=constant(100), wifi=constant(0)),
        "links are not shaped": observed(wifi=constant(300)),
        "the cap is too low": observed(ethernet=constant(4)),
        "the cap goes with the throttler": observed(ethernet=between(KILLED, RESTARTED, 100, 5)),
        "the cap never comes back": observed(ethernet=between(RESTARTED, END + 1, 100, 5), same=math.inf),
        "there is no cap for a moment": observed(ethernet=between(RESTARTED, RESTARTED + 0.5, 20, 5)),
        "nothing arrives for 0.4 s": observed(*(between(7.05, 7.45, 0, rate) for rate in (5, 30))),
        "slower afterwards": observed(wifi=between(READY, END + 1, 26, 30)),
        "nothing was capped": observed(capped=0),
        **{f"the start changes nothing of {name}": untouched(name) for name in UNTOUCHED},
        "the kill takes something away": observed(by_kill=("tc class",)),
        "the restart changes something": observed(by_restart=("tc class",)),
        "nobody puts the sysctls back": observed(fail_open=math.inf),
        "SIGTERM leaves a class": observed(at_stop=("tc -d class show",)),
        "SIGTERM leaves a keeper for ever": observed(after_stop=("processes",)),
        "nothing was capped at SIGTERM": observed(capped_at_stop=0),
        "cleanup leaves something": observed(at_cleanup=("sysctls",)),
        "nothing was capped at the second kill": observed(capped_at_cleanup=0),
        "it ends with an error": observed(exit_code=1),
        "it ends by a signal": observed(exit_code=-9),
        "it does not end": observed(exit_code=None),
        "nothing measured": observed(samples=()),
    },
    refused={
        "nothing measured": "no two samples between 3.00 s and 5.00 s",
    },
)
