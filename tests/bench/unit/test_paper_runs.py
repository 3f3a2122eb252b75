# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's runs: plan, settings, downloads that are not data points, a run's numbers, an early end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import Load, constant, series
from paper_mutants import DIGEST
from paper_mutants import PAPER as PAPERS_WORLD

from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments.parameters import OptionError
from mptcp_bench.experiments.parameters import settings as parse
from mptcp_bench.paper import PAPER, figures
from mptcp_bench.paper.downloads import check
from mptcp_bench.paper.measurements import Download, Trial, measured
from mptcp_bench.paper.settings import Settings, parse_loss, parse_time
from mptcp_bench.result_file import FILE, load
from mptcp_lab.agent.processors import Usage
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import TooFewSamples
from mptcp_lab.testbed.transfer import Observation

CAP = 5_000_000
THROUGH = Trial("mptcp", "through the proxy", 10_000_000)
ALONE = Trial("tcp-wifi", "alone", 10_000_000, path="wifi")
SEEN = PAPERS_WORLD.observe(THROUGH, Random(1), 0.1)
FELL_BACK = {**SEEN.counters, "MPTcpExtMPCapableFallbackSYNACK": 1}
USED = (Usage(0.0, 0.5, None, least_idle=0.2), Usage(0.0, 0.4, None, least_idle=0.3))
"""Processor usage of client and proxy."""
RTTS = {"ethernet": 0.002, "wifi": 0.013}


def seen(ethernet: Load, wifi: Load, seconds: float, interval: float = 0.1, **changes: Any) -> Observation:
    """Return an observation of paths with these loads. The download ends 0.3 s before the samples."""
    samples = tuple(series({"ethernet": ethernet, "wifi": wifi}, seconds + 0.3, interval))
    return replace(SEEN, ended=seconds, octets=10_000_000, joined=0.1, samples=samples, **changes)


def settings(options: dict[str, str]) -> Settings:
    return parse(Settings, options, quick=False)


@pytest.mark.parametrize("key", PAPER)
def test_order_is_drawn_from_the_seed_and_a_short_run_is_smaller(key: str) -> None:
    scenario = PAPER[key].load()

    def order(seed: int, **options: str) -> list[Any]:
        return [turn.cell for turn in scenario.plan(settings(options), seed)]

    assert order(1) == order(1)
    assert (len({tuple(order(seed)) for seed in range(5)}) == 1) is (key == "fig6")
    assert len(order(1, short="yes")) < len(order(1))
    assert set(Counter(order(1, repetitions="7")).values()) == {7}
    if key == "fig4":
        assert len(set(order(1, short="yes"))) == 6
        assert max(trial.size for trial in order(1, short="yes")) < max(trial.size for trial in order(1))


