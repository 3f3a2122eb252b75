# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the daemon's reports: to the service manager, after a reload, and in its log of caps."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, UNCAPPED, Scene, running, scenario, until
from test_daemon_initial_options import report_event

from mptcp_common.status_client import ask
from mptcp_throttler.cli.queries import reload_outcome
from mptcp_throttler.cli.status import print_status
from mptcp_throttler.config.files import changed_settings, read_settings
from mptcp_throttler.mptcp.model import KernelEventKind
from mptcp_throttler.runtime import decisions, logs
from mptcp_throttler.runtime.logs import LineFormatter
from mptcp_throttler.shaping.model import Target

BROKEN = PATHS + "rules: [{name: cap-a, paths: [c], throttle: {rate: fast}}]\n"


class ServiceManager:
    """The service manager's end of the notification socket."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def new_lines(self) -> list[str]:
        """Return the lines that have arrived since the last call."""
        lines: list[str] = []
        while True:
            try:
                lines += self._listener.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceManager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield ServiceManager(listener)


def test_service_manager_gets_ready_status_and_watchdog_messages(
    tmp_path: Path, manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(path, CAPPED, kernel):
            lines = manager.new_lines()

            def watchdog_was_notified() -> bool:
                lines.extend(manager.new_lines())
                return "WATCHDOG=1" in lines

            await until(watchdog_was_notified)
            assert lines[:2] == [
                "READY=1",
                "STATUS=1 connection, 1 capped subflow on w0 (iptables); 1 rule",
            ]
            # While the event loop is blocked, no watchdog message is sent.
            time.sleep(0.2)  # noqa: ASYNC251 - the test blocks the loop
            assert manager.new_lines() == []
            await until(lambda: "WATCHDOG=1" in manager.new_lines())

    test(tmp_path)


def capped_count_in_status(scene: Scene, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the number of capped subflows in the status table. Check that the service manager got the same number."""
    print_status(scene.status())
    (table,) = re.findall(r"^\d+ connections?, (\d+ capped subflows?),", capsys.readouterr().out, re.MULTILINE)
    assert f", {table} on w0 " in scene.daemon._summary()
    return str(table)


def test_only_subflows_with_a_cap_are_counted_as_capped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: entries were counted instead of caps.

    Some entries belong to ended subflows, and some select the default class for an uncapped subflow.
    """

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(path, CAPPED, kernel) as scene:
            assert capped_count_in_status(scene, capsys) == "1 capped subflow"
            report_event(scene, KernelEventKind.CLOSED, 7, "10.1.0.1")
            assert kernel.netfilter.entries, "the entry of the ended subflow was removed at once"
            assert capped_count_in_status(scene, capsys) == "0 capped subflows"
            report_event(scene, KernelEventKind.CREATED, 8, "10.1.0.2")
            assert capped_count_in_status(scene, capsys) == "1 capped subflow"
            await until(lambda: Target(0xFFFF, 0) in kernel.netfilter.entries.values())
            assert capped_count_in_status(scene, capsys) == "0 capped subflows"

    test(tmp_path)


def test_subflow_with_two_caps_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: a subflow with a cap only on its upload was not counted."""
    upload_capped = CAPPED.replace("paths: [a],", "paths: [a], direction: up,")

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(path, UNCAPPED, kernel) as scene:
            for policy, capped in (
                (BOTH_DIRECTIONS, "1 capped subflow"),
                (BOTH_DIRECTIONS.replace("[a]", "[a, b]"), "2 capped subflows"),
                (upload_capped, "1 capped subflow"),
                (upload_capped + "dry_run: true\n", "0 capped subflows"),
                (CAPPED, "1 capped subflow"),
                (UNCAPPED, "0 capped subflows"),
            ):
                await scene.reload(policy)
                assert capped_count_in_status(scene, capsys) == capped

    test(tmp_path)


