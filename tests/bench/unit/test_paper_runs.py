# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's runs: plan and parameters, runs that are not data points, their numbers, and an early end."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paper_conversion_mutants as conversions
import pytest

from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments.columns import Run as Turned
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.parameters import OptionError
from mptcp_bench.paper import conversion, engine, measures, session
from mptcp_bench.paper.conversion import Requests
from mptcp_bench.paper.parameters import Chosen, parse_loss, parse_time
from mptcp_bench.paper.quantities import show
from mptcp_bench.paper.results import MPTCP, NO_FALLBACK, PROTOCOLS, Run
from mptcp_bench.paper.scenarios import FIGURES, Trial
from mptcp_bench.result_file import FILE, load
from mptcp_bench.wire.workload import Conversions
from mptcp_lab.agent.processors import Usage
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.transfer import Observation

CAP = 5_000_000
THROUGH = Trial("mptcp", "through the proxy", 10, 10)
ALONE = Trial("tcp-wifi", "alone", 10, 10, alone="wifi")
SEEN = Observation(
    ended=4.0,
    status=0,
    timed_out=False,
    octets=10_000_000,
    sha256="same",
    said="",
    samples=(),
    memory=(),
    joined=0.1,
    counters={"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPJoinSynAckRx": 1},
    proxy_counters={"MPTcpExtMPJoinAckRx": 1},
    origin_counters={},
)
FELL_BACK = {"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPCapableFallbackSYNACK": 1}
USED = (Usage(0.0, 0.5, None, least_idle=0.2), Usage(0.0, 0.4, None, least_idle=0.3))
"""Processor usage of client and proxy."""
RTTS = {"ethernet": 0.002, "wifi": 0.013}


def samples(*rates: tuple[float, float], interval: float = 0.1) -> tuple[Sample, ...]:
    """Return counters of ``ethernet`` and ``wifi`` that grew at *rates*, in bits/s."""
    octets = {"ethernet": 0, "wifi": 0}
    found = [Sample(0.0, dict(octets))]
    for number, (ethernet, wifi) in enumerate(rates, 1):
        octets["ethernet"] += round(ethernet * interval / 8)
        octets["wifi"] += round(wifi * interval / 8)
        found.append(Sample(number * interval, dict(octets)))
    return tuple(found)


@pytest.mark.parametrize("key", FIGURES)
@pytest.mark.parametrize("quick", [False, True])
def test_plan_has_every_trial_as_often_as_it_says_in_an_order_drawn_from_the_seed(key: str, quick: bool) -> None:
    figure, found = FIGURES[key], session.scenario(key, Chosen.of(), quick=quick)

    def order(seed: int) -> list[str]:
        return [turn.cell.key for turn in found.plan(Chosen.of().settings, seed)]

    count = figure.quick_repetitions if quick else figure.repetitions
    wanted = [trial.key for trial in figure.trials if trial.in_quick or not quick]
    assert Counter(order(1)) == dict.fromkeys(wanted, count)
    assert [case.key for case in found.measured.cases] == wanted
    assert order(1) == order(1)
    assert (len({tuple(order(seed)) for seed in range(5)}) == 1) is figure.ordered
    assert session.scenario(key, Chosen.of({"repetitions": "7"}), quick=quick).measured.repetitions == 7


@pytest.mark.parametrize(
    ("trial", "change", "said"),
    [
        (THROUGH, {}, None),
        (ALONE, {"counters": FELL_BACK}, None),
        (THROUGH, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}}, "sent 1 SYN with MP_CAPABLE towards the origin"),
        # To the client, a refused join looks established.
        (THROUGH, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH, {"counters": {}}, "asked for 0 Multipath TCP connections"),
        (ALONE, {}, NO_FALLBACK),
        (ALONE, {"status": 4}, "ended with 4"),
        (THROUGH, {"sha256": "other"}, "SHA-256"),
        (THROUGH, {"status": -9, "timed_out": True}, "no end after 4 s"),
    ],
)
def test_download_is_no_data_point_when_it_is_not_of_the_wanted_kind(
    trial: Trial, change: dict[str, object], said: str | None
) -> None:
    found = engine.complaint(trial, replace(SEEN, **change), "same")  # type: ignore[arg-type]
    assert found is None if said is None else said in (found or "")


def test_run_has_rtts_and_usage_unless_it_is_too_short() -> None:
    def run(seen: Observation) -> Run:
        return engine.data_point(THROUGH, 1, seen, "same", Chosen.of().settings, used=USED, rtts=RTTS)

    found = run(replace(SEEN, samples=samples(*[(99e6, 19e6)] * 40)))
    assert found.valid
    assert (found.values["least_idle"], found.values["rtt_wifi"]) == (0.2, 0.013)
    assert "too short" in run(replace(SEEN, ended=0.05, samples=samples((90e6, 0)))).reason


