# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the supervisor's start, reload and end."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_proxy.configuration.check import CheckedConfiguration, check
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.pending_signals import STOP
from mptcp_proxy.places import Places, Role
from mptcp_proxy.problem import Problem
from mptcp_proxy.recorded_signals import RecordedSignals
from mptcp_proxy.reloads import read_outcome
from mptcp_proxy.squid import Squid
from mptcp_proxy.supervisor import _environment, _Supervisor, load_congestion_control, run

VALID = CheckedConfiguration((), (), "proxy", Workers(), ())


def make_supervisor(
    directory: Path, signals: RecordedSignals, check_file: Callable[[Callable[[], bool]], CheckedConfiguration]
) -> _Supervisor:
    """Return the supervisor of the service "one". At a reload, *check_file* checks the configuration."""
    file, places, squid = directory / "squid.conf", Places("one"), Squid("squid", "5.7", "proxy")
    return _Supervisor(file, places, squid, check_file, VALID, frozenset(), signals, Role.PROXY, mptcp_option=False)


@pytest.mark.parametrize(
    ("received", "expected"), [(signal.SIGTERM, DONE), (signal.SIGINT, DONE), (signal.SIGHUP, FAILED), (None, FAILED)]
)
def test_stop_during_the_delayed_end_is_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, received: signal.Signals | None, expected: int
) -> None:
    """Defect: after a stop within the 15 s after Squid's failure, the supervisor ended with a failure status."""
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.supervisor._PAUSE_BEFORE_EXIT", 0.0)
    monkeypatch.setattr("mptcp_proxy.supervisor.ListenersWatch.ever_listened", True)
    signals = RecordedSignals([])
    if received is not None:
        signals._add(received, None)
    supervisor = make_supervisor(tmp_path, signals, lambda _: VALID)
    reader, writer = socket.socketpair()
    with reader, writer:
        assert supervisor._exit_status(FAILED, reader) == expected