@pytest.mark.parametrize(
    ("trial", "change", "message"),
    [
        (ALONE, {}, ""),
        (THROUGH, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}}, "sent 1 SYN with MP_CAPABLE towards the origin"),
        # To the client, a refused join looks established.
        (THROUGH, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH, {"counters": {}}, "requested 0 Multipath TCP connections"),
        (ALONE, {"status": 4}, "ended with 4"),
        (THROUGH, {"sha256": "other"}, "SHA-256"),
        (THROUGH, {"status": -9, "timed_out": True}, "no end after"),
    ],
)
def test_download_is_not_a_data_point_if_it_is_not_of_the_wanted_kind(
    trial: Trial, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(TestbedError, match=message) if message else nullcontext():
        check(trial, replace(SEEN, **change), DIGEST)


def until(seconds: float, rate: float, then: float) -> Load:
    return lambda time: rate if time < seconds else then


@pytest.mark.parametrize(
    ("ethernet", "wifi", "changes", "seconds"),
    [
        (until(0.1, 90, 5), 20, {}, 0.0),
        # The excess ends with the last sample above the cap.
        (until(0.9, 90, 5), 20, {}, 0.8),
        # One packet above the cap within a sample is not an excess.
        (lambda time: 30 if int(100 * time) % 10 == 0 else 2, 20, {"interval": 0.01}, 0.0),
        # The end of the transfer must not count as the moment of the cap.
        (until(3.9, 90, 5), 0, {}, None),
        # A path that carries nothing does not count as capped.
        (constant(0), 20, {}, None),
    ],
)
def test_time_to_throttle_is_from_the_join_to_the_last_excess(
    ethernet: Load, wifi: float, changes: dict[str, float], seconds: float | None
) -> None:
    found = seen(ethernet, constant(wifi), 4, **changes)
    throttled = replace(THROUGH, throttled=True, cap=CAP)
    numbers = measured(throttled, found, USED, RTTS)
    assert numbers.time_to_throttle == (None if seconds is None else pytest.approx(seconds))
    assert numbers.capped == (seconds is not None)
    assert measured(throttled, replace(found, joined=None), USED, RTTS).capped == 0


def test_numbers_of_a_run_come_from_its_observation() -> None:
    found = seen(
        constant(30), constant(10), 4,
        memory=tuple((0.1 * n, 1000 * n) for n in range(43)),
        proxy_counters={"TcpRetransSegs": 5, "TcpOutSegs": 1000},
        origin_counters={"TcpRetransSegs": 7, "TcpOutSegs": 70},
    )  # fmt: skip
    numbers = measured(THROUGH, found, USED, RTTS)
    assert (numbers.goodput, numbers.retransmission_share, numbers.out_of_order_bytes) == (20_000_000, 0.005, 42_000)
    assert (numbers.least_idle, numbers.rtt_wifi) == (0.2, 0.013)
    assert numbers.share_ethernet == pytest.approx(0.75)
    assert numbers.rate_wifi == pytest.approx(10e6)
    assert measured(ALONE, replace(found, counters=FELL_BACK), USED, RTTS).retransmission_share == 0.1
    assert measured(ALONE, found, USED, RTTS) == Download(fell_back=False)
    with pytest.raises(TooFewSamples):
        measured(THROUGH, replace(found, ended=0.05), USED, RTTS)


def test_paths_and_buffer_follow_the_settings() -> None:
    # The paper computed this buffer.
    assert settings({}).buffer_needed == 480_000
    path = settings({"wifi.rtt": "30 ms", "wifi.rate": "25mbit", "wifi.mtu": "1400", "wifi.loss": "1.5%"}).path("wifi")
    assert (path.down.delay, path.up.delay, path.down.mtu) == (15_000, 15_000, 1400)
    assert (path.down.rate, path.up.rate, path.down.loss) == (25_000_000, 25_000_000, UniformLoss(0.015))
    assert parse_loss("0") is None
    assert parse_loss("1%, 25%, 100%, 0%") == GilbertElliott(0.01, 0.25, 1.0, 0.0)
    assert [parse_time(text) for text in ("16 ms", "0.5ms", "1 s", "7us")] == [16_000, 500, 1_000_000, 7]


def test_links_of_real_hosts_can_only_be_stated() -> None:
    with pytest.raises(OptionError, match=r"wifi\.loss: only emulated links have this option"):
        settings({"inventory": "hosts.yaml", "wifi.loss": "1%"})
    assert settings({"inventory": "hosts.yaml", "cap": "2 Mbit/s"}).buffer_needed is None
    links = {"ethernet.rate": "94mbit", "ethernet.rtt": "1ms", "wifi.rate": "30mbit", "wifi.rtt": "20 ms"}
    assert settings({"inventory": "hosts.yaml", **links}).buffer_needed == 2 * 124e6 / 8 * 0.02


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("wfi.rate=30mbit", "--set wfi.rate=30mbit: unknown; it can set ethernet.rate (rate of the link"),
        ("wifi.rtt=16", '"16 ms"'),
        ("wifi.loss=101%", "0 % to 100 %"),
        ("wifi.jitter=9 ms", "--set: wifi: jitter 9000 µs: 0 to the delay, 8000 µs"),
        ("repetitions=" + "9" * 5000, "0 to 1000"),
    ],
)
def test_mistake_in_a_setting_is_one_line_with_the_allowed_values(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fig2", "--set", setting, "--output", str(tmp_path)]) == 1
    [line, *notes] = capsys.readouterr().err.splitlines()
    assert message in line
    assert notes == []
    assert list(tmp_path.iterdir()) == []


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """Let Figure 2 end with *error* after *after* runs."""
    made: list[Download] = []

    @contextmanager
    def bed(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(check_emulation=lambda: None)

    def measure(*_: object) -> Download:
        if len(made) == after:
            raise error
        made.append(measured(ALONE, seen(constant(30), constant(10), 4, counters=FELL_BACK), USED, RTTS))
        return made[-1]

    scenario = replace(figures.FIG2, bed=bed, measure=measure, check_host=lambda chosen: None)
    monkeypatch.setattr(figures, "FIG2", scenario)


@pytest.mark.parametrize("after", [0, 7])
def test_finished_runs_are_kept_when_an_experiment_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    ends(monkeypatch, KeyboardInterrupt(), after)
    target = tmp_path / "fig2" / FILE
    assert main(["run", "fig2", "--output", str(tmp_path)]) == INTERRUPTED
    kept = f"{target} has what was done, marked as interrupted" if after else "nothing of this run is kept"
    assert capsys.readouterr().err == f"mptcp-bench: interrupted\nmptcp-bench: {kept}\n"
    assert target.exists() == bool(after)
    if after:
        found = load(target)
        assert (found.complete, len(found.data["runs"]), found.pictures) == (False, after, ("figure",))
        assert {path.name for path in target.parent.iterdir()} == {FILE, "figure.png", "figure.svg"}


def test_experiment_fails_when_a_cell_has_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim that does not hold does not make an experiment fail; a run without a measurement does."""
    ends(monkeypatch, AssertionError("more runs than planned"), 4)
    for name in PAPER.keys() - {"fig2"}:
        monkeypatch.delitem(PAPER, name)
    arguments = ["run", "all", "--set", "repetitions=2", "--output", str(tmp_path)]
    assert main(arguments) == 0
    assert {aim.verdict for aim in load(tmp_path / "fig2" / FILE).aims} == {"met", "holds", "fails"}
    ends(monkeypatch, TestbedError("no route"), 0)
    assert main(arguments) == 1
    assert "mptcp-bench run fig2: TCP, Wi-Fi alone: runs: 0, wanted ≥ 2\n" in capsys.readouterr().err
