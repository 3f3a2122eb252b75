# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the command ``mptcp-portal``: a mistake is reported in one line, and its exit status prevents a restart by
systemd."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from certificates import checking_often, der, encrypted, replace_file, self_signed, served_certificate
from reserved_port import reserved_port

from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_portal import cli
from mptcp_portal.bounded import MAX_CONNECTIONS, MAX_PER_CLIENT
from mptcp_portal.cli import main

GOOD = "check: {squid_user: root}\n"


def run(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main([command, "--config", str(path)])
    captured = capsys.readouterr()
    return status, captured.err + captured.out


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("check: {listen: x}", ":1: check.listen: "),
        ("check: {squid_user: nobody-of-this-name}", 'check.squid_user: there is no user "nobody-of-this-name"'),
        (
            GOOD + "captive_portal: {listen: 127.0.0.1:1, certificate: /none.pem, key: /none.key}",
            "captive_portal.certificate: /none.pem with /none.key cannot be used: No such file",
        ),
    ],
)
def test_mistake_is_reported_in_one_line(
    text: str, expected_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "portal.yaml"
    path.write_text(text)
    for command, expected in (("check", FAILED), ("run", CONFIGURATION)):
        status, errors = run(command, path, capsys)
        assert status == expected
        assert expected_text in errors
        assert len(errors.splitlines()) == 1


def test_encrypted_key_is_refused_without_a_password_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: ``check`` asked for the password at the terminal and found no errors, but the service could not start."""
    certificate, key = self_signed(tmp_path)
    path = tmp_path / "portal.yaml"
    key.write_bytes(encrypted(key))
    path.write_text(GOOD + f"captive_portal: {{listen: 127.0.0.1:1, certificate: {certificate}, key: {key}}}")
    for name, expected in (("check", FAILED), ("run", CONFIGURATION)):
        status, errors = run(name, path, capsys)
        assert status == expected
        assert f"{key} cannot be used: the key is encrypted" in errors
        assert len(errors.splitlines()) == 1


def test_check_accepts_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "portal.yaml"
    path.write_text(GOOD)
    assert run("check", path, capsys) == (DONE, f"{path}: no errors\n")


def test_check_warns_of_an_address_that_the_host_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address may appear later, and the portal then listens on it. Without the warning, a typo would not be
    detected."""
    monkeypatch.setattr(cli, "unreadable_by_unit", lambda *_: [])
    path = tmp_path / "portal.yaml"
    path.write_text(
        GOOD + "proxy: {address: 192.0.2.1}\nonboarding: {listen: '192.0.2.1:3181'}\n"
        "captive_portal: {listen: '[2001:db8::1]:3182', behind: [127.0.0.1/32]}\n"
    )
    assert main(["check", "--config", str(path)]) == DONE
    output = capsys.readouterr()
    later = "clients cannot reach it until one has it"
    assert output.err.splitlines() == [
        f"{path}: warning: onboarding.listen: no interface of this host has 192.0.2.1; {later}",
        f"{path}: warning: captive_portal.listen: no interface of this host has 2001:db8::1; {later}",
    ]
    assert output.out == f"{path}: no errors\n"


def test_port_in_use_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "portal.yaml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path.write_text(f"check: {{squid_user: root, listen: 127.0.0.1:{port}}}")
        status, errors = run("run", path, capsys)
    assert status == FAILED
    assert errors == f"mptcp-portal: listen on 127.0.0.1:{port}: Address already in use\n"


def test_portal_answers_the_socket_owner_and_stops_on_sigterm(tmp_path: Path) -> None:
    """The real process and plain sockets are used, because uvicorn would trust X-Forwarded-For of a local client."""
    path, port = tmp_path / "portal.yaml", reserved_port()
    path.write_text(f"check: {{squid_user: {_own_name()}, listen: 127.0.0.1:{port}}}\nstatus_socket: {tmp_path}/none\n")
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notifications.bind(str(tmp_path / "notify"))
    notifications.settimeout(60)
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert b"READY=1" in notifications.recv(4096)
        assert b"WATCHDOG=1" in notifications.recv(4096)
        head = "GET /check.json HTTP/1.1\r\nHost: check.mptcp.internal\r\nConnection: close\r\n"
        assert " 403 " in _answer(port, head)
        answer = _answer(port, head + "X-Forwarded-For: 192.0.2.1\r\nMPTCP-Client: 192.0.2.1 4 192.0.2.2 3128\r\n")
        assert " 503 " in answer.splitlines()[0]  # the throttler does not run
        assert '"transport":"tcp"' in answer
        assert "server:" not in answer.lower()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == f"mptcp-portal: the check page on 127.0.0.1:{port}\n"
    finally:
        process.kill()
        process.wait()
        notifications.close()


def test_waiting_clients_are_answered_at_shutdown(tmp_path: Path) -> None:
    """Defect: waiting clients were disconnected after two seconds, each with a traceback of 40 lines in the journal."""
    port, path = reserved_port(), tmp_path / "portal.yaml"
    path.write_text(
        f"check: {{squid_user: root, listen: 127.0.0.1:{reserved_port()}}}\nstatus_socket: {tmp_path}/s\n"
        f"captive_portal: {{listen: 127.0.0.1:{port}, behind: [127.0.0.1/32]}}\n"
    )
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    head = "GET /captive-portal HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    with ExitStack() as stack:
        throttler = stack.enter_context(socket.socket(socket.AF_UNIX))
        throttler.bind(f"{tmp_path}/s")
        throttler.listen()
        throttler.settimeout(60)
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline()
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(3)]
        for number, each in enumerate(waiting):
            each.sendall(f"{head}X-Forwarded-For: 10.0.0.{number}\r\n\r\n".encode())
        stack.enter_context(throttler.accept()[0])
        # This client gets its answer after the portal has read the requests of the waiting clients.
        assert " 403 " in _answer(port, head)
        process.send_signal(signal.SIGTERM)
        answers = [b"".join(iter(partial(each.recv, 65536), b""))[:13] for each in waiting]
        # On a busy machine, an earlier request may have timed out.
        assert set(answers) <= {b"HTTP/1.1 503 ", b"HTTP/1.1 200 "}
        assert answers[-1] == b"HTTP/1.1 503 "
        assert (process.wait(30), process.stdout.read()) == (0, "")