@pytest.mark.parametrize(
    ("joined", "rates", "interval", "seconds"),
    [
        (0.1, [(90e6, 0), *[(5e6, 20e6)] * 30], 0.1, 0.0),
        # The excess ends with the last sample above the cap.
        (0.1, [*[(90e6, 0)] * 9, *[(5e6, 20e6)] * 20], 0.1, 0.8),
        # One packet above the cap within a sample is not an excess.
        (0.0, [(30e6, 20e6) if number % 10 == 0 else (2e6, 20e6) for number in range(400)], 0.01, 0.0),
        (None, [(90e6, 0)] * 43, 0.1, None),
        # The throttler is dead: the end of the transfer must not count as the moment of the cap.
        (0.1, [(90e6, 0)] * 43, 0.1, None),
        (0.1, [*[(90e6, 0)] * 39, *[(5e6, 20e6)] * 5], 0.1, None),
        # A path that carries nothing does not count as capped.
        (0.1, [(0, 20e6)] * 43, 0.1, None),
    ],
)
def test_time_to_throttle_is_from_the_join_to_the_last_excess(
    joined: float | None, rates: list[tuple[float, float]], interval: float, seconds: float | None
) -> None:
    seen = replace(SEEN, joined=joined, samples=samples(*rates, interval=interval))
    expected = None if seconds is None else pytest.approx(seconds)
    assert measures.time_to_throttle(seen, "ethernet", CAP) == expected
    assert measures.values(seen, replace(THROUGH, throttled=True), CAP)["capped"] == (seconds is not None)


def test_numbers_of_a_run_come_from_its_observation() -> None:
    seen = replace(
        SEEN,
        samples=samples(*[(30e6, 10e6)] * 42),
        memory=tuple((0.1 * n, 1000 * n) for n in range(43)),
        proxy_counters={"TcpRetransSegs": 5, "TcpOutSegs": 1000},
        origin_counters={"TcpRetransSegs": 7, "TcpOutSegs": 70},
    )
    values = measures.values(seen, THROUGH, CAP)
    assert values["goodput"] == 20_000_000
    assert values["share_ethernet"] == pytest.approx(0.75)
    assert values["rate_wifi"] == pytest.approx(10e6)
    assert values["retransmission_share"] == 0.005
    assert values["out_of_order_bytes"] == 42_000
    assert measures.values(seen, ALONE, CAP)["retransmission_share"] == 0.1
    series = measures.series(seen)
    assert len(series.times) == len(series.paths["wifi"]) == len(series.extra["out_of_order_bytes"]) == 42


def test_quantity_is_shown_with_unit_and_interval() -> None:
    assert show(113456789, "bit/s", 1.2e3) == "113.457 ± 0.001 Mbit/s"
    assert (show(0.0085, "s"), show(5.76e6, "B"), show(0.198, "ratio", 0.004)) == ("8.50 ms", "5.76 MB", "19.8 ± 0.4 %")
    assert (show(0.0, "bit/s"), show(12, "count"), show(12.4, "count", 3.3)) == ("0 Mbit/s", "12", "12.4 ± 3.3")


