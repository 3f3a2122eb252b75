"""Each target for some seconds, guided by coverage; and what it would say of a target that fails."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from targets import TARGETS

from mptcp_lab.testbed.features import fails_when_missing

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


def needs_atheris(there: bool, machine: str) -> None:
    """Skip, or fail in CI where it is among the packages that pyproject.toml names."""
    if there:
        return
    if fails_when_missing() and machine == "x86_64":
        pytest.fail("needs atheris, and CI may not skip: pip install -e '.[dev]'", pytrace=False)
    pytest.skip("NOT TESTED, needs atheris, which there is for x86-64 alone")


@pytest.fixture
def _atheris() -> None:
    needs_atheris(find_spec("atheris") is not None, platform.machine())


@pytest.mark.parametrize(
    ("ci", "machine", "outcome"),
    [
        ("true", "x86_64", pytest.fail.Exception),
        ("true", "aarch64", pytest.skip.Exception),
        ("", "x86_64", pytest.skip.Exception),
    ],
)
def test_ci_fails_where_it_would_explore_nothing(
    ci: str, machine: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    needs_atheris(True, machine)
    with pytest.raises(outcome, match="needs atheris"):
        needs_atheris(False, machine)


def explored(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.usefixtures("_atheris")
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


@pytest.mark.usefixtures("_atheris")
def test_a_target_that_fails_is_found(tmp_path: Path) -> None:
    ended = explored("-c", BROKEN, str(HERE), str(HERE.parent), str(tmp_path))
    assert ended.returncode != 0
    assert "ZeroDivisionError: found" in ended.stderr + ended.stdout
    (found,) = tmp_path.glob("crash-*")
    assert found.read_bytes()[:1] == b"!"
