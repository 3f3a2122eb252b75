# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's experiments on real packets: their files, runs that are not data points, and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mptcp_bench.paper import engine, session
from mptcp_bench.paper.parameters import Chosen
from mptcp_bench.paper.results import Run
from mptcp_bench.paper.scenarios import FIGURES
from mptcp_bench.result_file import FILE, load
from mptcp_lab.testbed import Testbed, TestbedError, lab_of, ownership
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.installed import program
from mptcp_lab.testbed.topologies import paths

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
MakeTestbed = Callable[..., Testbed]
SETTINGS = Chosen.of().settings
EMULATED = paths([SETTINGS.path("ethernet"), SETTINGS.path("wifi")])


@pytest.fixture(autouse=True)
def _needs(require: Require) -> None:
    require(*session.NEEDED)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [program("mptcp-bench"), *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=900)


@pytest.mark.nightly
def test_figure_is_one_command(tmp_path: Path) -> None:
    done = bench("run", "fig6", "--quick", "--set", "repetitions=2", "--seed", "5", "--output", str(tmp_path))
    # On a busy machine, a second subflow may join too late. The transfer is then repeated.
    assert all("attempts repeated" in line for line in done.stderr.splitlines()), done.stdout + done.stderr
    result = load(tmp_path / "fig6" / FILE)
    assert result.complete
    assert (result.seed, result.provenance.seed) == (5, 5)
    runs = [run for run in result.data["runs"] if run["valid"]]
    assert {run["case"] for run in runs} == {"tcp-wifi", "free", "first", "repeated"}
    for run in runs:
        assert len(run["series"]["times"]) > 20
        assert sum(sum(values) for values in run["series"]["paths"].values()) > 0
        assert run["values"]["rtt_wifi"] > run["values"]["rtt_ethernet"]
        assert 0 <= run["values"]["least_idle"] <= 1
    shares = {case: [r["values"]["share_ethernet"] for r in runs if r["case"] == case] for case in ("free", "repeated")}
    assert max(shares["repeated"]) < min(shares["free"]), "the policy moved load away from Ethernet"
    assert any(run["values"].get("capped") for run in runs), "the cap came into force"
    assert sum(bool(aim.said) for aim in result.aims) == 4
    assert {path.name for path in (tmp_path / "fig6").iterdir()} == {FILE, "figure.png", "figure.svg"}
    page = bench("report", str(tmp_path))
    assert page.returncode == 0, page.stderr
    assert "Figure 6" in (tmp_path / "report.html").read_text()


@pytest.mark.nightly
def test_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
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
    assert result.data["runs"]
    assert list((tmp_path / "fig6").glob("*.png"))
    assert not [run for run in ownership.runs() if run.pid == process.pid]


def downloads(lab: Lab) -> Callable[[], Run]:
    """Return a function that runs the transfer of Figure 6 without throttling."""
    figure = FIGURES["fig6"]
    trial = figure.trials[1]
    made = engine.Downloads(lab, figure, [trial], SETTINGS)
    return lambda: made.run(trial, 1)


def test_download_through_a_proxy_that_is_gone_is_no_data_point(make_testbed: MakeTestbed) -> None:
    lab = lab_of(make_testbed(EMULATED))
    download = downloads(lab)
    assert download().valid
    for pid in ownership.namespace_processes(lab.proxy.namespace):  # type: ignore[attr-defined]
        # A process may have ended together with its parent.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(TestbedError, match="ended with"):
        download()
