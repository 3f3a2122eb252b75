# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo's verdict: product errors fail on any machine, missed rates only if the machine had time."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from demo_parts import (
    BURNT,
    BUSY,
    CAP,
    FREE,
    IDLE,
    MPTCP,
    MUTANTS,
    PARTS,
    PLAIN,
    POLICY,
    SLOW,
    Mutant,
    good,
    with_rates,
)
from mutants import series

from mptcp_bench.demo import judging
from mptcp_bench.demo.judging import Measured, Outcome, Verdict, judge, perform
from mptcp_bench.demo.parts import PAYLOAD_SHARE, Part
from mptcp_bench.demo.steady import steady
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol


@pytest.mark.parametrize("processors", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_download_as_it_should_be(part: Part, processors: Usage) -> None:
    outcome = judge(replace(good(part), processors=processors), PLAIN)
    assert (outcome.complaints, outcome.failed, outcome.busy) == ((), False, False)


@pytest.mark.parametrize("processors", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_what_the_product_does_wrong_fails_on_any_machine(mutant: Mutant, processors: Usage) -> None:
    outcome = judge(mutant.broken(replace(good(mutant.part), processors=processors)), PLAIN)
    assert re.search(mutant.said, outcome.wrong[0])
    assert outcome.failed
    assert Verdict([outcome]).failure == f"not as it should be: {mutant.part.title} (see above)"


@pytest.mark.parametrize("mutant", SLOW.values(), ids=SLOW)
def test_what_was_missed_fails_unless_the_machine_was_busy(mutant: Mutant) -> None:
    slow = mutant.broken(good(mutant.part))
    outcome = judge(slow, PLAIN)
    (said,) = outcome.missed
    assert re.search(mutant.said, said)
    assert outcome.failed
    outcome = judge(replace(slow, processors=BUSY), PLAIN)
    assert outcome.busy
    assert not outcome.failed
    verdict = Verdict([outcome])
    assert verdict.failure is None
    assert verdict.warning is not None
    assert f"too busy to judge: {mutant.part.title} (processors idle 0%" in verdict.warning


@pytest.mark.parametrize("mutant", SLOW.values(), ids=SLOW)
def test_what_was_missed_fails_where_the_proxy_burns_both_processors(mutant: Mutant) -> None:
    outcome = judge(mutant.broken(replace(good(mutant.part), processors=BURNT)), PLAIN)
    assert outcome.failed
    assert not outcome.busy
    assert Verdict([outcome]).failure == f"not as it should be: {mutant.part.title} (see above)"


FILLED, HALF = (98.0, 29.0), (49.0, 14.5)
"""Mbit/s of the links on a machine with enough processor time, and on one with half of that."""


def with_cap_after(seconds: float | None, links: tuple[float, float]) -> Measured:
    """Return the measurement of the capped download over *links*. The cap comes after *seconds*, or never if None."""
    wire = 8 * POLICY.size / PAYLOAD_SHARE
    free, capped = sum(links) * 1e6, CAP + links[1] * 1e6
    before = wire / free if seconds is None else min(seconds, wire / free)
    ended = before + (wire - before * free) / capped
    rates = {"eth0": lambda t: links[0] if t < before else CAP / 1e6, "wlan0": lambda _: links[1]}
    found = steady(POLICY, series(rates, ended + 1, 0.05), 0.0, ended)
    return replace(
        good(POLICY),
        end=ended,
        steady=found.rates,
        steady_seconds=found.seconds,
        closing=found.closing,
        processors=IDLE,
    )


@pytest.mark.parametrize(
    ("after", "links", "complaint"),
    [
        (0.1, FILLED, None),
        (3.5, FILLED, None),
        (3.75, FILLED, "late"),
        (4.0, FILLED, "wrong"),
        (None, FILLED, "wrong"),
        (4.0, HALF, None),
        (7.0, HALF, "late"),
        (8.5, HALF, "wrong"),
        (None, HALF, "wrong"),
    ],
)
def test_a_cap_is_late_as_long_as_the_file_lasts(
    after: float | None, links: tuple[float, float], complaint: str | None
) -> None:
    """Over filled links the download ends about 4 s after its start."""
    outcome = judge(with_cap_after(after, links), {"eth0": links[0] * 1e6, "wlan0": links[1] * 1e6})
    if complaint is None:
        assert not outcome.complaints
    elif complaint == "late":
        (said,) = outcome.complaints
        assert outcome.missed == (said,)
        assert said.endswith("it came late, and was kept to in the last 2 s")
    else:
        (said,) = outcome.wrong
        assert said.endswith("its cap allows 5")


def complaints() -> set[tuple[str, int]]:
    """Return the places where the judge complains: function and line of each ``append`` and each returned text."""
    found = set()
    for judges in (judging.judge, judging._fault, Protocol.complaint):
        source, first = inspect.getsourcelines(judges)
        for node in ast.walk(ast.parse(textwrap.dedent("".join(source)))):
            said = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
            returned = isinstance(node, ast.Return) and judges is not judging.judge
            if said or (returned and ast.unparse(node) != "return None"):
                assert isinstance(node, ast.expr | ast.stmt)
                found.add((judges.__name__, first + node.lineno - 1))
    return found


def test_every_complaint_has_a_mutant() -> None:
    reached: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        reached.add((frame.f_code.co_name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    for mutant in (*MUTANTS.values(), *SLOW.values()):
        measured = mutant.broken(good(mutant.part))
        sys.settrace(trace)
        try:
            judge(measured, PLAIN)
        finally:
            sys.settrace(before)
    assert complaints(), "the judge complains of nothing"
    assert complaints() - reached == set()


def test_links_are_what_plain_tcp_got_over_them() -> None:
    """On one machine Ethernet carried 91.0 and 92.4 Mbit/s, and the demo failed."""
    for rate in (91.0e6, 92.4e6):
        assert not judge(with_rates(good(FREE), eth0=rate), PLAIN).complaints
    assert judge(with_rates(good(FREE), eth0=75e6), PLAIN).failed
    assert not judge(with_rates(good(FREE), eth0=75e6), {**PLAIN, "eth0": 85e6}).complaints


def performed(*series: Measured) -> Verdict:
    """Return the verdict on parts with the measurements *series*, all of which must be used."""
    each = iter(series)
    said: list[Outcome] = []
    parts = list(dict.fromkeys(m.part.key for m in series))
    verdict = perform([PARTS[key] for key in parts], lambda part: next(each), said.append)
    assert said == verdict.outcomes
    assert next(each, None) is None
    return verdict


@pytest.mark.parametrize("processors", [IDLE, BURNT, BUSY], ids=["idle", "burnt", "busy"])
def test_what_was_missed_is_repeated_once(processors: Usage) -> None:
    slow = replace(with_rates(good(FREE), eth0=40e6), processors=processors)
    better = performed(slow, good(FREE))
    assert (better.failure, better.warning, len(better.outcomes), len(better.final)) == (None, None, 2, 1)
    still = performed(slow, replace(slow, processors=BUSY))
    assert still.failure is None
    assert still.warning is not None
    # In the second attempt the machine had enough time, but the rate was still too low.
    assert performed(slow, replace(slow, processors=IDLE)).failure is not None


@pytest.mark.parametrize("mutant", [SLOW["late cap"], SLOW["no end"], SLOW["no end, capped"]])
def test_a_late_cap_and_a_download_without_end_are_repeated_once(mutant: Mutant) -> None:
    missed = mutant.broken(replace(good(mutant.part), processors=BUSY))
    assert performed(missed, good(mutant.part)).warning is None
    again = performed(missed, missed)
    assert again.failure is None
    assert again.warning is not None
    # In the second attempt the machine had enough time, or a fault appeared that fails on any machine.
    assert performed(missed, replace(missed, processors=IDLE)).failure is not None
    assert performed(missed, replace(missed, processors=BURNT)).failure is not None
    assert performed(missed, replace(missed, protocol=replace(MPTCP, fallbacks=1))).failure is not None


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_what_the_product_does_wrong_is_not_repeated_however_busy_the_machine(mutant: Mutant) -> None:
    assert performed(mutant.broken(replace(good(mutant.part), processors=BUSY))).failure is not None


def test_nothing_else_is_repeated() -> None:
    assert performed(replace(good(FREE), processors=BUSY)).warning is None
    both = replace(with_rates(good(POLICY), eth0=97e6, wlan0=5e6), processors=BUSY)
    assert performed(both).failure is not None


def test_one_part_that_is_wrong_is_not_hidden_by_one_that_was_slow() -> None:
    slow = replace(with_rates(good(FREE), eth0=40e6), processors=BUSY)
    verdict = performed(slow, slow, with_rates(good(POLICY), eth0=97e6))
    assert verdict.failure == "not as it should be: MPTCP through the proxy + policy (see above)"
    assert verdict.warning is not None


def test_plain_tcp_of_the_same_run_is_the_measure() -> None:
    plain = [good(PARTS["tcp-ethernet"]), good(PARTS["tcp-wifi"])]
    verdict = performed(*plain, good(FREE))
    assert verdict.outcomes[-1].expected == PLAIN
    slow = replace(with_rates(plain[0], eth0=50e6), processors=BUSY)
    verdict = performed(slow, slow, plain[1], with_rates(good(FREE), eth0=47e6))
    assert verdict.outcomes[-1].expected == {**PLAIN, "eth0": 50e6}
    assert not verdict.outcomes[-1].complaints
