# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the kernel tests: testbeds, and the reaction to missing kernel features.

With this file, pytest can also import the modules in this folder. Tests of different components share them.
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
PROCESSOR_SECONDS = pytest.StashKey[float]()
"""Processor time in seconds that this process and its ended children had used at the latest report."""
REPOSITORY = Path(__file__).parents[1]
BPF_PROGRAMS = REPOSITORY / "throttler/mptcp_throttler/kernel/sockets/programs"
TUNNEL = REPOSITORY / "tunnel/mptcp_tunnel"
REQUIRED_FEATURES = ("root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "ethtool")

# The workers of Apache and Squid run as other users, and need access to directories that tests create.
os.umask(0o022)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the nightly tests, too")


def pytest_configure(config: pytest.Config) -> None:
    # The time that an example takes depends on the machine.
    profile = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", profile, max_examples=ALL // 4)
    settings.register_profile("all", profile, max_examples=ALL)
    settings.load_profile("all" if config.getoption("--all") else "gate")
    # Build the BPF programs as ./run does, because their sources may have changed.
    if shutil.which("bpf-gcc"):
        # The build may fail, because the checkout may belong to another user.
        subprocess.run(["sh", BPF_PROGRAMS / "build"], check=False)
        subprocess.run(["sh", BPF_PROGRAMS / "build", *(TUNNEL / "kernel/programs").glob("*.c")], check=False)
        subprocess.run(["sh", TUNNEL / "resequencer/build"], check=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the nightly tests, except those that the command line names."""
    if config.getoption("--all") or config.option.markexpr:
        return
    test_ids = tuple(argument for argument in config.args if "::" in argument)
    deselected = {each for each in items if _is_nightly(each) and not each.nodeid.startswith(test_ids)}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [each for each in items if each not in deselected]


def _is_nightly(item: pytest.Item) -> bool:
    """Return whether *item* runs only with ``--all``: its name contains no text of the mark's ``except_for``."""
    return any(
        not any(each in item.name for each in mark.kwargs.get("except_for", ()))
        for mark in item.iter_markers("nightly")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to each report the processor time since the previous report."""
    report = yield
    used_seconds = sum(os.times()[:4]) + forking.processor_seconds()
    vars(report)["processor_seconds"] = used_seconds - item.config.stash.get(PROCESSOR_SECONDS, 0.0)
    item.config.stash[PROCESSOR_SECONDS] = used_seconds
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
def _tolerate_late_packets() -> Iterator[None]:
    """Accept late packets in testbeds. Tests do not assess times, and a busy machine would invalidate each run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOLERANCE, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _use_private_iptables_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give iptables(8) a private lock file. All namespaces share the default lock file, so that iptables could fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", str(tmp_path_factory.mktemp("iptables") / "xtables.lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _catch_ignored_signals() -> Iterator[None]:
    """Catch ignored signals: shells and nohup(1) make background programs ignore signals, and children inherit this.

    If this process catches a signal, programs that it starts do not ignore this signal (execve(2)).
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
def _fork_project_commands(_catch_ignored_signals: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "spawn", staticmethod(forking.spawn))
        yield
    forking.close()


@pytest.fixture(scope="session")
def require() -> Require:
    """Return a function: ``require("ipset")`` skips the test if this feature is missing. In CI, the test then fails."""
    return _require


def _testbeds() -> Iterator[MakeTestbed]:
    with ExitStack() as stack:
        names: list[str] = []

        def make(topology: Topology = TWO_PATHS) -> Testbed:
            _require(*REQUIRED_FEATURES)
            testbed = stack.enter_context(Testbed(topology))
            names.append(f"{PREFIX}-{testbed.claimed.id}-*")
            return testbed

        yield make
        stack.close()
        remaining = [str(path) for name in names for path in NAMESPACES.glob(name)]
        assert not remaining, f"namespaces that still exist: {remaining}"


@pytest.fixture
def dead_runs() -> Iterator[None]:
    """Hold a lock for tests that create or clean up dead runs. Only one such test may run at a time."""
    with ownership.registry():
        lock = (ownership.RUN_DIRECTORY / "dead-runs").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """Yield a function that creates testbeds for one test: ``make_testbed(topology)``."""
    yield from _testbeds()


@pytest.fixture(scope="module")
def make_module_testbed() -> Iterator[MakeTestbed]:
    """Yield a function that creates testbeds for all tests of a module."""
    yield from _testbeds()


@pytest.fixture
def testbed(make_testbed: MakeTestbed) -> Testbed:
    """Return a two-path testbed for one test."""
    return make_testbed()


@pytest.fixture(scope="module")
def module_testbed(make_module_testbed: MakeTestbed) -> Testbed:
    """Return a two-path testbed for all tests of a module."""
    return make_module_testbed()
