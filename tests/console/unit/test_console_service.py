# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the console as a service: errors that must not stop it, and changes that it must detect while it runs."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from certificates import checking_often, der, replace_file, self_signed, served_certificate
from console_site import console
from reserved_port import reserved_port

from mptcp_common.exit_status import DONE
from mptcp_common.http_bounds import MAX_WAITING
from mptcp_console import cli
from mptcp_lab.testbed.services import wait_until


def test_console_serves_without_its_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a NOTIFY_SOCKET inherited from another service ended it with the message "certificate None, key None"."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    with console(tmp_path, tmp_path / "s", reserved_port()) as running:
        assert "mptcp-console: cannot notify the service manager (READY=1): No such file" in running.log.read_text()


def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """Defect: the console read the files only at its start, so browsers refused the page after the expiry."""
    certificate, key = self_signed(tmp_path)
    (tmp_path / "new").mkdir()
    new_certificate, new_key = self_signed(tmp_path / "new")
    settings, port = f"certificate: {certificate}\nkey: {key}\n", reserved_port()
    with console(
        tmp_path, tmp_path / "s", port, settings=settings, program=checking_often("mptcp_console.cli")
    ) as running:
        assert served_certificate(port) == der(certificate)
        replace_file(certificate, new_certificate)
        replace_file(key, new_key)
        wait_until(lambda: served_certificate(port) == der(new_certificate), "the new certificate is shown", timeout=60)
        message = f"mptcp-console: new connections use the renewed certificate {certificate}\n"
        assert running.log.read_text().count(message) == 1


def test_number_of_idle_connections_is_bounded(tmp_path: Path) -> None:
    with console(tmp_path, tmp_path / "s", port := reserved_port()), ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(MAX_WAITING + 1)
        ]
        # The console closes the oldest connection without sending anything.
        assert silent[0].recv(1) == b""
        silent[1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent[1].recv(1)
        for each in silent[1:]:
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        expected = b"HTTP/1.1 200 OK\r\n"
        last = stack.enter_context(silent[-1].makefile("rb"))
        assert last.readline() == expected


@pytest.mark.nightly(except_for=("[[::]]",))
@pytest.mark.parametrize("notation", ["[::]", "[0:0::0]"])
def test_ipv6_wildcard_also_listens_on_ipv4(tmp_path: Path, notation: str) -> None:
    """Defect: the console listened only on IPv6, although [::] means every address (docs/console.md)."""
    token, port = tmp_path / "token", reserved_port()
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    with console(tmp_path, tmp_path / "s", port, settings=f"token_file: {token}\n", address=notation):
        for address in ("127.0.0.1", "[::1]"):
            with build_opener(ProxyHandler({})).open(f"http://{address}:{port}/login", timeout=60) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("address", ["192.0.2.1", "[2001:db8::1]"])
def test_check_warns_of_an_address_that_the_host_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    """The address may appear later. Without the warning, a typo would not be detected."""
    monkeypatch.setattr(cli, "unreadable_by_unit", lambda *_: [])
    file, token = tmp_path / "console.yaml", tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    file.write_text(f"listen: '{address}:8610'\n")
    assert cli.main(["check", "--config", str(file)]) == DONE
    output = capsys.readouterr()
    why = f"no interface of this host has {address.strip('[]')}; clients cannot reach it until one has it"
    assert output.err == f"{file}: warning: listen: {why}\n"
    assert output.out.startswith(f"{file}: no errors; ")
    file.write_text("listen: 127.0.0.1:8610\n")
    assert cli.main(["check", "--config", str(file)]) == DONE
    assert capsys.readouterr().err == ""


def test_console_starts_without_its_address(tmp_path: Path) -> None:
    """Defect: the console could not start, and systemd did not try again after five attempts within seconds."""
    token, port = tmp_path / "token", reserved_port()
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    with console(tmp_path, tmp_path / "s", port, settings=f"token_file: {token}\n", address="192.0.2.1") as running:
        why = "warning: listen: no interface of this host has 192.0.2.1; clients cannot reach it until one has it"
        assert f"console-{port}.yaml: {why}\n" in running.log.read_text()