def test_reload_during_the_delayed_end_does_not_shorten_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a reload ended the delay, so that the unit soon reached its start limit and failed."""
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.supervisor._PAUSE_BEFORE_EXIT", 0.05)
    monkeypatch.setattr("mptcp_proxy.supervisor.ListenersWatch.ever_listened", True)
    signals = RecordedSignals([])
    signals._add(signal.SIGHUP, None)
    supervisor = make_supervisor(tmp_path, signals, lambda _: VALID)
    began = time.monotonic()
    reader, writer = socket.socketpair()
    with reader, writer:
        assert supervisor._exit_status(FAILED, reader) == FAILED
    assert time.monotonic() >= began + 0.05


@pytest.mark.parametrize(
    ("received", "expected_checks"),
    [
        ([signal.SIGHUP], 1),
        ([signal.SIGHUP, signal.SIGHUP, signal.SIGHUP], 1),
        ([signal.SIGHUP, signal.SIGTERM], 0),
    ],
)
def test_pending_reloads_are_merged_and_a_stop_skips_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    squid_process: subprocess.Popen[bytes],
    received: list[signal.Signals],
    expected_checks: int,
) -> None:
    """Defect: the supervisor checked the configuration once for each pending reload before the next watchdog message,
    which was then too late."""
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    checked = CheckedConfiguration((), (), "proxy", Workers(), (UNKNOWN_NAME,))
    completed_checks: list[CheckedConfiguration] = []

    def check_file(_is_check_cancelled: Callable[[], bool]) -> CheckedConfiguration:
        completed_checks.append(checked)
        signals._add(signal.SIGHUP, None)  # a reload during the check is handled in the next round
        return checked

    signals = RecordedSignals([])
    supervisor = make_supervisor(tmp_path, signals, check_file)
    for number in received:
        signals._add(number, None)
    supervisor._handle_signals(squid_process)
    assert len(completed_checks) == expected_checks
    assert supervisor._pending.stopping == (signal.SIGTERM in received)


def hanging_squid(tmp_path: Path, first_command: str = "") -> Squid:
    """Return a fake Squid that runs *first_command* and then never finishes parsing."""
    program = tmp_path / "squid"
    program.write_text(f"#!/bin/sh\n{first_command}\nexec sleep 3600\n")
    program.chmod(0o755)
    (tmp_path / "squid.conf").write_text("http_port 3128\nhttp_access deny all\n")
    return Squid(str(program), "5.7", "nobody")


@pytest.fixture
def squid_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "3600"]) as process:
        yield process
        process.kill()


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("cause", ["a stop", "the end of Squid"])
def test_reload_is_aborted_by_a_stop_or_the_end_of_squid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squid_process: subprocess.Popen[bytes], cause: str
) -> None:
    """Defect: the supervisor detected a stop or Squid's end only when Squid had parsed the file.

    With host names in the file and no name server, this took 80 s, but a service manager waits for 15 s.
    """
    alive: list[bool] = []
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.supervisor.Reporter.ping_watchdog", lambda self: alive.append(True))
    squid = hanging_squid(tmp_path, "kill -TERM $PPID" if cause == "a stop" else f"kill -KILL {squid_process.pid}")
    signals = RecordedSignals(STOP)

    def check_file(is_cancelled: Callable[[], bool]) -> CheckedConfiguration:
        return check(tmp_path / "squid.conf", "one", squid, is_cancelled=is_cancelled)

    supervisor = make_supervisor(tmp_path, signals, check_file)
    signals._add(signal.SIGHUP, None)
    supervisor._handle_signals(squid_process)
    outcome = read_outcome(Places("one").reloads)
    assert outcome is not None
    assert (outcome.count, outcome.refused) == (1, "Squid is stopping, or has ended")
    assert signals.has(STOP) == (cause == "a stop")
    assert alive


@pytest.mark.usefixtures("signal_handlers")
def test_stop_during_the_check_of_a_start_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: SIGTERM ended the command immediately, and the temporary files of the check stayed in /tmp."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    squid = hanging_squid(tmp_path, "kill -TERM $PPID")
    monkeypatch.setattr("mptcp_proxy.supervisor.find_squid", lambda: squid)
    assert run(tmp_path / "squid.conf", Places("one"), RecordedSignals([]), None) == DONE
    assert not list((tmp_path / "temporary").iterdir())


NO_NAME_SERVER = Problem("acl pc src pc.example: Bad host/IP: 'pc.example' (-3) Temporary failure in name resolution")
UNKNOWN_NAME = Problem("acl pc src pc.invalid: Bad host/IP: 'pc.invalid' (-2) Name or service not known")


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Fail if a stop signal arrives before the supervisor has installed its handlers. Restore the handlers at the
    end."""

    def fail(number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"signal {number} arrived before its handler was installed")

    before = {number: signal.signal(number, fail) for number in STOP}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize(
    ("problems", "received", "expected"),
    [
        ([NO_NAME_SERVER, Problem("via: a warning", warning=True)], None, FAILED),
        ([NO_NAME_SERVER], signal.SIGTERM, DONE),
        ([NO_NAME_SERVER, UNKNOWN_NAME], None, CONFIGURATION),
        ([UNKNOWN_NAME], None, CONFIGURATION),
    ],
)
def test_start_that_lacks_only_a_name_server_is_a_retryable_failure(
    monkeypatch: pytest.MonkeyPatch, problems: list[Problem], received: signal.Signals | None, expected: int
) -> None:
    """Defect: the start ended with the status for a mistake in the file, so that systemd did not restart the unit."""
    checked = CheckedConfiguration((), (), "proxy", Workers(), tuple(problems))
    monkeypatch.setattr("mptcp_proxy.supervisor._PAUSE_BEFORE_EXIT", 0.0)
    monkeypatch.setattr("mptcp_proxy.supervisor.find_squid", lambda: Squid("squid", "5.7", "proxy"))
    monkeypatch.setattr("mptcp_proxy.supervisor.check", lambda *_, **__: checked)
    signals = RecordedSignals([])
    if received is not None:
        signals._add(received, None)
    assert run(Path("squid.conf"), Places(), signals, None) == expected


@pytest.fixture
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each check fail because a name server does not answer."""
    checked = CheckedConfiguration((), (), "proxy", Workers(), (NO_NAME_SERVER,))
    monkeypatch.setattr("mptcp_proxy.supervisor.find_squid", lambda: Squid("squid", "5.7", "proxy"))
    monkeypatch.setattr("mptcp_proxy.supervisor.check", lambda *_, **__: checked)


@pytest.mark.usefixtures("signal_handlers", "no_name_server")
@pytest.mark.parametrize("number", STOP)
def test_stop_during_the_delay_of_a_refused_start_ends_the_delay(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Defect: Ctrl-C during the delay of 15 seconds printed a traceback."""

    def say(text: object, *_: int) -> None:
        if "no name server answers" in str(text):
            signal.raise_signal(number)

    monkeypatch.setattr("mptcp_proxy.supervisor._PAUSE_BEFORE_EXIT", 3600.0)
    monkeypatch.setattr("mptcp_proxy.supervisor.say", say)
    assert run(Path("squid.conf"), Places(), RecordedSignals([]), None) == DONE


