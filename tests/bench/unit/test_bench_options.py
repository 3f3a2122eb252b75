"""What can be set of experiments, and that a mistake is an error in words before anything is built."""

from __future__ import annotations

import pytest
from rich.console import Console

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.options import choice, count, refused
from mptcp_lab.testbed import TestbedError

WITH_RUNS = sorted({name for name, each in EXPERIMENTS.items() if "runs" in getattr(each.load(), "OPTIONS", {})})


@pytest.mark.parametrize("value", ["ten", "0", "-1", ""])
@pytest.mark.parametrize("name", [name for name in WITH_RUNS if name not in ("scale", "steering")])
def test_a_number_of_runs_that_makes_no_sense_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = EXPERIMENTS[name].load()
    if hasattr(module, "need"):
        monkeypatch.setattr(module, "need", lambda *_: None)
    with pytest.raises(TestbedError, match=f"run {name}: --set takes"):
        EXPERIMENTS[name].run(Console(quiet=True), 1, False, {"runs": value})


def test_a_choice_is_what_is_named_or_what_is_usual_or_all() -> None:
    assert choice({"x": "b,a"}, "x", ("a", "b", "c")) == ["b", "a"]
    assert choice({}, "x", ("a", "b")) == ["a", "b"]
    assert choice({}, "x", ("a", "b"), ["b"]) == ["b"]
    with pytest.raises(ValueError, match="no such x"):
        choice({"x": "d"}, "x", ("a",))


def test_a_count_is_above_nothing() -> None:
    assert (count({"runs": "3"}, "runs", 5), count({}, "runs", 5)) == (3, 5)
    for wrong in ("0", "x", "1.5"):
        with pytest.raises(ValueError, match=r"less than 1|invalid literal"):
            count({"runs": wrong}, "runs", 5)


def test_a_refusal_names_every_option() -> None:
    assert str(refused("x", {"a": "one", "b": "two"})) == "run x: --set takes a=… (one); b=… (two)"
