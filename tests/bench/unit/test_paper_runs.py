# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's runs: their plan and parameters, what is no data point, their numbers, and an early end."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paper_conversion_mutants as conversions
import pytest
from rich.console import Console

from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.paper import conversion, engine, measures, session
from mptcp_bench.paper.parameters import PARAMETERS, ParameterError, Parameters, parse_loss, parse_time
from mptcp_bench.paper.quantities import show
from mptcp_bench.paper.results import MPTCP, NO_FALLBACK, PROTOCOLS, Measurements, Run
from mptcp_bench.paper.scenarios import SCENARIOS, Trial
from mptcp_bench.result_file import FILE, load
from mptcp_bench.wire.workload import Conversions, Workload
from mptcp_lab.agent.processors import Usage
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed import EmulationError, TestbedError
from mptcp_lab.testbed.host import Lab
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


@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("quick", [False, True])
def test_plan_has_every_trial_as_often_as_it_says_in_an_order_drawn_from_the_seed(key: str, quick: bool) -> None:
    scenario, usual = SCENARIOS[key], Parameters.of()
    planned = engine.plan(scenario, usual, 1, quick)
    count = scenario.quick_repetitions if quick else scenario.repetitions
    wanted = [trial.key for trial in scenario.trials if trial.in_quick or not quick]
    assert Counter(t.key for trials in planned for t in trials) == dict.fromkeys(wanted, count)
    assert [case.key for case in engine.cases(scenario, planned, usual)] == wanted
    assert planned == engine.plan(scenario, usual, 1, quick)
    orders = [[t.key for t in trials] for seed in range(5) for trials in engine.plan(scenario, usual, seed, quick)]
    assert (len({tuple(order) for order in orders}) == 1) is scenario.ordered
    assert len(engine.plan(scenario, Parameters.of(["repetitions=7"]), 1, quick)) == 7


@pytest.mark.parametrize(
    ("trial", "change", "said"),
    [
        (THROUGH, {}, None),
        (ALONE, {"counters": FELL_BACK}, None),
        (THROUGH, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (THROUGH, {"proxy_counters": {"MPTcpExtInfiniteMapTx": 1}}, "fell back"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}}, "asked the origin for Multipath TCP"),
        # To the client, a refused join looks established.
        (THROUGH, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH, {"counters": {}}, "asked for 0 Multipath TCP connections"),
        (ALONE, {}, NO_FALLBACK),
        (ALONE, {"status": 4}, "ended with 4"),
        (THROUGH, {"sha256": "other"}, "SHA-256"),
        (THROUGH, {"status": 8, "said": "Saving\nERROR 503"}, "ended with 8: ERROR 503"),
        (THROUGH, {"status": -9, "timed_out": True}, "no end after 4 s"),
    ],
)
def test_download_is_no_data_point_when_it_is_not_of_the_wanted_kind(
    trial: Trial, change: dict[str, object], said: str | None
) -> None:
    found = engine.complaint(trial, replace(SEEN, **change), "same")  # type: ignore[arg-type]
    assert found is None if said is None else said in (found or "")


@pytest.mark.parametrize(
    ("rtts", "ethernet", "said"),
    [
        (RTTS, 99e6, None),
        ({}, 99e6, None),
        ({**RTTS, "wifi": 0.0001}, 99e6, "wifi has an idle RTT of 0.1 ms instead of 16: it is not emulated"),
        ({**RTTS, "ethernet": 0.5}, 99e6, "ethernet has an idle RTT of 500.0 ms instead of 2"),
        (RTTS, 900e6, "ethernet carried 9"),
    ],
)
def test_run_is_no_data_point_when_a_path_is_not_emulated(
    rtts: dict[str, float], ethernet: float, said: str | None
) -> None:
    def run(seen: Observation, *, emulated: bool) -> Run:
        parameters = Parameters.of()
        return engine.data_point(THROUGH, 1, seen, "same", parameters, used=USED, rtts=rtts, emulated=emulated)

    seen = replace(SEEN, samples=samples(*[(ethernet, 19e6)] * 40))
    emulated, real = run(seen, emulated=True), run(seen, emulated=False)
    assert emulated.valid is (said is None)
    assert (said or "") in emulated.reason
    assert real.valid
    assert (real.values["idle"], real.values["least_idle"]) == (0.4, 0.2)
    assert all(real.values[f"rtt_{path}"] == seconds for path, seconds in rtts.items())
    short = replace(SEEN, ended=0.05, samples=samples((90e6, 0)))
    assert "too short" in run(short, emulated=False).reason


