"""The experiments' arithmetic, and that each one that is listed can be loaded."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS, control_plane, goodput_judging
from mptcp_bench.experiments.aims import Aim, missed, payload_share
from mptcp_bench.experiments.datapath import within_rounds
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.transfer import Protocol

PROTOCOL = Protocol(requested=1, fallbacks=0, joins=1, proxy_requested=0)


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


def test_payload_of_a_full_packet() -> None:
    # 1500 less IP 20, TCP 20, timestamps 12, and the 28 bytes of a DSS option.
    assert payload_share(4, multipath=False) == 1448 / 1514
    assert payload_share(4, multipath=True) == 1420 / 1514
    assert payload_share(6, multipath=True) == 1400 / 1514


@pytest.mark.parametrize(
    ("value", "met"), [(0.94, False), (0.95, True), (1.0, True), (1.05, True), (1.06, False), (float("nan"), False)]
)
def test_an_aim_is_met_within_its_bounds(value: float, met: bool) -> None:
    aim = Aim("x", value, least=0.95, most=1.05)
    assert aim.met is met
    assert bool(missed([aim])) is not met


def test_ratios_compare_within_a_round() -> None:
    goodput = {"0 entries": [1.0, 2.0], "1,000 entries": [1.0, 1.0]}
    assert within_rounds(goodput, 1_000, 0) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        (replace(PROTOCOL, fallbacks=1), "fell back to plain TCP"),
        (replace(PROTOCOL, proxy_requested=1), "towards the origin"),
        (replace(PROTOCOL, requested=0), "asked for 0 MPTCP connections"),
        (replace(PROTOCOL, joins=0), "1 subflows instead of 2"),
    ],
)
def test_a_download_of_another_kind_is_void(protocol: Protocol, said: str) -> None:
    goodput_judging.check(goodput_judging.CELLS[0], PROTOCOL)
    with pytest.raises(TestbedError, match=said):
        goodput_judging.check(goodput_judging.CELLS[0], protocol)


def test_beyond_the_aimed_rate_nothing_is_asked_of_a_replay() -> None:
    slow = {"rate": 1000.0, "opened_less_sent": -1, "activated_less_sent": -1, "lost": 1, "dropped": 1, "cpu": 1.1}
    aimed = {**dict.fromkeys(slow, 0), "rate": 1000.0, "backend": "x", "asked": control_plane.AIM_RATE}
    assert missed(control_plane.judge([aimed, {**slow, "backend": "x", "asked": 1500}], ["x"])) == ()
