# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment relay: the plan, the computed figures, and what makes a run void."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants_of_relay import RUNS, cell_of, measured, sound

from mptcp_bench.experiments import relay_bed, relay_load
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.peers import PEERS, Peer, PeerSetup
from mptcp_bench.experiments.relay import fitting, tasks_of
from mptcp_bench.experiments.relay_cells import (
    BASE,
    DIRECT,
    HELD,
    IN_OTHER,
    KEEPING,
    LIMIT,
    OURS,
    PROXIES,
    REBUILT,
    TASKS,
    Cell,
    Setting,
    applies,
    cells,
    plan_of,
)
from mptcp_bench.experiments.relay_judging import NAMES, Measured, Rounds, judge, ratios, spread, taken, void
from mptcp_bench.experiments.relay_memory import buffers, octets
from mptcp_bench.experiments.relay_results import tables
from mptcp_bench.statistics import percentile
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.commands import run

MULTIPATH = dict.fromkeys(PROXIES, True) | {DIRECT: False, "squid": False}


def test_there_is_a_proxy_for_each_name() -> None:
    assert [DIRECT, *PEERS] == list(PROXIES)


def test_usually_all_is_measured_and_one_setting_thoroughly() -> None:
    plan = plan_of({}, quick=False)
    assert plan.settings[0] == BASE
    assert [plan.tasks_of(setting) for setting in plan.settings[:2]] == [TASKS, IN_OTHER]
    assert set(plan.proxies) == set(PROXIES)
    assert plan_of({}, quick=True).settings == (BASE,)


def test_settings_are_combined() -> None:
    plan = plan_of({"offloads": "off,on", "family": "4,6"}, quick=False)
    assert len(plan.settings) == 4
    assert Setting(True, 6, "one") in plan.settings


def test_where_there_is_one_processor_the_proxy_has_none_to_itself() -> None:
    plan = plan_of({}, quick=False)
    assert fitting(plan, False, {0, 1}) == (plan, [])
    fits, left_out = fitting(plan, False, {0})
    assert fits.settings == tuple(each for each in plan.settings if not each.apart) != plan.settings
    assert left_out == ["processors=apart: this machine has one processor, and the proxy is to have its own"]
    assert fitting(plan_of({"family": "6"}, quick=False), False, {0})[1] == []
    with pytest.raises(TestbedError, match="this machine has one processor"):
        fitting(plan_of({"processors": "apart"}, quick=False), True, {0})


def test_links_may_be_the_bottleneck() -> None:
    (fast, slow) = plan_of({"links": "fast,slow"}, quick=False).settings
    assert (fast, fast.rates) == (BASE, (None, None))
    assert (str(slow), slow.rates) == (f"{BASE}, slow links", (200_000_000, 100_000_000))


def test_a_proxy_with_a_processor_to_itself_has_one_worker() -> None:
    plan = plan_of({"processors": "shared,apart", "workers": "one,all"}, quick=False)
    assert plan.settings == (BASE, Setting(apart=True), Setting(workers="all"))
    assert str(Setting(apart=True)) == "offloads off, IPv4, one worker, its own processor"
    with pytest.raises(OptionError, match=r"processors=apart: .*workers=one"):
        plan_of({"processors": "apart", "workers": "all"}, quick=False)


def test_what_is_compared_with_is_there_unasked() -> None:
    plan = plan_of({"proxies": "ours", "tasks": "latency", "clients": "mptcp2"}, quick=True)
    assert plan.proxies == (DIRECT, OURS)
    assert plan.tasks == ("requests", "latency")
    assert cells(plan, MULTIPATH) == [Cell(DIRECT, "tcp"), Cell(OURS, "mptcp2")]