def test_paths_and_buffer_follow_the_parameters() -> None:
    # The paper computed this buffer.
    assert Chosen.of().receive_buffer_needed() == 480_000
    options = {"wifi.rtt": "30 ms", "wifi.rate": "25mbit", "wifi.mtu": "1400", "wifi.loss": "1.5%"}
    path = Chosen.of(options).settings.path("wifi")
    assert (path.down.delay, path.up.delay, path.rtt) == (15_000, 15_000, 30_000)
    assert (path.down.rate, path.up.rate, path.down.mtu) == (25_000_000, 25_000_000, 1400)
    assert path.down.loss == UniformLoss(0.015)
    assert parse_loss("0") is None
    assert parse_loss("1%, 25%, 100%, 0%") == GilbertElliott(0.01, 0.25, 1.0, 0.0)
    assert [parse_time(text) for text in ("16 ms", "0.5ms", "1 s", "7us")] == [16_000, 500, 1_000_000, 7]
    assert Chosen.of(Chosen.of().texts) == Chosen.of()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("wfi.rate=30mbit", "--set wfi.rate=30mbit: unknown; it can set ethernet.rate (of the link"),
        ("cap", "--set cap: write cap=VALUE; cap is what the throttler leaves Ethernet in fig6 and fig7"),
        ("wifi.rtt=16", '"16 ms"'),
        ("wifi.loss=101%", "0 % to 100 %"),
        ("wifi.jitter=9 ms", "--set: wifi: jitter 9000 µs: 0 to the delay, 8000 µs"),
        ("repetitions=" + "9" * 5000, "0 to 1000"),
    ],
)
def test_mistake_in_a_parameter_is_one_line_with_what_is_allowed(
    setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fig2", "--set", setting, "--output", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_links_of_real_hosts_can_only_be_stated() -> None:
    with pytest.raises(OptionError, match="real hosts have the links they have"):
        Chosen.of({"wifi.loss": "1%"}, emulated=False)
    unknown = Chosen.of({"cap": "2 Mbit/s"}, emulated=False)
    assert unknown.texts["cap"] == "2 Mbit/s"
    assert "wifi.rate" not in unknown.texts
    assert unknown.receive_buffer_needed() is None
    links = {"ethernet.rate": "94mbit", "ethernet.rtt": "1ms", "wifi.rate": "30mbit", "wifi.rtt": "20 ms"}
    assert Chosen.of(links, emulated=False).receive_buffer_needed() == 2 * 124e6 / 8 * 0.02


def test_run_of_table_1_has_all_workloads_of_one_protocol_and_repetition() -> None:
    found = session.scenario("table1", Chosen.of({"repetitions": "2"}), quick=False)
    turns = found.plan(Chosen.of().settings)
    assert len(turns) == 2 * len(conversion.WORKLOADS) * len(PROTOCOLS)
    draw = random.Random(1)

    def measured(turn: Turn[Requests]) -> Conversions:
        return conversions.PAPER.conversions(draw, multipath=turn.cell.protocol == MPTCP)[turn.cell.workload.key]

    runs = found.runs_of([Turned(turn, measured(turn)) for turn in turns])
    assert Counter((run.case, run.repetition) for run in runs) == {(c, n): 1 for c in PROTOCOLS for n in (1, 2)}
    kinds = {"syn up", "syn-whole up", "data up", "data down", "stream up", "stream down", "bulk down"}
    assert set(runs[0].distributions) == kinds
    assert runs[0].values["median_stream_up"] == conversions.PAPER.stream
    assert runs[0].values["least_idle"] == conversions.PAPER.least_idle
    # A workload that failed leaves its repetition without a run.
    assert len(found.runs_of([Turned(turn, measured(turn)) for turn in turns[1:]])) == len(runs) - 1


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, after: int) -> None:
    """Let each experiment of the paper end with *error* after *after* runs, or run completely. The first run fails."""
    makes = session.scenario

    def scenario(*of: Any, **options: Any) -> session.PaperScenario:
        made: list[Run] = []

        @contextmanager
        def bed(*_: object) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(check_emulation=lambda: None)

        def measure(_: object, turn: Turn[Trial]) -> Run:
            if error is not None and len(made) == after:
                raise error
            made.append(Run(turn.cell.key, turn.number, valid=bool(made), reason="" if made else "too [late]"))
            return made[-1]

        return replace(makes(*of, **options), bed=bed, measure=measure, needs=())

    monkeypatch.setattr(session, "scenario", scenario)


@pytest.mark.parametrize("after", [0, 7])
def test_finished_runs_are_kept_when_an_experiment_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    ends(monkeypatch, KeyboardInterrupt(), after)
    monkeypatch.setattr(session, "draw", lambda found, target: target.touch())
    target = tmp_path / "fig2" / FILE
    assert main(["run", "fig2", "--output", str(tmp_path)]) == INTERRUPTED
    kept = f"{target} has what was done, marked as interrupted" if after else "nothing of this run is kept"
    assert capsys.readouterr().err == f"mptcp-bench: interrupted\nmptcp-bench: {kept}\n"
    assert target.exists() == bool(after)
    if after:
        found = load(target)
        assert (found.complete, len(found.data["runs"]), found.pictures) == (False, after, ("figure",))
        assert found.notes[-2:] == ("6 data points of 10 planned.", "1 × TCP, Ethernet alone: too [late]") or (
            "1 × TCP, Wi-Fi alone: too [late]" in found.notes
        )
        assert {path.name for path in target.parent.iterdir()} == {FILE, "figure.png", "figure.svg"}


def test_experiment_fails_when_a_case_has_no_data_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The claims do not make it fail."""
    ends(monkeypatch, None, 0)
    monkeypatch.setattr(session, "draw", lambda found, target: target.touch())
    assert main(["run", "fig2", "--set", "repetitions=1", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert re.fullmatch("mptcp-bench run fig2: no data point of TCP, .* alone\n", said.err.splitlines(True)[-1])
    ends(monkeypatch, None, 0)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == 0