def test_summary_shows_captures_and_bpf_programs(tmp_path: Path) -> None:
    @scenario
    async def test(path: Path) -> None:
        async with running(path, CAPPED) as scene:
            assert scene.request(query="summary")["captures"] == {"w0": True}
            assert scene.request(query="summary")["bpf"] == {"pacing": True, "counting": True}
            scene.daemon._observers._close_capture("w0")  # This simulates a read error.
            assert scene.request(query="summary")["captures"] == {"w0": False}
        kernel_without_bpf = FakeKernel()
        kernel_without_bpf.pacing = kernel_without_bpf.meter = None  # type: ignore[assignment]
        async with running(path, CAPPED, kernel_without_bpf) as scene:
            assert scene.request(query="summary")["bpf"] == {"pacing": False, "counting": False}

    test(tmp_path)


@scenario
async def test_head_has_the_listening_ports(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED) as scene:
        assert scene.request(query="head")["listen_ports"] == [3128]


def test_ipv6_addresses_are_printed_completely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: "[fd77:1::2]" was removed as a style, and ":a:" in an address became an emoji."""

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "fd77:1::2", "2001:db8:a:1::2")
        async with running(path, CAPPED.replace("10.1.0.0/16", "fd77:1::/64"), kernel) as scene:
            print_status(scene.status())
            output = capsys.readouterr().out
            assert " [fd77:1::2]:40000 " in output
            assert " [2001:db8:a:1::2]:40000 " in output

    test(tmp_path)


def test_service_manager_gets_the_interfaces_that_are_not_shaped(tmp_path: Path) -> None:
    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        async with running(path, CAPPED, kernel) as scene:
            assert "NOT SHAPED" not in scene.daemon._summary()
            kernel.traffic_control.left_out = {"w0": "interface w0 has a qdisc of kind netem"}
            assert scene.daemon._summary().endswith("; 1 rule; NOT SHAPED: w0")

    test(tmp_path)


def test_status_shows_a_ledger_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @scenario
    async def test(path: Path) -> None:
        async with running(path, CAPPED) as scene:
            assert scene.status()["ledger_error"] is None
            assert scene.request(query="summary")["ledger_error"] is None
            scene.daemon._budgets.write_error = "ledger l: disk full"
            assert scene.status()["ledger_error"] == "ledger l: disk full"
            assert scene.request(query="summary")["ledger_error"] == "ledger l: disk full"
            assert "BUDGETS NOT WRITTEN: ledger l: disk full" in scene.daemon._summary()
            print_status(scene.status())
            assert "BUDGETS NOT WRITTEN: ledger l: disk full; caps stay in force" in capsys.readouterr().out
            scene.daemon._budgets.write_error = None
            print_status(scene.status())
            assert "NOT WRITTEN" not in capsys.readouterr().out + scene.daemon._summary()

    test(tmp_path)


def test_refused_reload_is_shown_until_another_reload_succeeds(
    tmp_path: Path, manager: ServiceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    @scenario
    async def test(path: Path) -> None:
        async with running(path, CAPPED) as scene:
            assert scene.status()["reloads"] == {"accepted": 0, "refused": 0, "last_refused": None, "settings": []}
            manager.new_lines()
            await scene.reload(BROKEN)
            lines = manager.new_lines()
            # A separate task may also send the status text now.
            started, reload_time, ready = (line for line in lines if not line.startswith("STATUS="))
            assert (started, reload_time[:15], ready) == ("RELOADING=1", "MONOTONIC_USEC=", "READY=1")
            assert "RELOAD REFUSED" in lines[lines.index(ready) + 1], (
                "the new text was not sent at once (defect: five seconds later)"
            )
            reloads = scene.status()["reloads"]
            assert (reloads["accepted"], reloads["refused"]) == (0, 1)
            assert abs(reloads["last_refused"]["time"] - time.time()) < 60
            assert len(reloads["last_refused"]["errors"]) == 2
            assert reloads["last_refused"]["errors"][0].startswith("p:5: rules[0].paths[0]")
            assert "RELOAD REFUSED: p:5: " in scene.daemon._summary()
            print_status(scene.status())
            output = capsys.readouterr().out
            assert "RELOAD REFUSED at 2" in output
            assert "  p:5: rules[0].throttle.rate: " in output

            await scene.reload(UNCAPPED)
            assert scene.status()["reloads"] == {"accepted": 1, "refused": 1, "last_refused": None, "settings": []}
            assert not [line for line in manager.new_lines() if "REFUSED" in line]
            print_status(scene.status())
            assert "REFUSED" not in capsys.readouterr().out + scene.daemon._summary()

    test(tmp_path)


@scenario
async def test_reload_command_prints_the_errors_of_a_refused_reload(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED) as scene:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, scene.daemon.reload)
        scene.policy[0] = BROKEN
        reloads = await asyncio.to_thread(reload_outcome, tmp_path / "s")
        (first, second) = reloads["last_refused"]["errors"]
        assert "rules[0].paths" in first
        assert "rules[0].throttle.rate" in second
        scene.policy[0] = UNCAPPED
        assert (await asyncio.to_thread(reload_outcome, tmp_path / "s"))["last_refused"] is None
        assert scene.status()["policy"]["rules"] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interfaces: [w0]\npolicy: p.yaml\n", ""),
        ("interfaces: [w0, w1]\npolicy: p.yaml\nlisten_ports: [3129]\n", "interfaces, listen_ports changed"),
        ("interfaces: [w0]\npolicy: p.yaml\nlisten_ports: 3128\n", "the next start would be refused"),
    ],
)
def test_reload_reports_settings_that_need_a_restart(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "throttler.yaml"
    path.write_text("interfaces: [w0]\n# a comment\npolicy: p.yaml\n")
    before = read_settings(path)
    path.write_text(text)
    assert expected in "\n".join(changed_settings(path, before))
    assert bool(changed_settings(path, before)) is bool(expected)


@scenario
async def test_head_has_the_status_fields_before_the_connections(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel):
        head, status = await asyncio.gather(
            asyncio.to_thread(ask, tmp_path / "s", {"query": "head"}),
            asyncio.to_thread(ask, tmp_path / "s", {"query": "status"}),
        )
        keys = list(status)
        assert list(head) == keys[: keys.index("connections")]
        assert head["policy"] == status["policy"]


def test_incomplete_answer_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"version": "1"')
            writer.close()

        async with await asyncio.start_unix_server(answer, tmp_path / "s"):
            with pytest.raises(OSError, match="too early"):
                await asyncio.to_thread(ask, tmp_path / "s", {"query": "head"})

    asyncio.run(test())


def log_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log caps without the pauses in which changes are collected."""
    monkeypatch.setattr(logs, "CAP_LOG_DELAY", 0.0)
    monkeypatch.setattr(logs, "CAP_LOG_INTERVAL", 0.01)


