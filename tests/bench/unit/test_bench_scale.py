# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``scale``: its aims, its readings, and that dead or wrong results never pass."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mutants_of_console import in_phases
from mutants_of_scale import ASKED, NONE, REACTIONS, held, rig

from mptcp_bench.experiments import scale
from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.console_load_judging import BEFORE
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.scale import plan, shown, window
from mptcp_bench.experiments.scale_crowd import NODE, TRICKLE, sockets, with_crowd
from mptcp_bench.experiments.scale_judging import Held, Rig, judge, judge_soft, nothing, table
from mptcp_bench.experiments.scale_policy import CAPPED, FULL, UNCAPPED
from mptcp_bench.result_file import finite
from mptcp_lab.testbed import TWO_PATHS
from mptcp_lab.testbed.plan import steps
from mptcp_throttler.policy.load import load_policy


def verdict(*found: Held, rigs: tuple[Rig, ...] | None = None, none: tuple[float, ...] = NONE) -> tuple[str, ...]:
    stood = rigs or tuple(rig(each.tunnels) for each in found)
    return missed(judge(stood, none, found, REACTIONS, ASKED))


def test_a_throttler_that_holds_meets_every_aim() -> None:
    assert verdict(held(100), held(1_000), held(10_000)) == ()


def test_a_dead_throttler_misses_aims_and_says_so_in_json() -> None:
    dead = nothing(1_000)
    assert len(verdict(dead)) > 10
    # A missing value must not pass because the base to compare with is missing, too.
    assert verdict(dead, none=())
    assert finite({"reload": dead.reload, "more": (math.nan, 1.0, True)}) == {"reload": None, "more": [None, 1.0, True]}
    json.dumps(finite([dead.reload]), allow_nan=False)


def test_what_grows_more_than_twelvefold_from_a_tenth_misses_though_it_is_soon_enough() -> None:
    few, many = replace(held(1_000), reload=0.1), replace(held(10_000), reload=1.3)
    assert [text.partition(": ")[2].partition(":")[0] for text in verdict(few, many)] == ["reload, growth from a tenth"]
    assert verdict(few, replace(many, reload=1.1)) == ()


def test_without_a_throttler_the_crowd_alone_is_judged() -> None:
    aims = judge([rig(100)], (), (), REACTIONS, ASKED)
    assert not missed(aims)
    assert {aim.what.partition(":")[0] for aim in aims} == {"100 held"}


@pytest.mark.parametrize(("kept", "met"), [((0.99, 0.95), True), ((0.99, 0.9), False), ((), False)])
def test_the_other_path_is_to_keep_its_rate_beside_a_crowd(kept: tuple[float, ...], met: bool) -> None:
    assert bool(missed(judge_soft(5_000, (1.0,), kept))) is not met
    assert judge_soft(0, (), ()) == []


def test_the_table_has_a_column_for_each_number_in_order() -> None:
    found = table("x", judge([rig(1_000), rig(100)], NONE, [held(1_000), held(100)], REACTIONS, ASKED))
    assert [column.header for column in found.columns] == ["figure", "aim", "0 held", "100 held", "1,000 held"]


SS = (
    "0 0 [::ffff:10.77.8.2]:3128 [::ffff:10.77.3.2]:10001\n\t bbr pacing_rate 20bps/1000000bps delivery_rate 1bps"
    " tcp-ulp-mptcp flags:Mec token:0000(id:0)/b9c1(id:0) seq:1 sfseq:1 ssnoff:1 maplen:0\n"
    "0 0 [::ffff:10.77.8.2]:3128 [::ffff:10.77.4.2]:39933\n\t bbr pacing_rate 20bps"
    " tcp-ulp-mptcp flags:Jjec token:44aa(id:2)/b9c1(id:2) seq:1 sfseq:1 ssnoff:1 maplen:0\n"
    "0 0 [::ffff:10.77.8.2]:3128 [::ffff:10.77.3.2]:10003\n\t bbr pacing_rate 20bps"
    " tcp-ulp-mptcp flags:Mec token:0000(id:0)/77d2(id:0) seq:1 sfseq:1 ssnoff:1 maplen:0\n"
)


