# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the kernel tests: testbeds that are taken down, and the rule for missing features.

It makes this folder importable, too: tests of different components share what lies in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import forking
import pytest
from examples import ALL
from hypothesis import HealthCheck, settings

from mptcp_lab.testbed import TWO_PATHS, Testbed, Topology, ownership
from mptcp_lab.testbed.features import fails_when_missing, missing
from mptcp_lab.testbed.hops import TOLERANCE
from mptcp_lab.testbed.ownership import NAMESPACES, PREFIX
from mptcp_lab.testbed.process import Process

Require = Callable[..., None]
MakeTestbed = Callable[..., Testbed]
SPENT = pytest.StashKey[float]()
"""Processor seconds up to the latest report: of this process and of those whose end it has seen."""
REPOSITORY = Path(__file__).parents[1]
BPF_PROGRAMS = REPOSITORY / "throttler/mptcp_throttler/kernel/sockets/programs"
TUNNEL = REPOSITORY / "tunnel/mptcp_tunnel"
NEEDED = ("root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "ethtool")

# Apache's and Squid's workers run as other users and enter directories that tests make.
os.umask(0o022)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the nightly tests, too")


def pytest_configure(config: pytest.Config) -> None:
    # How long one example takes, or is drawn, is a matter of the machine.
    profile = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", profile, max_examples=ALL // 4)
    settings.register_profile("all", profile, max_examples=ALL)
    settings.load_profile("all" if config.getoption("--all") else "gate")
    # As ./run does; somebody may have changed them since.
    if shutil.which("bpf-gcc"):
        # The checkout may be another user's.
        subprocess.run(["sh", BPF_PROGRAMS / "build"], check=False)
        subprocess.run(["sh", BPF_PROGRAMS / "build", *(TUNNEL / "kernel/programs").glob("*.c")], check=False)
        subprocess.run(["sh", TUNNEL / "resequencer/build"], check=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the nightly tests out, but for those that the command line names one by one."""
    if config.getoption("--all") or config.option.markexpr:
        return
    named = tuple(argument for argument in config.args if "::" in argument)
    left = {each for each in items if _is_nightly(each) and not each.nodeid.startswith(named)}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [each for each in items if each not in left]


def _is_nightly(item: pytest.Item) -> bool:
    """Say whether *item* is left to ``--all``: its mark is without ``besides``, or none of these is in its name."""
    return any(
        not any(each in item.name for each in mark.kwargs.get("besides", ())) for mark in item.iter_markers("nightly")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in each report the processor seconds since the one before."""
    report = yield
    spent = sum(os.times()[:4]) + forking.processor_seconds()
    vars(report)["processor_seconds"] = spent - item.config.stash.get(SPENT, 0.0)
    item.config.stash[SPENT] = spent
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    components: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "processor_seconds"):
                components[report.nodeid.split("/")[1]] += report.processor_seconds
                files[report.nodeid.split("::")[0]] += report.processor_seconds
    if components:
        terminalreporter.section("processor seconds, children included")
        for name, seconds in components.most_common() + files.most_common(40):
            terminalreporter.write_line(f"{seconds:8.1f} {name}")


def _require(*features: str) -> None:
    for feature in features:
        reason = missing(feature)
        if reason is None:
            continue
        if fails_when_missing():
            pytest.fail(f"needs {feature}, and CI may not skip: {reason}", pytrace=False)
        pytest.skip(f"NOT TESTED, needs {feature}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def _late_packets_are_tolerated() -> Iterator[None]:
    """Tests judge what is done, not when: on a machine whose processors are taken away every run would be void."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOLERANCE, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _iptables_has_a_lock_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """iptables(8) waits, or fails, while any other on this machine holds the lock, in whatever namespace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", str(tmp_path_factory.mktemp("iptables") / "xtables.lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals_count_for_programs() -> Iterator[None]:
    """A shell has what it runs in the background, and nohup(1) all, ignore signals, and programs inherit that.

    What this process catches is no more ignored by a program that it starts (execve(2)).
    """
    ignored = [
        each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if signal.getsignal(each) == signal.SIG_IGN
    ]
    for each in ignored:
        signal.signal(each, lambda number, frame: None)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def _our_commands_are_forked(_signals_count_for_programs: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "spawn", staticmethod(forking.spawn))
        yield
    forking.close()


@pytest.fixture(scope="session")
def require() -> Require:
    """``require("ipset", "htb")``: skip the test, or fail it in CI, where this host lacks one of them."""
    return _require


def _testbeds() -> Iterator[MakeTestbed]:
    with ExitStack() as stack:
        names: list[str] = []

        def make(topology: Topology = TWO_PATHS) -> Testbed:
            _require(*NEEDED)
            testbed = stack.enter_context(Testbed(topology))
            names.append(f"{PREFIX}-{testbed.claimed.id}-*")
            return testbed

        yield make
        stack.close()
        left = [str(path) for name in names for path in NAMESPACES.glob(name)]
        assert not left, f"namespaces left behind: {left}"


@pytest.fixture
def dead_runs() -> Iterator[None]:
    """For who leaves dead runs, and for who cleans up after them: another suite is not to do so meanwhile."""
    with ownership.registry():
        lock = (ownership.RUN_DIRECTORY / "dead-runs").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """Build testbeds for one test: ``make_testbed(topology)``."""
    yield from _testbeds()


@pytest.fixture(scope="module")
def make_module_testbed() -> Iterator[MakeTestbed]:
    """The same, kept until the module's last test is over."""
    yield from _testbeds()


@pytest.fixture
def testbed(make_testbed: MakeTestbed) -> Testbed:
    """The two-path testbed, for one test alone."""
    return make_testbed()


@pytest.fixture(scope="module")
def module_testbed(make_module_testbed: MakeTestbed) -> Testbed:
    """The two-path testbed, shared by the tests of a module."""
    return make_module_testbed()