@pytest.mark.parametrize(
    ("joined", "rates", "interval", "seconds"),
    [
        (0.1, [(90e6, 0), *[(5e6, 20e6)] * 30], 0.1, 0.0),
        # It ends with the last excess.
        (0.1, [*[(90e6, 0)] * 9, *[(5e6, 20e6)] * 20], 0.1, 0.8),
        # A packet more than the cap within a sample is no excess.
        (0.0, [(30e6, 20e6) if number % 10 == 0 else (2e6, 20e6) for number in range(400)], 0.01, 0.0),
        (None, [(90e6, 0)] * 43, 0.1, None),
        # The throttler is dead: the end of the transfer must not count as the moment of the cap.
        (0.1, [(90e6, 0)] * 43, 0.1, None),
        (0.1, [*[(90e6, 0)] * 39, *[(5e6, 20e6)] * 5], 0.1, None),
        # A path that carries nothing is not capped.
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


def test_late_reading_and_the_one_right_after_it_make_no_peak() -> None:
    regular = samples(*[(5e6, 20e6)] * 20, interval=0.01)
    late = Sample(regular[10].time + 0.0098, regular[11].octets)
    octets = {**regular[11].octets, "ethernet": regular[11].octets["ethernet"] + 1514}
    burst = Sample(regular[11].time, octets)
    seen = replace(SEEN, samples=(*regular[:11], late, burst, *regular[12:]), memory=tuple((0.0, n) for n in range(22)))
    found = measures.series(seen)
    assert max(found.paths["ethernet"]) < 8e6
    assert len(found.times) == len(found.extra["out_of_order_bytes"]) == 20
    assert measures.spaced([0.0, 0.1]) == [0, 1]


@pytest.mark.parametrize(
    ("value", "unit", "half", "text"),
    [
        (94.3e6, "bit/s", 0.51e6, "94.3 ± 0.5 Mbit/s"),
        (113456789, "bit/s", 1.2e3, "113.457 ± 0.001 Mbit/s"),
        (0.0, "bit/s", None, "0 Mbit/s"),
        (0.0085, "s", None, "8.50 ms"),
        (1.7, "s", 0.0, "1.70 ± 0.00 s"),
        (5.76e6, "B", None, "5.76 MB"),
        (0.198, "ratio", 0.004, "19.8 ± 0.4 %"),
        (12, "count", None, "12"),
        (12.4, "count", 3.3, "12.4 ± 3.3"),
    ],
)
def test_quantity_is_shown_with_unit_and_interval(value: float, unit: str, half: float | None, text: str) -> None:
    assert show(value, unit, half) == text


def test_paths_and_buffer_follow_the_parameters() -> None:
    # The paper computed this buffer.
    assert Parameters.of().receive_buffer_needed() == 480_000
    path = Parameters.of(["wifi.rtt=30 ms", "wifi.rate=25mbit", "wifi.mtu=1400", "wifi.loss=1.5%"]).path("wifi")
    assert (path.down.delay, path.up.delay, path.rtt) == (15_000, 15_000, 30_000)
    assert (path.down.rate, path.up.rate, path.down.mtu) == (25_000_000, 25_000_000, 1400)
    assert path.down.loss == UniformLoss(0.015)
    assert parse_loss("0") is None
    assert parse_loss("1%, 25%, 100%, 0%") == GilbertElliott(0.01, 0.25, 1.0, 0.0)
    assert [parse_time(text) for text in ("16 ms", "0.5ms", "1 s", "7us")] == [16_000, 500, 1_000_000, 7]
    assert Parameters.of([f"{each.name}={each.default}" for each in PARAMETERS]) == Parameters.of()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("wfi.rate=30mbit", "did you mean wifi.rate?"),
        ("nothing=1", "there are ethernet.rate, "),
        ("cap", "write cap=VALUE, such as cap=5 Mbit/s"),
        ("cap=5", "5 Mbit/s"),
        ("wifi.rtt=16", '"16 ms"'),
        ("wifi.loss=1%,2%", "one percentage"),
        ("wifi.loss=101%", "0 % to 100 %"),
        ("wifi.jitter=9 ms", "jitter 9000 µs: 0 to the delay, 8000 µs"),
        ("wifi.mtu=100", "576 to 9000"),
        ("congestion-control=lia", "bbr, cubic, reno"),
        ("repetitions=" + "9" * 5000, "0 to 1000"),
    ],
)
def test_mistake_in_a_parameter_is_one_line_with_what_is_allowed(setting: str, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.of([setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.of(["cap=x", "queue=y", "wifi.rate=30mbit"])
    assert len(str(caught.value).splitlines()) == 2


def test_links_of_real_hosts_can_only_be_stated() -> None:
    with pytest.raises(ParameterError, match="real hosts have the links they have"):
        Parameters.of(["wifi.loss=1%"], emulated=False)
    unknown = Parameters.of(["cap=2 Mbit/s"], emulated=False)
    assert unknown.as_text()["cap"] == "2 Mbit/s"
    assert "wifi.rate" not in unknown.as_text()
    assert unknown.receive_buffer_needed() is None
    links = ["ethernet.rate=94mbit", "ethernet.rtt=1ms", "wifi.rate=30mbit", "wifi.rtt=20 ms"]
    assert Parameters.of(links, emulated=False).receive_buffer_needed() == 2 * 124e6 / 8 * 0.02


class FakePaths:
    """Emulated paths that are late once, in the first workload of one protocol, and report it at the next check."""

    def __init__(self, late_in: str) -> None:
        self._late_in: str | None = late_in
        self._late = False

    def measure(self, lab: object, proxy: str, origin: object, workload: Workload, *, multipath: bool) -> Conversions:
        if (MPTCP if multipath else "tcp") == self._late_in:
            self._late_in, self._late = None, True
        return conversions.PAPER.conversions(random.Random(1), multipath=multipath)[workload.key]

    def check(self) -> None:
        late, self._late = self._late, False
        if late:
            raise EmulationError("late")


@pytest.mark.parametrize("late_in", PROTOCOLS)
def test_workload_over_late_paths_is_measured_again_and_voids_no_other_run(
    monkeypatch: pytest.MonkeyPatch, late_in: str
) -> None:
    """Defect: the paths were checked only after a repetition, so its first run was void, whichever one was late."""
    paths = FakePaths(late_in)
    monkeypatch.setattr(conversion, "start_origin", lambda *of, **options: None)
    monkeypatch.setattr(conversion, "start_proxy", lambda *of, **options: SimpleNamespace(url=lambda: "http://proxy"))
    monkeypatch.setattr(conversion, "squid_configuration", lambda host: None)
    monkeypatch.setattr(conversion, "measure", paths.measure)
    lab: Any = SimpleNamespace(origin=None, proxy=None, emulated=True)
    order = session.Order(Parameters.of(["repetitions=2"]), 1, True, Path(), Console())
    found = list(session.prepare("table1", order)[1](session.CheckedLab(lab, paths.check)))
    assert [(run.case, run.repetition, run.reason) for run in found if not run.valid] == [(late_in, 1, "late")]
    valid = [run for run in found if run.valid]
    assert [(run.case, run.repetition) for run in valid] == [(case, number) for number in (1, 2) for case in PROTOCOLS]
    kinds = {"syn up", "syn-whole up", "data up", "data down", "stream up", "stream down", "bulk down"}
    assert set(valid[0].distributions) == kinds
    assert valid[0].values["median_stream_up"] == conversions.PAPER.stream
    assert valid[0].values["least_idle"] == conversions.PAPER.least_idle


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, after: int) -> None:
    """Let each experiment of the paper end after *after* runs of the first case, with *error* if given."""
    prepare = session.prepare

    def prepared(name: str, order: session.Order) -> tuple[Measurements, session.Runs]:
        measured, _ = prepare(name, order)

        def runs(_: session.CheckedLab) -> Iterator[Run]:
            for number in range(after):
                yield Run(measured.cases[0].key, number + 1, valid=number > 0, reason="" if number else "too [late]")
            if error is not None:
                raise error

        return measured, runs

    @contextmanager
    def lab(order: session.Order) -> Iterator[session.CheckedLab]:
        yield session.CheckedLab(Lab.__new__(Lab))

    monkeypatch.setattr(session, "prepare", prepared)
    monkeypatch.setattr(session, "checked_lab", lab)
    monkeypatch.setattr(session, "_said", lambda run: "a run")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "mptcp-bench: interrupted\nmptcp-bench: {}\n"),
        (TestbedError("the proxy is gone"), 1, "mptcp-bench run fig2: the proxy is gone; {}\n"),
    ],
)
@pytest.mark.parametrize("after", [0, 7])
def test_finished_runs_are_kept_when_an_experiment_ends_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    error: BaseException, status: int, said: str, after: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(error, "__notes__", [], raising=False)
    ends(monkeypatch, error, after)
    monkeypatch.setattr(session, "draw", lambda *_: None)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == status
    target = tmp_path / "fig2" / FILE
    kept = f"{target} has what was done, marked as interrupted" if after else "nothing was measured"
    assert capsys.readouterr().err == said.format(kept)
    assert target.exists() == bool(after)
    if after:
        found = load(target)
        assert (found.complete, len(found.data["runs"]), found.pictures) == (False, after, ("figure",))
        assert found.notes[:2] == (
            "6 data points of 10 planned; 1 run failed.",
            "1 × TCP, Ethernet alone: too [late]",
        )


def test_missing_case_fails_and_a_figure_that_cannot_be_drawn_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(monkeypatch, None, 3)
    monkeypatch.setattr(session, "draw", lambda *_: None)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "mptcp-bench run fig2: no data point of TCP, Wi-Fi alone\n"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends(monkeypatch, KeyboardInterrupt(), 2)
    monkeypatch.setattr(session, "draw", full)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == INTERRUPTED
    assert "its figure cannot be drawn: No space left on device" in capsys.readouterr().err
