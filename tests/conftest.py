# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the kernel tests: testbeds that are removed after use, and the rule for missing features.

This file also makes this folder importable, because tests of different components share its modules.
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
"""Processor seconds that this process and its ended children had used at the latest report."""
REPOSITORY = Path(__file__).parents[1]
BPF_PROGRAMS = REPOSITORY / "throttler/mptcp_throttler/kernel/sockets/programs"
TUNNEL = REPOSITORY / "tunnel/mptcp_tunnel"
REQUIRED_FEATURES = ("root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "ethtool")

# The workers of Apache and Squid run as other users, and must enter directories that tests create.
os.umask(0o022)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the nightly tests, too")


def pytest_configure(config: pytest.Config) -> None:
    # The time to draw and run an example depends on the machine.
    profile = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", profile, max_examples=ALL // 4)
    settings.register_profile("all", profile, max_examples=ALL)
    settings.load_profile("all" if config.getoption("--all") else "gate")
    # Build the BPF programs as ./run does, because their sources may have changed since.
    if shutil.which("bpf-gcc"):
        # The build may fail, because the checkout may belong to another user.
        subprocess.run(["sh", BPF_PROGRAMS / "build"], check=False)
        subprocess.run(["sh", BPF_PROGRAMS / "build", *(TUNNEL / "kernel/programs").glob("*.c")], check=False)
        subprocess.run(["sh", TUNNEL / "resequencer/build"], check=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the nightly tests, except those that the command line names."""
    if config.getoption("--all") or config.option.markexpr:
        return
    named = tuple(argument for argument in config.args if "::" in argument)
    deselected = {each for each in items if _is_nightly(each) and not each.nodeid.startswith(named)}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [each for each in items if each not in deselected]


def _is_nightly(item: pytest.Item) -> bool:
    """Return whether *item* runs only with ``--all``: no text of its mark's ``except_for`` occurs in its name."""
    return any(
        not any(each in item.name for each in mark.kwargs.get("except_for", ()))
        for mark in item.iter_markers("nightly")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to each report the processor seconds since the previous one."""
    report = yield
    spent = sum(os.times()[:4]) + forking.processor_seconds()
    vars(report)["processor_seconds"] = spent - item.config.stash.get(PROCESSOR_SECONDS, 0.0)
    item.config.stash[PROCESSOR_SECONDS] = spent
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
    """Let testbeds accept late packets: tests do not judge times, and a busy machine would invalidate each run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOLERANCE, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _use_private_iptables_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give iptables(8) a private lock file: otherwise it waits or fails while any iptables in any namespace holds the
    lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", str(tmp_path_factory.mktemp("iptables") / "xtables.lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _unignore_signals() -> Iterator[None]:
    """Catch ignored signals: shells and nohup(1) let programs in the background ignore signals, and children inherit
    that.

    If this process catches a signal, a program that it starts no longer ignores it (execve(2)).
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
def _fork_own_commands(_unignore_signals: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "spawn", staticmethod(forking.spawn))
        yield
    forking.close()


@pytest.fixture(scope="session")
def require() -> Require:
    """Return a function: ``require("ipset", "htb")`` skips the test, or fails it in CI, if this host lacks a
    feature."""
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
        assert not remaining, f"namespaces left behind: {remaining}"


@pytest.fixture
def dead_runs() -> Iterator[None]:
    """Hold a lock for tests that leave or clean up dead runs, so that no other test run does so at the same time."""
    with ownership.registry():
        lock = (ownership.RUN_DIRECTORY / "dead-runs").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """Yield a function that builds testbeds for one test: ``make_testbed(topology)``."""
    yield from _testbeds()


@pytest.fixture(scope="module")
def make_module_testbed() -> Iterator[MakeTestbed]:
    """Yield a function that builds testbeds, which last until the module's last test has ended."""
    yield from _testbeds()


@pytest.fixture
def testbed(make_testbed: MakeTestbed) -> Testbed:
    """Return a two-path testbed for one test."""
    return make_testbed()


@pytest.fixture(scope="module")
def module_testbed(make_module_testbed: MakeTestbed) -> Testbed:
    """Return a two-path testbed that the tests of a module share."""
    return make_module_testbed()