@pytest.mark.usefixtures("signal_handlers", "no_name_server")
def test_reload_during_the_delay_of_a_refused_start_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a reload ended the delay, so that failing starts reached systemd's start limit."""
    monkeypatch.setattr("mptcp_proxy.supervisor._PAUSE_BEFORE_EXIT", 0.05)
    signals = RecordedSignals([])
    signals._add(signal.SIGHUP, None)
    began = time.monotonic()
    assert run(Path("squid.conf"), Places(), signals, None) == FAILED
    assert time.monotonic() >= began + 0.05


def test_refused_reload_stays_refused_if_an_earlier_reload_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squid_process: subprocess.Popen[bytes]
) -> None:
    """Defect: the refusal was overwritten, and "mptcp-proxy reload" reported that the configuration was reloaded."""
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.supervisor.make_directories", lambda *_: None)
    monkeypatch.setattr("mptcp_proxy.supervisor.install", lambda *_: None)
    monkeypatch.setattr("mptcp_proxy.supervisor.ListenersWatch.check", lambda *_: "")
    results = [VALID, replace(VALID, problems=(UNKNOWN_NAME,))]
    supervisor = make_supervisor(tmp_path, RecordedSignals([]), lambda _: results.pop(0))
    supervisor._reload(squid_process)
    supervisor._pending._pending.clear()
    supervisor._reload(squid_process)
    supervisor._check_listeners(squid_process.pid)
    outcome = read_outcome(Places("one").reloads)
    assert outcome is not None
    assert outcome.count == 1
    assert str(UNKNOWN_NAME) in outcome.refused


def test_congestion_control_is_loaded_before_squid_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the kernel does not load modules for the user of a relay, so the relay used cubic."""
    loaded: list[str] = []
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.supervisor.find_squid", lambda: Squid("squid", "5.7", "proxy"))
    monkeypatch.setattr("mptcp_proxy.supervisor.check", lambda *_, **__: VALID)
    for each in ("make_directories", "install", "remove_shared_files"):
        monkeypatch.setattr(f"mptcp_proxy.supervisor.{each}", lambda *_: None)
    monkeypatch.setattr("mptcp_proxy.supervisor.install_library", lambda *_: tmp_path / "library.so")
    monkeypatch.setattr("mptcp_proxy.supervisor.shim.library", lambda name: tmp_path / "library.so")
    monkeypatch.setattr("mptcp_proxy.supervisor.load_congestion_control", loaded.append)
    # The exit status is the number of modules that were loaded before Squid was started.
    monkeypatch.setattr("mptcp_proxy.supervisor._Supervisor.serve", lambda *_: len(loaded))
    for name in ("bbr", None):
        loaded.clear()
        assert run(tmp_path / "squid.conf", Places("one"), RecordedSignals([]), name, role=Role.RELAY) == len(loaded)
        assert loaded == ([name] if name else [])


def test_congestion_control_unknown_to_the_kernel_is_not_an_error() -> None:
    load_congestion_control("reno")
    load_congestion_control("none_of_ours")


@pytest.mark.parametrize("role", Role)
def test_environment_for_the_libraries_replaces_earlier_values(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPTCP_TURNS", "old")
    settings = ("fair", "kernel")
    turns_values = [
        _environment([Path("a.so"), Path("b.so")], Places("one"), role, None, turns)["MPTCP_TURNS"]
        for turns in settings
    ]
    assert turns_values == ["fair", "kernel"]
    monkeypatch.setenv("MPTCP_WITHOUT", "old")
    environments = [
        _environment([Path("a.so"), Path("b.so")], Places("one"), role, None, "fair", without)
        for without in ((), ("a", "b"))
    ]
    assert [each.get("MPTCP_WITHOUT") for each in environments] == [None, "a,b"]
    assert {each["MPTCP_COUNTERS"] for each in environments} == {"/run/one/counters"}
    assert {each["LD_PRELOAD"] for each in environments} == {"a.so:b.so"}
    monkeypatch.setenv("LD_PRELOAD", "/c.so d.so")
    assert _environment([Path("a.so")], Places("one"), role, None, "fair")["LD_PRELOAD"] == "a.so:/c.so d.so"


@pytest.mark.parametrize(("version", "works"), [("5.7", False), ("6.13", True), ("10.1", True), ("unknown", False)])
def test_squid_versions_with_working_uploads_are_known(version: str, works: bool) -> None:
    assert Squid("squid", version, "proxy").continues_uploads is works
