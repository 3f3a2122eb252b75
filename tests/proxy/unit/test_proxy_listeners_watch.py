# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a supervisor that cannot list the listeners."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from mptcp_common import service_manager
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.listeners_watch import NO_SOCKET_LIST, ListenersWatch
from mptcp_proxy.places import Places, Role
from mptcp_proxy.reporter import Reporter
from mptcp_proxy.serving import CHANGE_SECONDS, INTERVAL, PROBLEM_INTERVAL, WITHOUT_LISTENERS_SECONDS


def test_start_and_reload_end_if_ss_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: the supervisor ended Squid because it found no listener, and a start or reload waited forever."""

    def fail_without_ss(*_: object, **__: object) -> None:
        raise FileNotFoundError

    now = 1000.0
    notified: list[str] = []
    monkeypatch.setattr(subprocess, "run", fail_without_ss)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(service_manager, "notify", lambda *lines: notified.extend(lines))
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    found = list(listeners(statements([PhysicalLine("f", 1, "http_port 3128")], "n")))
    watch = ListenersWatch(Places(), Role.PROXY, Reporter(Places()), 0, found, 1)
    # A process without children takes the place of Squid.
    with subprocess.Popen(["sleep", "60"]) as squid:
        for _ in range(2):
            start = now
            unknown_times = []
            while now < start + 2 * WITHOUT_LISTENERS_SECONDS:
                if watch.check(squid.pid) == NO_SOCKET_LIST:
                    unknown_times.append(now)
                assert not watch.must_restart(squid.pid)
                now += 1
            assert start + CHANGE_SECONDS <= unknown_times[0] <= start + CHANGE_SECONDS + INTERVAL + PROBLEM_INTERVAL
            watch.expect_change(found)
        squid.kill()
    assert notified.count("READY=1") == 1
    assert notified[-1] == f"STATUS={NO_SOCKET_LIST}"
    assert capsys.readouterr().err.count(NO_SOCKET_LIST) == 1
