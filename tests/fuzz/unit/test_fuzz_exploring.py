# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that runs each fuzz target for some seconds with coverage guidance."""

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
    """Skip the test without atheris, or fail it in CI on x86-64, for which pyproject.toml names atheris."""
    if find_spec("atheris") is not None:
        return
    if fails_when_missing() and platform.machine() == "x86_64":
        pytest.fail("needs atheris, and CI may not skip: pip install -e '.[dev]'", pytrace=False)
    pytest.skip("NOT TESTED, needs atheris, which exists only for x86-64")


def explored(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.usefixtures("_atheris")
@pytest.mark.nightly(except_for=("packets",))
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_exploration_finds_no_crash(name: str, tmp_path: Path) -> None:
    ended = explored(str(HERE / "explore.py"), name, str(SECONDS), str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert not list(tmp_path.glob("crash-*"))
    seeds = len(list((HERE / "corpora" / name).iterdir()))
    executed = re.search(r"stat::number_of_executed_units: (\d+)", ended.stderr)
    assert executed is not None
    assert int(executed[1]) > seeds
    covered = re.findall(r" cov: (\d+) ", ended.stderr)
    assert max(map(int, covered), default=0) > 20, "the coverage does not include the product's code"
