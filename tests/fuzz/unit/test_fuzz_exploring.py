# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that runs each fuzz target with coverage guidance for a few seconds."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from examples import examples
from targets import TARGETS

from mptcp_lab.testbed.features import fails_when_missing

HERE = Path(__file__).parents[1]
SECONDS = examples(8)


@pytest.fixture
def _atheris() -> None:
    """Skip the test without atheris. In CI on x86-64, for which pyproject.toml requires atheris, the test fails."""
    if find_spec("atheris") is not None:
        return
    if fails_when_missing() and platform.machine() == "x86_64":
        pytest.fail("needs atheris, and CI may not skip: pip install -e '.[dev]'", pytrace=False)
    pytest.skip("NOT TESTED, needs atheris, which exists only for x86-64")


def run_python(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.usefixtures("_atheris")
@pytest.mark.nightly(except_for=("packets",))
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_exploration_finds_no_crash(name: str, tmp_path: Path) -> None:
    completed = run_python(str(HERE / "explore.py"), name, str(SECONDS), str(tmp_path))
    assert completed.returncode == 0, completed.stderr[-2000:]
    assert not list(tmp_path.glob("crash-*"))
    seeds = len(list((HERE / "corpora" / name).iterdir()))
    executed_count = re.search(r"stat::number_of_executed_units: (\d+)", completed.stderr)
    assert executed_count is not None
    assert int(executed_count[1]) > seeds
    coverage_counts = re.findall(r" cov: (\d+) ", completed.stderr)
    assert max(map(int, coverage_counts), default=0) > 20, "the coverage does not include the product's code"
