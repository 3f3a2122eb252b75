"""Fixtures of the kernel tests: testbeds that are taken down, and the rule for missing features.

It makes this folder importable, too: tests of different components share what lies in it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from mptcp_lab.testbed import TWO_PATHS, Testbed, Topology, ownership
from mptcp_lab.testbed.features import fails_when_missing, missing
from mptcp_lab.testbed.hops import TOLERANCE
from mptcp_lab.testbed.ownership import NAMESPACES, PREFIX

Require = Callable[..., None]
MakeTestbed = Callable[..., Testbed]
NEEDED = ("root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "ethtool")

# Apache's and Squid's workers run as other users and enter directories that tests make.
os.umask(0o022)

# How long one example takes, or is drawn, is a matter of the machine.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


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
