# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that each listed experiment can be loaded, and that an unknown one is refused."""

from __future__ import annotations

import inspect

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_loads_and_takes_console_seed_quick_and_any_options(name: str) -> None:
    module = EXPERIMENTS[name].load()
    options = ["options"] if hasattr(module, "OPTIONS") else []
    assert list(inspect.signature(module.run).parameters) == ["console", "seed", "quick", *options]


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)


def test_an_unknown_experiment_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["run", "nothing"])
    assert refused.value.code == 2
    assert "goodput" in capsys.readouterr().err