@pytest.mark.parametrize(
    "options",
    [{"proxies": "varnish"}, {"clients": "udp"}, {"tasks": "post"}, {"offloads": "yes"}, {"family": "5"},
     {"workers": "2"}, {"processors": "two"}, {"links": "slow,slow"}, {"runs": "0"}, {"seconds": "-1"},
     {"hold": "none"}],
)  # fmt: skip
def test_what_there_is_not_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        plan_of(options, quick=False)


def test_a_proxy_without_multipath_is_measured_with_tcp_and_one_that_is_missing_not_at_all() -> None:
    found = cells(plan_of({}, quick=False), {name: there for name, there in MULTIPATH.items() if name != "nginx"})
    assert [cell.client for cell in found if cell.proxy == "squid"] == ["tcp"]
    assert [cell.client for cell in found if cell.proxy == LIMIT] == ["tcp", "mptcp1", "mptcp2"]
    assert not [cell for cell in found if cell.proxy == "nginx"]


def test_tunnels_are_left_out_where_a_proxy_has_none() -> None:
    assert not applies("connect", tunnels=False)
    assert not applies("idle-connect", tunnels=False)
    plan = plan_of({}, quick=False)
    assert tasks_of(plan, BASE, Cell("haproxy", "tcp")) == ["get", "requests", "latency", "idle-get", "busy"]
    assert tasks_of(plan, BASE, Cell(OURS, "tcp")) == list(TASKS)
    assert tasks_of(plan, BASE, Cell(DIRECT, "tcp")) == ["get", "requests", "latency"]


def test_what_is_not_installed_is_named_with_its_package(tmp_path: Path) -> None:
    there = str(tmp_path)
    assert Peer("x", "x-server", ("sh", there), lambda order: pytest.fail("started")).lacking() is None
    lacking = Peer("x", "x-server", ("sh", "x-not-there", f"{there}/y"), lambda order: pytest.fail("started")).lacking()
    assert lacking == f"x-not-there and {there}/y not installed (Debian's package x-server)"


def test_a_proxy_says_its_version_in_a_line() -> None:
    def never(setup: PeerSetup) -> NoReturn:
        pytest.fail("started")

    assert Peer("x", "x", (), never).version() == ""
    assert Peer("x", "x", (), never, asked=("printf", "x 1.2\\nmore\\n")).version() == "x 1.2"
    assert Peer("x", "x", (), never, asked=("sh", "-c", "echo x 1.2 >&2")).version() == "x 1.2"


def bucket(nanoseconds: int) -> int:
    """Return the bucket as native/relay_load.c computes it."""
    shift = 0
    while nanoseconds >> shift >= 64:
        shift += 1
    return shift * 32 + (nanoseconds >> shift)


@given(st.lists(st.integers(0, 10**11), min_size=1), st.sampled_from((0.1, 50, 90, 99, 100)))
def test_percentiles_of_a_histogram_are_those_of_its_values(values: list[int], percent: float) -> None:
    late = [0] * (60 * 32)
    for value in values:
        late[bucket(value)] += 1
    ordered = sorted(values)
    exact = ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
    (found,) = taken(late, (percent,))
    assert found * 1e9 == pytest.approx(exact, rel=1 / 32, abs=1)


def test_of_no_answers_there_is_no_percentile() -> None:
    assert taken([0, 0], (50,)) == (math.inf,)


def test_costs_are_for_a_gigabyte_for_a_request_or_for_a_connection() -> None:
    assert Measured(BASE, cell_of(OURS), "get", 0, 2.0, 1.0, octets=500_000_000).cost == 2.0
    assert Measured(BASE, cell_of(OURS), "requests", 0, 2.0, 1.0, octets=1, answers=10_000).cost == 100.0
    assert Measured(BASE, cell_of(OURS), "busy", 0, user=30_000, kernel=20_000).cost == 50.0
    assert Measured(BASE, cell_of(OURS), "get", 0, 2.0, 0.0).cost == math.inf


