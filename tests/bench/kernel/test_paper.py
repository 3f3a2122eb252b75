# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's experiments on real packets: a figure, and Table 1."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_bench.paper.conversion import SCENARIO
from mptcp_bench.paper.conversion_claims import ANSWER, OWN_SYN, REQUEST, WHOLE
from mptcp_bench.paper.settings import NEEDED
from mptcp_bench.result_file import FILE, ExperimentResult, load
from mptcp_lab.testbed.installed import program

pytestmark = [pytest.mark.kernel, pytest.mark.nightly]
MAX_SECONDS = 20.0
"""Maximum delay of a working proxy, however busy the machine is."""


def run(name: str, repetitions: int, directory: Path) -> ExperimentResult:
    argv = [program("mptcp-bench"), "run", name, "--quick", "--set", f"repetitions={repetitions}"]
    done = subprocess.run([*argv, "--output", str(directory)], check=False, capture_output=True, text=True, timeout=900)
    # On a busy machine, a second subflow may join too late. The run is then repeated.
    assert all("attempts repeated" in line for line in done.stderr.splitlines()), done.stdout + done.stderr
    pictures = {"figure.png", "figure.svg"} if name == "fig6" else set()
    assert {path.name for path in (directory / name).iterdir()} == {FILE, *pictures}
    found = load(directory / name / FILE)
    assert found.complete
    assert sum(bool(aim.said) for aim in found.aims) == 4
    return found


def test_figure_is_one_command(require: Callable[..., None], tmp_path: Path) -> None:
    require(*NEEDED)
    runs = run("fig6", 2, tmp_path).data["runs"]
    shares: dict[str, list[float]] = {}
    for each in runs:
        assert 0 <= each["least_idle"] <= 1
        shares.setdefault(each["cell"], []).append(each["share_ethernet"])
    assert len(shares) == 4
    assert max(shares["(b) throttled, repeated transfer"]) < min(shares["not throttled"])
    assert any(each["capped"] for each in runs), "the cap came into force"


def test_every_request_is_matched_and_leaves_after_its_arrival(require: Callable[..., None], tmp_path: Path) -> None:
    require(*NEEDED)
    runs = run("table1", 1, tmp_path).data["runs"]
    for client in ("Multipath TCP", "plain TCP"):
        delays = {each["part"]: each["seconds"] for each in runs if each["cell"] == client}
        assert delays.keys() == set(SCENARIO.parts(client))
        assert all(0 < seconds < MAX_SECONDS for values in delays.values() for seconds in values)
        assert len(delays[REQUEST]) == 120
        assert all(one < other for one, other in zip(delays[ANSWER], delays[WHOLE], strict=True))
        assert all(one < other for one, other in zip(delays[OWN_SYN], delays[REQUEST], strict=True))
