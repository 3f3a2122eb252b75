"""The experiments' arithmetic, and that each one that is listed can be loaded."""

from __future__ import annotations

import inspect

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS, control_plane
from mptcp_bench.experiments.announcement import announced_ports
from mptcp_bench.experiments.datapath import within_rounds
from mptcp_bench.experiments.goodput import CASES, Measurement, judge
from mptcp_bench.experiments.scene import Aim, differences, missed, payload_share
from mptcp_lab.testbed.transfer import Protocol
from mptcp_throttler.kernel.netlink import attribute

CAP = 5_000_000
PROTOCOL = Protocol(1, 0, 1, 0)


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


def test_only_dumps_that_changed_are_differences() -> None:
    assert differences({"tc": "a", "nft": "b"}, {"tc": "a", "nft": "c"}) == ["nft:\n--- before\nb\n--- after\nc"]


def test_ratios_compare_within_a_round() -> None:
    goodput = {"0 entries": [1.0, 2.0], "1,000 entries": [1.0, 1.0]}
    assert within_rounds(goodput, 1_000, 0) == [1.0, 0.5]


def test_goodput_counts_the_links_that_the_case_may_use() -> None:
    whole = {4: 130e6 * 1420 / 1514}
    case = CASES[0]
    [ratio, equal] = judge(case, [Measurement(case, whole[4], {}, True, PROTOCOL)], CAP)
    assert ratio.value == pytest.approx(1)
    assert ratio.met
    assert equal.met
    plain = CASES[-1]
    [ratio, equal] = judge(plain, [Measurement(plain, 0.94 * 100e6 * 1448 / 1514, {}, False, PROTOCOL)], CAP)
    assert ratio.value == pytest.approx(0.94)
    assert not ratio.met
    assert not equal.met


def test_the_worst_round_decides_about_a_cap() -> None:
    case = next(c for c in CASES if c.policy)
    rounds = [Measurement(case, 1.0, {"eth0": rate, "wlan0": 30e6}, True, PROTOCOL) for rate in (5e6, 4.7e6, 5.1e6)]
    assert [aim.met for aim in judge(case, rounds, CAP)] == [False, True, True]


REPLAYED = {"rate": 1000.0, "opened_less_sent": 0, "activated_less_sent": 0, "lost": 0, "dropped": 0, "cpu": 0.5}


def test_a_replay_without_loss_at_its_pace_meets_every_aim() -> None:
    assert missed(control_plane.judge("x", control_plane.AIM_RATE, REPLAYED)) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", 979.0),
        ("opened_less_sent", -1),
        ("opened_less_sent", 1),
        ("activated_less_sent", -1),
        ("activated_less_sent", 1),
        ("lost", 1),
        ("lost", -1),
        ("dropped", 1),
        ("cpu", 1.1),
    ],
)
def test_a_replay_too_slow_or_with_an_event_lost_or_invented_misses_an_aim(key: str, value: float) -> None:
    assert len(missed(control_plane.judge("x", control_plane.AIM_RATE, {**REPLAYED, key: value}))) == 1
    assert missed(control_plane.judge("x", control_plane.AIM_RATE + 1, {**REPLAYED, key: value})) == ()


def test_an_announced_element_names_its_client_port() -> None:
    def element(key: bytes) -> bytes:
        verdict = attribute(2, b"\0" * 8)
        return attribute(1, attribute(1, attribute(1, key)) + verdict)

    keys = [bytes([10, 77, 1, 2]) + port.to_bytes(2, "big") + bytes(2) + bytes(8) for port in (40_000, 40_001)]
    names = attribute(1, b"mptcp_throttler\0") + attribute(2, b"v4\0")
    body = bytes([1, 0, 0, 0]) + names + attribute(3, b"".join(map(element, keys)))
    assert announced_ports(body) == {40_000, 40_001}
    assert announced_ports(bytes([1, 0, 0, 0]) + names) == set()
