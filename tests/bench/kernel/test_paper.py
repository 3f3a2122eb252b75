# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's experiments on real packets: their files, runs that are no data points, and interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mptcp_bench.paper import engine, session
from mptcp_bench.paper.claims import UNUSED
from mptcp_bench.paper.parameters import Parameters
from mptcp_bench.paper.results import PaperResult, load
from mptcp_bench.paper.scenarios import MB, SCENARIOS
from mptcp_bench.paper.verdicts import judged
from mptcp_bench.result_file import FILE
from mptcp_lab.testbed import Testbed, TestbedError, Topology, lab_of, ownership
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.installed import program
from mptcp_lab.testbed.services import Throttler, start_throttler
from mptcp_lab.testbed.topologies import paths

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
MakeTestbed = Callable[..., Testbed]
ONCE = ("--quick", "--set", "repetitions=1")


def emulated(parameters: Parameters) -> Topology:
    """Return the topology of the paper's paths with these *parameters*."""
    return paths([parameters.path("ethernet"), parameters.path("wifi")])


@pytest.fixture(autouse=True)
def _needs(require: Require) -> None:
    require(*session.NEEDED)


def bench(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    argv = [program("mptcp-bench"), *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=900)


@pytest.mark.nightly
def test_a_figure_is_one_command(tmp_path: Path) -> None:
    done = bench("run", "fig6", "--quick", "--set", "repetitions=2", "--seed", "5", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left" in done.stdout, "the time that is left is shown"
    result = load(tmp_path / "fig6" / FILE)
    assert result.complete
    assert (result.seed, result.provenance.seed) == (5, 5)
    assert {run.case for run in result.runs if run.valid} == {"tcp-wifi", "free", "first", "repeated"}
    # Invalid runs were repeated, and stay in the result.
    runs = [run for run in result.runs if run.valid]
    for run in runs:
        assert run.series is not None
        assert len(run.series.times) > 20
        carried = sum(sum(values) for values in run.series.paths.values())
        assert carried > 0
    capped = result.statistic("repeated", "share_ethernet")
    free = result.statistic("free", "share_ethernet")
    assert capped is not None
    assert free is not None
    assert capped.mean < free.mean, "the policy moved load away from Ethernet"
    assert {claim.id for claim in result.claims} == {"first-escapes", "small-impact", "repeated-throttled", "no-less"}
    came = result.statistic("repeated", "capped")
    assert came is not None
    assert came.mean > 0, "the cap came into force"
    for run in runs:
        assert run.values["rtt_wifi"] > run.values["rtt_ethernet"]
        assert 0 <= run.values["idle"] <= 1
        assert 0 <= run.values["least_idle"] <= 1
    pictures = list((tmp_path / "fig6").glob("*.png")) + list((tmp_path / "fig6").glob("*.svg"))
    assert len(pictures) == 2
    page = bench("report", str(tmp_path))
    assert page.returncode == 0, page.stderr
    assert "Figure 6" in (tmp_path / "report.html").read_text()


@pytest.mark.nightly
def test_a_download_that_fell_back_is_no_data_point(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    """The proxy's kernel speaks no MPTCP: each run is repeated, stays in the result, and does not count."""
    testbed = make_testbed()
    scenario, parameters = SCENARIOS["fig6"], Parameters.of(["repetitions=1"])
    planned = engine.plan(scenario, parameters, 1, True)
    planned = engine.Plan((planned.rounds[0][1:2],), quick=True)
    running = engine.Engine(scenario, parameters, planned)
    with testbed["proxy"].sysctl("net.mptcp.enabled", "0"):
        runs = tuple(running.runs(lab_of(testbed)))
    order = session.Order(parameters, 1, True, tmp_path, Console())
    result = judged(replace(session.prepare("fig6", order).result, runs=runs))
    assert len(result.runs) == engine.ATTEMPTS
    assert {(run.valid, run.reason) for run in result.runs} == {(False, "the connection fell back to plain TCP")}
    assert result.summary == ()
    assert {claim.verdict for claim in result.claims} == {"not judged"}


@pytest.mark.nightly
def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    argv = [program("mptcp-bench"), "run", "fig6", "--quick", "--output", str(tmp_path)]
    target = tmp_path / "fig6" / FILE
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 300
            while not target.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline, "no run within five minutes"
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "interrupted" in said
    result = load(target)
    assert not result.complete
    assert result.runs
    assert list((tmp_path / "fig6").glob("*.png"))
    assert not [run for run in ownership.runs() if run.pid == process.pid]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for arguments, said in (
        (("--set", "wfi.rate=3mbit"), "did you mean wifi.rate?"),
        (("--inventory", str(tmp_path / "none.yaml")), "none.yaml"),
    ):
        done = bench("run", "fig2", *arguments, "--output", str(tmp_path))
        assert done.returncode == 1
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = bench("run", "goodput", "--set", "cap=5mbit")
    assert done.returncode == 1
    assert done.stderr == "mptcp-bench: run goodput: --set cap=5mbit: unknown; it can set nothing\n"


def test_the_document_on_stdout(tmp_path: Path) -> None:
    done = bench("run", "fig2", *ONCE, "--json", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["experiment"] == "fig2"
    assert os.stat(tmp_path / "fig2" / FILE).st_mode & 0o044


def test_what_cannot_be_written_is_reported_before_anything_is_run(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    done = bench("run", "fig2", *ONCE, "--output", str(taken))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"mptcp-bench: {taken}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.nightly
def test_nothing_holds_of_a_throttler_that_died(
    make_testbed: MakeTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*arguments: Any, **options: Any) -> Throttler:
        throttler = start_throttler(*arguments, **options)
        throttler.process.stop()
        return throttler

    monkeypatch.setattr(engine, "start_throttler", dying)
    scenario, parameters = SCENARIOS["fig6"], Parameters.of(["repetitions=2"])
    planned = engine.plan(scenario, parameters, 1, True)
    runs = tuple(engine.Engine(scenario, parameters, planned).runs(lab_of(make_testbed(emulated(parameters)))))
    result = judged(
        replace(session.prepare("fig6", session.Order(parameters, 1, True, tmp_path, Console())).result, runs=runs)
    )
    assert result.values("first", "capped") == result.values("repeated", "capped") == (0, 0), result.failed()
    assert {claim.verdict for claim in result.claims} == {"fails"}


def fig7_throttled(testbed: Testbed, parameters: Parameters, output: Path) -> PaperResult:
    """Run only the throttled transfers of Figure 7, with less data, and judge them."""
    planned = engine.plan(SCENARIOS["fig7"], parameters, 1, True)
    rounds = tuple(tuple(replace(t, quick=8 * MB) for t in trials if t.throttled) for trials in planned.rounds)
    running = engine.Engine(SCENARIOS["fig7"], parameters, replace(planned, rounds=rounds))
    order = session.Order(parameters, 1, True, output, Console())
    return judged(replace(session.prepare("fig7", order).result, runs=tuple(running.runs(lab_of(testbed)))))


def _on_the_other_path(policy: dict[str, Any]) -> None:
    policy["rules"][0]["paths"] = ["wifi"]


def _never(policy: dict[str, Any]) -> None:
    policy["dry_run"] = True


@pytest.mark.nightly(besides=("cap never comes",))
@pytest.mark.parametrize("change", [_on_the_other_path, _never], ids=["cap on the other path", "cap never comes"])
def test_nothing_holds_of_a_cap_that_is_not_on_ethernet(
    make_testbed: MakeTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]
) -> None:
    shipped = engine.policy

    def broken(lab: Lab, cap: int) -> str:
        policy = json.loads(shipped(lab, cap))
        change(policy)
        return json.dumps(policy)

    monkeypatch.setattr(engine, "policy", broken)
    parameters = Parameters.of(["repetitions=2"])
    result = fig7_throttled(make_testbed(emulated(parameters)), parameters, tmp_path)
    assert result.values("throttled", "capped") == (0, 0), result.failed()
    assert {claim.verdict for claim in result.claims} == {"fails"}


@pytest.mark.nightly
def test_a_second_path_that_is_refused_is_no_data_point(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    """The proxy refuses joins at the third ACK, when the client has already received a SYN/ACK."""
    parameters = Parameters.of(["repetitions=2"])
    testbed = make_testbed(emulated(parameters))
    testbed["proxy"].run(["ip", "mptcp", "limits", "set", "subflows", "0"])
    result = fig7_throttled(testbed, parameters, tmp_path)
    assert {(run.valid, run.reason) for run in result.runs} == {(False, "no second subflow was established")}
    assert {claim.verdict for claim in result.claims} == {"not judged"}


@pytest.mark.nightly
def test_nothing_holds_of_a_second_path_that_is_not_used(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    """The second subflow is joined as backup, so that the proxy sends nothing over it while the first one exists."""
    parameters = Parameters.of(["repetitions=2"])
    testbed = make_testbed(emulated(parameters))
    client = testbed["client"]
    client.run(["ip", "mptcp", "endpoint", "change", client.address("wlan0", 4), "backup"])
    result = fig7_throttled(testbed, parameters, tmp_path)
    first, second = result.values("throttled", "share_wifi")
    assert max(first, second) < UNUSED
    assert {claim.verdict for claim in result.claims} == {"fails"}


def test_a_path_without_its_delay_is_no_data_point(make_testbed: MakeTestbed) -> None:
    scenario, parameters = SCENARIOS["fig6"], Parameters.of()
    planned = engine.Plan((engine.plan(scenario, parameters, 1, True).rounds[0][1:2],), quick=True)
    run = next(engine.Engine(scenario, parameters, planned).runs(lab_of(make_testbed())))
    assert not run.valid
    assert "ms instead of 2: it is not emulated" in run.reason


def test_a_proxy_that_is_gone_ends_the_experiment(make_testbed: MakeTestbed) -> None:
    """Every later run would fail as well, so the result would not be complete."""
    scenario, parameters = SCENARIOS["fig6"], Parameters.of(["repetitions=2"])
    lab = lab_of(make_testbed(emulated(parameters)))
    planned = engine.plan(scenario, parameters, 1, True)
    planned = engine.Plan(tuple(trials[1:2] for trials in planned.rounds), quick=True)
    runs = engine.Engine(scenario, parameters, planned).runs(lab)
    assert any(run.valid for run in islice(runs, engine.ATTEMPTS))
    for pid in ownership.namespace_processes(lab.proxy.namespace):  # type: ignore[attr-defined]
        # A process may have ended together with its parent.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(TestbedError, match="proxy ended"):
        next(runs)