def test_connections_with_two_subflows_are_recognised_by_the_proxys_token() -> None:
    assert sockets(SS) == (1, 1)
    assert sockets("") == (0, 0)


def connection(*remotes: str) -> dict[str, Any]:
    return {"subflows": [{"remote": remote} for remote in remotes]}


def test_status_shows_a_tunnel_only_with_two_subflows_of_the_crowd() -> None:
    both = connection("10.77.3.2:10001", "10.77.4.2:39933")
    assert shown({"connections": [both, both]}) == 2
    assert shown({"connections": [connection("10.77.3.2:1")]}) == 0
    assert shown({"connections": [connection("10.77.1.2:1", "10.77.2.2:2")]}) == 0
    assert shown({"connections": []}) == shown({}) == 0


@pytest.mark.parametrize("caps", [UNCAPPED, CAPPED, FULL])
def test_the_policies_are_accepted(caps: Any) -> None:
    policy = load_policy(caps.text(), "policy.yaml")
    assert [rule.name for rule in policy.rules] == [
        *(["client"] if caps.client else []),
        *(["crowd"] if caps.crowd else []),
        *(["volume"] if caps.budget else []),
    ]


def test_the_crowd_has_two_paths_of_its_own_and_leaves_the_client_as_it_was() -> None:
    crowded = with_crowd(TWO_PATHS)
    assert crowded.devices(NODE) == ("eth0", "wlan0")
    assert [endpoint.address for endpoint in crowded.node(NODE).endpoints] == ["10.77.3.2", "10.77.4.2"]
    assert crowded.node("client") == TWO_PATHS.node("client")
    assert steps(crowded, {node.name: node.name for node in crowded.nodes})


@pytest.mark.parametrize(
    "options",
    [{"n": "100,10"}, {"n": "x"}, {"n": "0"}, {"seconds": "0"}, {"reactions": "1"}, {"throttler": "perhaps"}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(OptionError, match=f"^--set {name}={value}: allowed "):
        plan(options, quick=False)


def test_quick_is_less_of_everything() -> None:
    full, quick = plan({}, quick=False), plan({}, quick=True)
    assert full.numbers == (100, 1_000, 10_000)
    assert max(quick.numbers) < 1_000
    assert quick.reactions < full.reactions
    assert plan({"n": "7", "throttler": "no"}, quick=False).throttler is False


@pytest.mark.parametrize(("standing", "met"), [(10, True), (0, False)])
def test_tunnels_that_are_all_gone_are_a_missed_aim(monkeypatch: pytest.MonkeyPatch, standing: int, met: bool) -> None:
    """Defect: with no tunnel left, a share was divided by zero, and all measurements were lost."""
    clock = iter((0.0, 10.0))
    octets = itertools.count(0, standing * TRICKLE * 5)
    monkeypatch.setattr(scale, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    crowd: Any = SimpleNamespace(
        client=SimpleNamespace(read=lambda: SimpleNamespace(standing=standing, octets=next(octets))),
        processor_seconds=lambda: {"proxy": 0.0, "client": 0.0, "origin": 0.0},
    )
    trickled = window(crowd, None, 10.0).trickled
    aims = judge([replace(rig(100), alone=replace(rig(100).alone, trickled=trickled))], (), (), REACTIONS, ASKED)
    assert [aim.what for aim in aims if not aim.met] == ([] if met else ["100 held: trickled, of what it should"])
    in_console = [aim for aim in in_phases(BEFORE, trickled=trickled)() if not aim.met]
    assert [aim.what for aim in in_console] == ([] if met else [f"{BEFORE}: trickled, of what it should"])