def test_a_cost_of_nothing_is_none() -> None:
    """Such a proxy's processes or memory were not seen; and without a proxy there are none."""
    seen = Measured(BASE, cell_of(OURS), "get", 0, 2.0, 0.0, octets=500_000_000)
    assert math.isnan(seen.cost)
    assert replace(seen, cell=cell_of(DIRECT)).cost == 0
    assert math.isnan(Measured(BASE, cell_of(OURS), "idle-get", 0, user=-9_000, kernel=2_000).cost)
    others = [replace(m, processor=0.0) if m.cell.proxy == "haproxy" else m for m in sound()]
    assert Rounds(others).best(BASE, "tcp", "get") == "squid"
    assert Rounds([m for m in others if m.cell.proxy != "squid"]).best(BASE, "tcp", "get") is None


@pytest.mark.parametrize("task", ["get", "connect", "requests"])
def test_a_proxy_whose_processor_time_was_not_seen_is_no_better_than_its_peers(task: str) -> None:
    unseen = [replace(m, processor=0.0) if m.cell.proxy == OURS else m for m in sound() if m.cell.client == "tcp"]
    missed = [aim.what for aim in judge(Rounds(unseen), (), 0) if not aim.met]
    assert f"{NAMES[task]}, × the best peer, upper bound" in missed


def test_a_tunnel_is_compared_with_a_plain_download() -> None:
    rounds = Rounds(sound())
    assert rounds.of_direct(BASE, cell_of(OURS), "connect") == pytest.approx([0.97] * RUNS)


def test_the_best_peer_is_the_one_with_the_least_median() -> None:
    rounds = Rounds(sound())
    assert rounds.best(BASE, "tcp", "get") == "haproxy"
    assert rounds.best(BASE, "mptcp1", "get") is None
    assert rounds.best(Setting(family=6), "tcp", "get") is None


def test_rounds_are_compared_with_their_own() -> None:
    assert ratios({0: 1.0, 2: 3.0, 3: 1.0}, {0: 2.0, 1: 5.0, 2: 3.0, 3: 0.0}) == (0.5, 1.0)


def test_a_round_in_which_nothing_came_through_the_peer_does_not_count_for_us() -> None:
    assert ratios({0: 1.2, 1: 1.2, 2: math.inf}, {0: 1.0, 1: math.inf, 2: 1.0}) == (1.2, math.inf)
    assert ratios({0: math.inf}, {0: math.inf}) == ()


def test_other_settings_are_not_judged() -> None:
    dear = [measured(cell_of(proxy), "get", 0, Setting(offloads=True)) for proxy in (OURS, "haproxy", DIRECT)]
    aims = judge(Rounds(dear), (), 1)
    assert [aim.what for aim in aims if aim.wanted] == [
        "rounds of everything",
        "our answers that were wrong or broken off",
    ]


def test_the_setting_that_comes_first_is_judged() -> None:
    apart = Setting(apart=True)
    measured_so = [replace(m, setting=apart) for m in sound()]
    planned = [(apart, m.cell, m.task) for m in measured_so]
    assert [aim.what for aim in judge(Rounds(measured_so), planned, RUNS)] == [
        aim.what for aim in judge(Rounds(sound()), [(BASE, m.cell, m.task) for m in sound()], RUNS)
    ]
    assert [aim.what for aim in judge(Rounds(sound()), planned, RUNS) if "direct" in aim.what] == []


@pytest.mark.parametrize(
    ("client", "capable", "joins", "message"),
    [
        ("tcp", 1, 0, "ours, tcp: 1 connections were Multipath TCP"),
        ("mptcp1", 9, 0, "ours, mptcp1: 9 of 10 connections were Multipath TCP"),
        ("mptcp1", 10, 1, "ours, mptcp1: 1 second subflows"),
        ("mptcp2", 10, 9, "ours, mptcp2: 9 of 10 connections had a second subflow"),
    ],
)
def test_other_clients_than_were_asked_for_make_it_void(client: str, capable: int, joins: int, message: str) -> None:
    assert void(cell_of(OURS, client), 10, capable, joins) == message


