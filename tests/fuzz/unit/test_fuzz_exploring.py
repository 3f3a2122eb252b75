"""Each target for some seconds, guided by coverage; and what it would say of a target that fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from targets import TARGETS

pytest.importorskip("atheris", reason="NOT TESTED: atheris is there for x86-64 alone")
HERE = Path(__file__).parents[1]
SECONDS = 5
BROKEN = """
import sys
sys.path[:0] = sys.argv[1:3]
import explore, targets
def broken(data):
    if data[:1] == b"!":
        raise ZeroDivisionError("found")
targets.TARGETS["options"] = broken
explore.main("options", "60", sys.argv[3])
"""


def explored(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_is_found_in_seconds_breaks_nothing(name: str, tmp_path: Path) -> None:
    ended = explored(str(HERE / "explore.py"), name, str(SECONDS), str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert not list(tmp_path.glob("crash-*"))
    seeds = len(list((HERE / "corpora" / name).iterdir()))
    executed = re.search(r"stat::number_of_executed_units: (\d+)", ended.stderr)
    assert executed is not None
    assert int(executed[1]) > seeds
    covered = re.findall(r" cov: (\d+) ", ended.stderr)
    assert max(map(int, covered), default=0) > 20, "it sees no branches of ours"


def test_a_target_that_fails_is_found(tmp_path: Path) -> None:
    ended = explored("-c", BROKEN, str(HERE), str(HERE.parent), str(tmp_path))
    assert ended.returncode != 0
    assert "ZeroDivisionError: found" in ended.stderr + ended.stdout
    (found,) = tmp_path.glob("crash-*")
    assert found.read_bytes()[:1] == b"!"
