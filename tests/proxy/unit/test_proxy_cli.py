# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the command line of mptcp-proxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mptcp_proxy import shim
from mptcp_proxy.cli import main


@pytest.mark.parametrize("subcommand", ["run", "check", "doctor"])
def test_bad_service_name_is_refused_first(subcommand: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([subcommand, "--service-name", "a-b"]) == 1
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err.startswith("mptcp-proxy: --service-name a-b: ")


@pytest.mark.parametrize("name", ["", "x" * 16, "a b", "bbr;", "b/r"])
def test_invalid_congestion_control_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["run", "--congestion-control", name])
    assert exit_info.value.code == 2
    assert "allowed: keep, or a name from sysctl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "turns"), [((), "fair"), (("--turns", "fair"), "fair"), (("--turns", "kernel"), "kernel")]
)
def test_supervisor_gets_the_option_turns(
    arguments: tuple[str, ...], turns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = []

    def run(*_: object, turns: str, **__: object) -> int:
        received.append(turns)
        return 0

    monkeypatch.setattr("mptcp_proxy.cli.RecordedSignals", lambda _: None)
    monkeypatch.setattr("mptcp_proxy.supervisor.run", run)
    assert main(["run", *arguments]) == 0
    assert received == [turns]


def test_failed_check_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the command printed a traceback if Squid waited longer than a minute for a name server."""
    file, program = tmp_path / "squid.conf", tmp_path / "squid"
    file.write_text("http_port 3128\nhttp_access deny all\n")
    program.write_text("#!/bin/sh\n[ $# -gt 1 ] && exec sleep 600\necho 'Squid Cache: Version 5.7'\n")
    program.chmod(0o755)
    monkeypatch.setattr("mptcp_proxy.squid.PARSE_SECONDS", 0.05)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(["check", "--config", str(file)]) == 1
    answer = capsys.readouterr()
    assert answer.out == ""
    (line,) = (each for each in answer.err.splitlines() if "warning" not in each)
    assert line.startswith(f"{file}: cannot be checked: Squid does not read its configuration within 0.05 s")


def test_unwritable_output_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the command succeeded, but the interpreter printed an error when it exited."""
    monkeypatch.setattr(shim, "library", lambda name: Path("/usr/lib", name))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["build-shim"]) == 1
    assert capsys.readouterr().err == "mptcp-proxy: No space left on device\n"


def test_interrupted_start_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: Ctrl-C printed a traceback. With host names and no name server, the check takes more than a minute."""

    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mptcp_proxy.supervisor.run", interrupt)
    assert main(["run", "--config", "squid.conf"]) == 1
    assert capsys.readouterr().err == "mptcp-proxy: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_check_leaves_no_files(tmp_path: Path, number: signal.Signals) -> None:
    """Defect: a copy of the configuration, including its passwords, stayed in /tmp."""
    file, program, temporary = tmp_path / "squid.conf", tmp_path / "squid", tmp_path / "temporary"
    file.write_text("http_port 3128\nhttp_access deny all\n")
    program.write_text("#!/bin/sh\n[ $# -gt 1 ] && exec sleep 600\necho 'Squid Cache: Version 5.7'\n")
    program.chmod(0o755)
    temporary.mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "mptcp_proxy.cli", "check", "--config", str(file)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            while not list(temporary.glob("*/squid.conf")) and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            assert b"mptcp-proxy: interrupted" in process.communicate(timeout=60)[1]
            assert process.returncode == 1
        finally:
            process.kill()
    assert list(temporary.iterdir()) == []