@pytest.mark.parametrize(("client", "capable", "joins"), [("tcp", 0, 0), ("mptcp1", 11, 0), ("mptcp2", 12, 12)])
def test_the_clients_that_were_asked_for_are_taken(client: str, capable: int, joins: int) -> None:
    assert void(cell_of(OURS, client), 10, capable, joins) is None


def test_memory_is_read_as_the_kernel_writes_it() -> None:
    assert octets("Rss:  9 kB\nPss:      12 kB\nPss_Dirty:  3 kB\n", "Pss") == 12 * 1024
    assert octets("MemTotal: 1 kB\nSlab:    200 kB\nSReclaimable: 3 kB\n", "Slab") == 200 * 1024
    for text in ("", "MemTotal: 1 kB\n"):
        with pytest.raises(ValueError, match="Slab"):
            octets(text, "Slab")
    line = "ESTAB 0 0 10.77.8.2:3128 10.77.1.2:4\n\t skmem:(r1000,rb131072,t7,tb87040,f20,w3,o0,bl0,d0)\n"
    assert buffers(2 * line) == 2 * 1023
    # Defect: a socket whose forward allocation was 20 bytes below zero counted as 4 GB.
    assert buffers(line.replace("f20", f"f{2**32 - 20}")) == 983


@given(st.text())
def test_what_is_no_listing_of_sockets_holds_nothing(text: str) -> None:
    assert buffers(text.replace("skmem", "")) == 0


def test_each_setting_has_its_tables_and_each_proxy_its_row() -> None:
    other = measured(cell_of(OURS), "get", 0, Setting(family=6))
    found = tables(Rounds([*reversed(list(sound())), other]), seed=1)
    titles = [str(table.title).partition(":")[0] for table in found]
    assert titles == ["Cost", "Memory of a connection in kB", "Cost"]
    assert [table.row_count for table in found] == [8, 7, 1]
    assert list(found[0].columns[0].cells) == [DIRECT, OURS, OURS, OURS, KEEPING, REBUILT, "squid", "haproxy"]
    assert list(found[0].columns[2].cells)[-1] == "1.00 (1.00 to 1.00)"
    assert set(HELD) == {"idle-get", "idle-connect", "busy"}
    assert percentile([m.cost for m in sound() if m.cell == cell_of(OURS) and m.task == "get"], 50) < 1


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert spread([-0.3, 0.0, -0.4], 0, random.Random(1)) == "0 (0 to 0)"
    assert spread([-0.004], 2, random.Random(1)) == "0.00"


def test_clients_that_do_not_come_to_stand_say_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the counters, the clients' first complaint, and the ends of the proxy's logs."""
    monkeypatch.setattr(relay_bed, "PATIENCE", 0.0)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "error.log").write_text("early\n" * 9 + "no origin\n")
    counters = struct.pack(f"={7 + relay_load.BUCKETS}Q", 5, 6, 7, 8, 1, 2, 0, *[0] * relay_load.BUCKETS)
    clients, proxy = Mock(running=True), Mock()
    clients.output.return_value = "ready\nanother answer than 200, after: HTTP/1.1 502 Bad Gateway\n"
    proxy.tail.return_value = "\n    it was asked"
    host = Mock(run=run)
    bed = relay_bed.Bed({"proxy": host}, BASE, 1.0, 0, Mock(), logs=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TestbedError) as raised:
        bed.wait(relay_load.Load(clients, counters), proxy, lambda seen: seen.standing == 4, "4 connections stand")
    assert str(raised.value) == (
        "4 connections stand: not within 0 s; 2 stand, 1 rest, 8 were opened, 6 answers, 7 failures: "
        "another answer than 200, after: HTTP/1.1 502 Bad Gateway\n    it was asked"
        f"\n    ==> {tmp_path}/log/error.log <=="
        + "\n    early" * 4 + "\n    no origin"
    )  # fmt: skip
