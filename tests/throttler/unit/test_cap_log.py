# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the log of caps that were set, lifted or ended, in force or in a dry run."""

from __future__ import annotations

from test_shaping_plan import rule, uncapped, verdict

from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.logs import CapLog
from mptcp_throttler.telemetry.decision import Comparer
from mptcp_throttler.telemetry.traffic import Traffic

RULE = rule("m")


class Scene:
    """A log, and the latest verdicts about each connection."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.traffic = Traffic(lambda: 0.0, lambda: 0.0)
        self.log = CapLog(self.traffic.count_capped)
        self.comparer = Comparer()
        self.verdicts: dict[int, tuple[Verdict, ...]] = {}

    def decide(self, *tokens: int, capped: bool = True, ended: bool = False) -> list[str]:
        """Decide about two subflows of each connection. Return the resulting lines."""
        for token in tokens:
            numbers = (10 * token, 10 * token + 1)
            self.apply(
                token, *([] if ended else [verdict(each, RULE) if capped else uncapped(each, RULE) for each in numbers])
            )
        return [line for line, _ in self.log.lines()]

    def apply(self, token: int, *after: Verdict) -> None:
        before = self.verdicts.get(token, ())
        decision = self.comparer.compare(token, None, before, after, 0.0, is_dry=self.dry)
        self.traffic.record_decision(decision)
        self.log.record_decision(decision)
        self.verdicts[token] = after


def test_caps_reported_by_a_dry_run_are_logged_when_it_ends() -> None:
    """Defect: the log reported the subflows as capped during the dry run, but not when they were capped."""
    scene = Scene(dry=True)
    assert scene.decide(1, 2, 3) == ["rule m: 6 would be capped; 6 subflows would be capped now (dry run)"]
    assert scene.decide(1, 2, 3) == []
    assert scene.decide(3, ended=True) == ["rule m: 2 ended; 4 subflows would be capped now (dry run)"]
    scene.dry = False
    assert scene.decide(1, 2) == ["rule m: 4 capped; 4 subflows capped now"]
    assert scene.decide(1, 2) == []
    assert scene.decide(1, 2, ended=True) == ["rule m: 4 ended; 0 subflows capped now"]


def test_lifted_caps_are_logged_when_a_dry_run_begins() -> None:
    scene = Scene(dry=False)
    assert scene.decide(1, 2) == ["rule m: 4 capped; 4 subflows capped now"]
    scene.dry = True
    assert scene.decide(1, 2) == [
        "rule m: 4 lifted; 0 subflows capped now",
        "rule m: 4 would be capped; 4 subflows would be capped now (dry run)",
    ]
    assert scene.decide(1, capped=False) == ["rule m: 2 no longer; 2 subflows would be capped now (dry run)"]
    scene.dry = False
    assert scene.decide(1, capped=False) == []
    assert scene.decide(2, capped=False) == [], "the log reports subflows that had no cap"
    assert scene.decide(1) == ["rule m: 2 capped; 2 subflows capped now"]
    scene.dry = True
    assert scene.decide(1, ended=True) == ["rule m: 2 ended; 0 subflows capped now"]
    assert scene.decide(3) == ["rule m: 2 would be capped; 2 subflows would be capped now (dry run)"]
    assert scene.decide(3, ended=True) == ["rule m: 2 ended; 0 subflows would be capped now (dry run)"]
    assert scene.comparer._dry_tokens == set()


def test_lines_about_single_subflows_name_the_dry_run() -> None:
    scene = Scene(dry=True)
    capped = verdict(1, RULE)._replace(reason="would cap (dry run)")
    none = uncapped(1, RULE)._replace(reason="no rule")

    def line_about(*after: Verdict) -> str:
        scene.apply(1, *after)
        ((line, _),) = scene.log.lines()
        return line.partition(": ")[2]

    assert line_about(capped) == "would cap (dry run)"
    assert line_about(none) == "would no longer be capped (dry run): no rule"
    line_about(capped)
    assert line_about() == "ended (dry run)"
