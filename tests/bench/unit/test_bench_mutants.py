"""No verdict that cannot fail: each aim of each experiment is missed by a mutant, and each mutant misses an aim."""

from __future__ import annotations

import pytest
from mutants import Verdict, missed
from mutants_of_caps import GUARD, ONSET_VERDICT, PAGES, STARVATION
from mutants_of_middleboxes import MIDDLEBOXES
from mutants_of_others import EMULATION, SCALE, STEERING
from mutants_of_overshoot import OVERSHOOT
from mutants_of_runs import CONTROL_PLANE, DATAPATH, GOODPUT, REACTION, RECOVERY

from mptcp_bench.experiments import EXPERIMENTS

VERDICTS: dict[str, Verdict] = {
    "control-plane": CONTROL_PLANE,
    "datapath": DATAPATH,
    "emulation": EMULATION,
    "goodput": GOODPUT,
    "guard": GUARD,
    "middleboxes": MIDDLEBOXES,
    "onset": ONSET_VERDICT,
    "overshoot": OVERSHOOT,
    "pages": PAGES,
    "reaction": REACTION,
    "recovery": RECOVERY,
    "scale": SCALE,
    "starvation": STARVATION,
    "steering": STEERING,
}


def test_every_experiment_has_mutants() -> None:
    assert sorted(VERDICTS) == sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_is_sound_misses_nothing(name: str) -> None:
    assert missed(VERDICTS[name].sound) == set()


@pytest.mark.parametrize(("name", "mutant"), [(name, m) for name, v in sorted(VERDICTS.items()) for m in v.mutants])
def test_each_mutant_misses_an_aim(name: str, mutant: str) -> None:
    assert missed(VERDICTS[name].mutants[mutant])


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_aim_is_missed_by_a_mutant(name: str) -> None:
    verdict = VERDICTS[name]
    aims = {aim.what for aim in verdict.sound() if aim.least is not None or aim.most is not None}
    found = set().union(*(missed(judged) for judged in verdict.mutants.values()))
    assert aims - found == set()