def kernel_with_three_connections() -> FakeKernel:
    """Return a kernel with three connections of two subflows each."""
    kernel = FakeKernel()
    for number in range(3):
        kernel.sockets.connect(number + 1, f"10.1.0.{number}", f"10.2.0.{number}")
    return kernel


def test_new_and_lifted_caps_are_logged(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log and the table show the ceiling that the cap allows, not the guaranteed rate."""
    log_without_delay(monkeypatch)
    borrowing = CAPPED.replace("{rate: 5 Mbit/s}", "{rate: 5 Mbit/s, ceil: 10 Mbit/s}")
    caplog.set_level(logging.INFO)

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(path, borrowing, kernel) as scene:
            reason = "rule cap-a caps path a at 5 Mbit/s, up to 10 Mbit/s: 2 subflows active"
            started = f"10.77.0.1:3128-10.1.0.1:40000 (10 Mbit/s): {reason}"
            await until(lambda: started in caplog.messages)
            print_status(scene.status())
            assert " 10 Mbit/s │ 4d50:" in capsys.readouterr().out
            await scene.reload(UNCAPPED)
            lifted = "10.77.0.1:3128-10.1.0.1:40000 (10 Mbit/s): no longer capped: no rule matches"
            await until(lambda: lifted in caplog.messages)

    test(tmp_path)


def test_dry_run_logs_no_caps_until_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the log reported caps only in the dry run, and ``explain`` gave times from the dry run."""
    log_without_delay(monkeypatch)
    # Even on a slow machine, no log line is written between the decisions about the three connections.
    monkeypatch.setattr(decisions, "SLICE_SECONDS", math.inf)
    caplog.set_level(logging.INFO)

    @scenario
    async def test(path: Path) -> None:
        kernel = kernel_with_three_connections()

        async with running(path, CAPPED + "dry_run: true\n", kernel) as scene:

            def since() -> float:
                (connection,) = scene.request(query="explain", token="00000001")["connections"]
                return next(float(each["since"]) for each in connection["subflows"] if each["rule"] == "cap-a")

            dry_run_line = "rule cap-a: 3 would be capped; 3 subflows would be capped now (dry run)"
            await until(lambda: dry_run_line in caplog.messages)
            dry_run_end = time.time()
            assert since() < dry_run_end
            await scene.reload(CAPPED)
            await until(lambda: "rule cap-a: 3 capped; 3 subflows capped now" in caplog.messages)
            assert since() >= dry_run_end
            dry_run_start = time.time()
            await scene.reload(CAPPED + "dry_run: true\n")
            await until(lambda: "rule cap-a: 3 lifted; 0 subflows capped now" in caplog.messages)
            assert since() >= dry_run_start
            assert sum("capped" in each for each in caplog.messages) == 4

    test(tmp_path)


def test_number_of_capped_subflows_follows_a_renamed_rule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: after a reload that renamed a rule, the log reported -2 capped subflows."""
    log_without_delay(monkeypatch)
    caplog.set_level(logging.INFO)

    @scenario
    async def test(path: Path) -> None:
        kernel = kernel_with_three_connections()
        async with running(path, CAPPED, kernel) as scene:
            await until(lambda: "rule cap-a: 3 capped; 3 subflows capped now" in caplog.messages)
            await scene.reload(CAPPED.replace("cap-a", "cap-b"))
            await scene.reload(CAPPED.replace("cap-a", "cap-b").replace("10.1.0.0/16", "10.1.0.0/32"))
            await until(lambda: "rule cap-b: 2 lifted; 1 subflow capped now" in caplog.messages)

    test(tmp_path)


def test_thousands_of_caps_are_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CAP_LOG_DELAY", 0.0)
    caplog.set_level(logging.INFO)

    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        for number in range(1000):
            host = f"{number >> 8}.{number & 255}"
            kernel.sockets.connect(number + 1, f"10.1.{host}", f"10.2.{host}")
        async with running(path, CAPPED, kernel):
            await until(lambda: any("capped now" in line for line in caplog.messages))
            line = "rule cap-a: 1000 capped; 1000 subflows capped now"
            assert [each for each in caplog.messages if "cap-a" in each] == [line]

    test(tmp_path)


@pytest.mark.parametrize(
    ("level", "for_journal", "printed"),
    [
        (logging.ERROR, True, "<3>ERROR: one\n<3>two\n"),
        (logging.WARNING, True, "<4>WARNING: one\n<4>two\n"),
        (logging.INFO, True, "<6>INFO: one\n<6>two\n"),
        (logging.DEBUG, True, "<7>DEBUG: one\n<7>two\n"),
        (logging.WARNING, False, "WARNING: one\ntwo\n"),
    ],
)
def test_each_log_line_has_its_priority(level: int, for_journal: bool, printed: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(for_journal))
    handler.handle(logging.LogRecord("x", level, "x.py", 1, "one\ntwo", None, None))
    assert stream.getvalue() == printed


@scenario
async def test_status_names_the_path_manager(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED) as scene:
        status = scene.status()
        assert status["path_manager"] == "kernel"
        scene.daemon._engine.path_manager.is_active = True
        assert scene.status()["path_manager"] == "user space"
        scene.daemon._engine.path_manager.is_active = False
        assert json.dumps(status["pid"]).isdigit()