def test_portal_serves_without_its_service_manager(tmp_path: Path) -> None:
    """Defect: a NOTIFY_SOCKET inherited from another service ended the portal with a traceback of 30 lines."""
    path, port = tmp_path / "portal.yaml", reserved_port()
    path.write_text(f"check: {{squid_user: root, listen: 127.0.0.1:{port}}}\n")
    environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "30000000"}
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"mptcp-portal: the check page on 127.0.0.1:{port}\n"
        warning = "mptcp-portal: cannot notify the service manager (READY=1): No such file or directory\n"
        assert process.stdout.readline() == warning
        assert not _is_refused(port)
        process.send_signal(signal.SIGTERM)
        assert (process.wait(30), process.stdout.read()) == (0, "")
    finally:
        process.kill()
        process.wait()


def test_unwritable_output_is_reported_in_one_line(tmp_path: Path) -> None:
    """Defect: an error while writing its output gave a traceback."""
    path = tmp_path / "portal.yaml"
    path.write_text(f"check: {{squid_user: root, listen: 127.0.0.1:{reserved_port()}}}\n")
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (FAILED, "mptcp-portal: No space left on device\n")


def test_ipv6_wildcard_also_listens_on_ipv4(tmp_path: Path) -> None:
    """Defect: the portal listened only on IPv6, although [::] in the settings means every address of this host."""
    path, port = tmp_path / "portal.yaml", reserved_port()
    path.write_text(
        f"check: {{squid_user: root, listen: 127.0.0.1:{reserved_port()}}}\nproxy: {{address: 192.0.2.1}}\n"
        f"onboarding: {{listen: '[::]:{port}', url: 'http://x/'}}\n"
    )
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        for address in ("127.0.0.1", "::1"):
            answer = _answer(port, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", address=address)
            assert " 200 " in answer.splitlines()[0]
    finally:
        process.kill()
        process.wait()


def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """Defect: the portal read the files only at its start, so systems no longer trusted the API after the expiry."""
    path, port = tmp_path / "portal.yaml", reserved_port()
    certificate, key = self_signed(tmp_path)
    (tmp_path / "new").mkdir()
    new_certificate, new_key = self_signed(tmp_path / "new")
    path.write_text(
        f"check: {{squid_user: root, listen: 127.0.0.1:{reserved_port()}}}\nstatus_socket: {tmp_path}/none\n"
        f"captive_portal: {{listen: 127.0.0.1:{port}, certificate: {certificate}, key: {key}}}\n"
    )
    command = [*checking_often("mptcp_portal.cli"), "run", "--config", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert served_certificate(port) == der(certificate)
        replace_file(certificate, new_certificate)
        replace_file(key, new_key)
        _wait_until(lambda: served_certificate(port) == der(new_certificate), "the new certificate is used")
        head = "GET /captive-portal HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        assert " 200 " in _answer(port, head, ssl.create_default_context(cafile=str(new_certificate)))
        process.send_signal(signal.SIGTERM)
        message = f"mptcp-portal: new connections use the renewed certificate {certificate}\n"
        assert (process.wait(30), process.stdout.read()) == (0, message)
    finally:
        process.kill()
        process.wait()


def test_one_client_cannot_hold_all_connections(tmp_path: Path) -> None:
    path, port = tmp_path / "portal.yaml", reserved_port()
    path.write_text(f"check: {{squid_user: root, listen: 127.0.0.1:{port}}}\n")
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    connections: list[socket.socket] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        for _ in range(MAX_CONNECTIONS):
            connections.append(socket.create_connection(("127.0.0.1", port)))
        _wait_until(lambda: _is_refused(port), "further connections are refused")
        connections.pop().close()
        _wait_until(lambda: not _is_refused(port), "a connection is accepted again")
    finally:
        process.kill()
        process.wait()
        for each in connections:
            each.close()


def test_three_listeners_serve_and_limit_connections_per_client(tmp_path: Path) -> None:
    """Squid sends all clients' requests from one address, so the check page has no limit per address."""
    certificate, key = self_signed(tmp_path)
    check, page, captive = (reserved_port() for _ in range(3))
    path = tmp_path / "portal.yaml"
    path.write_text(
        f"check: {{squid_user: {_own_name()}, listen: 127.0.0.1:{check}}}\nstatus_socket: {tmp_path}/none\n"
        f"proxy: {{address: 192.0.2.1}}\nonboarding: {{listen: 127.0.0.1:{page}}}\n"
        f"captive_portal: {{listen: 127.0.0.1:{captive}, certificate: {certificate}, key: {key}}}\n"
    )
    command = [sys.executable, "-m", "mptcp_portal.cli", "run", "--config", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    connections: dict[int, list[socket.socket]] = {check: [], page: [], captive: []}
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        trusted = ssl.create_default_context(cafile=str(certificate))
        answer = _answer(captive, "GET /captive-portal HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", trusted)
        assert "content-type: application/captive+json" in answer
        assert answer.endswith('{"captive":false}')
        # Clients can also get this page through the proxy, which denies them everything else on this host.
        found = _answer(check, "GET /use/ HTTP/1.1\r\nHost: check.mptcp.internal\r\nConnection: close\r\n")
        assert " 200 " in found.splitlines()[0]
        assert "Set it up" in found
        for port, opened in connections.items():
            opened += [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_PER_CLIENT)]
            if port == check:
                assert not _is_refused(port)
            else:
                _wait_until(partial(_is_refused, port), f"further connections to port {port} are refused")
        # Invalid data from a client must not produce a line in the journal.
        connections[check][0].sendall(b"\x00\r\n\r\n")
        assert b" 400 " in connections[check][0].recv(4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        for each in connections.values():
            for connection in each:
                connection.close()


def _is_refused(port: int) -> bool:
    try:
        return not _answer(port, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
    except ConnectionError:
        return True


def _wait_until(condition: Callable[[], bool], description: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {description}"
        time.sleep(0.02)


def _own_name() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _answer(port: int, head: str, context: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> str:
    with socket.create_connection((address, port), 30) as plain:
        client = context.wrap_socket(plain, server_hostname="127.0.0.1") if context else plain
        client.sendall((head + "\r\n").encode())
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()
