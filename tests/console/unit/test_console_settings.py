# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for console.yaml: its keys, the settings that the console refuses, and the shipped file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_common.problems import DocumentError
from mptcp_console.cli import main
from mptcp_console.first_token import make_first_token
from mptcp_console.settings import Settings, read_settings, settings_schema, settings_without_a_file

CONF = Path(__file__).parents[3] / "conf"
TOKEN = "3f0c1d2e4b5a69788796a5b4c3d2e1f0"


def write_settings(directory: Path, text: str, token: str | None = None, mode: int = 0o640) -> Path:
    file = directory / "console.yaml"
    file.write_text(text)
    if token is not None:
        (directory / "token").write_text(token)
        (directory / "token").chmod(mode)
    return file


def problems(file: Path) -> str:
    with pytest.raises(DocumentError) as raised:
        read_settings(file)
    return str(raised.value)


def test_shipped_file_states_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_settings(tmp_path, (CONF / "console.yaml").read_text(), TOKEN)
    monkeypatch.setattr("mptcp_console.settings.DEFAULT_SETTINGS", file)
    assert read_settings(file) == settings_without_a_file() == Settings(token=TOKEN, token_file=tmp_path / "token")


def test_shipped_schema_matches_the_code() -> None:
    assert json.loads((CONF / "console.schema.json").read_text()) == settings_schema()


def test_all_keys_are_read(tmp_path: Path) -> None:
    text = "listen: '[::]:80'\nstatus_socket: /run/a.sock\ntoken_file: token\nhosts: [proxy.lan]\n"
    text += f"certificate: c\nkey: {tmp_path}/k\nsquid: http://[::1]:8080\nnames: n\ngrafana: https://g.lan/d/a\n"
    (tmp_path / "n").write_text("10.77.1.2 phone\n")
    for name in ("c", "k"):
        (tmp_path / name).touch()
    assert read_settings(write_settings(tmp_path, text, TOKEN + "\n")) == Settings(
        "::",
        80,
        Path("/run/a.sock"),
        TOKEN,
        ("proxy.lan",),
        tmp_path / "c",
        tmp_path / "k",
        "http://[::1]:8080",
        tmp_path / "token",
        tmp_path / "n",
        "https://g.lan/d/a",
    )


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.7", "[::]", "[fd77::1]"])
def test_listener_off_loopback_requires_a_token(tmp_path: Path, address: str) -> None:
    file = write_settings(tmp_path, f'open_to_this_host: true\nlisten: "{address}:8610"\n', TOKEN)
    found = problems(file)
    assert found.startswith(f"{file}:1: open_to_this_host: ")
    assert f"{address.strip('[]')} can be reached from other hosts, so a token is needed" in found
    file.write_text(file.read_text().partition("\n")[2])
    assert read_settings(file).token == TOKEN


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "[::1]"])
def test_listener_on_loopback_requires_a_token_unless_open_to_this_host(tmp_path: Path, address: str) -> None:
    """Defect: any user of the host could see what the status socket shows only to its group."""
    listen = f'listen: "{address}:8610"\n'
    file = write_settings(tmp_path, listen)
    assert problems(file) == (
        f"{tmp_path}/token: cannot be read: No such file or directory; write it: mptcp-console make-token"
    )
    assert read_settings(write_settings(tmp_path, listen, TOKEN)).token == TOKEN
    assert read_settings(write_settings(tmp_path, f"{listen}open_to_this_host: true\n", TOKEN)).token is None
    found = problems(write_settings(tmp_path, f"{listen}open_to_this_host: true\ntoken_file: token\n", TOKEN))
    assert f"{file}:2: open_to_this_host: " in found
    assert "is true, so token_file is not used" in found


def test_console_without_settings_requires_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_console.settings.DEFAULT_SETTINGS", tmp_path / "console.yaml")
    with pytest.raises(DocumentError, match="write it: mptcp-console make-token"):
        settings_without_a_file()


def test_make_token_writes_one_token_for_owner_and_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "console.yaml"
    before = os.umask(0o077)  # the unit's umask
    try:
        assert main(["make-token", "--config", str(file)]) == DONE
    finally:
        os.umask(before)
    assert capsys.readouterr().out == (
        f"{tmp_path}/token: written; the console requires this token, also on this host\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o640
    file.write_text("listen: 127.0.0.1:8610\n")
    token = read_settings(file).token
    assert token is not None
    assert len(token) == 64
    assert main(["make-token", "--config", str(file)]) == DONE
    assert capsys.readouterr().out == ""
    assert read_settings(file).token == token


def test_make_token_ignores_the_file_of_a_killed_process(tmp_path: Path) -> None:
    """Defect: a file that a killed process with the same PID had left was used as the new token."""
    (tmp_path / f".token.{os.getpid()}").write_text("half a tok")
    assert make_first_token(write_settings(tmp_path, "listen: 127.0.0.1:8610\n")) == tmp_path / "token"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["console.yaml", "token"]


@pytest.mark.parametrize("text", ["open_to_this_host: true", "token_file: another", "listen: nonsense", "]"])
def test_make_token_writes_no_token_that_is_not_needed(tmp_path: Path, text: str) -> None:
    assert make_first_token(write_settings(tmp_path, text + "\n")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["console.yaml"]


def test_unwritable_token_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make-token", "--config", str(tmp_path / "none" / "console.yaml")]) == FAILED
    assert "none/token: cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o641], ids=oct)
def test_token_file_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    found = problems(write_settings(tmp_path, "token_file: token\n", TOKEN, mode))
    assert f"token has mode {mode:04o}" in found
    assert "chmod 0640" in found
    assert TOKEN not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen: localhost:8610", 'listen: "localhost:8610" is not an address and port'),
        ("listen: 127.0.0.1", 'is not an address and port; write "127.0.0.1:8610" or "[::1]:8610"'),
        ("listen: 127.0.0.1:0", "is not an address and port"),
        ("listen: 127.0.0.1:65536", "is not an address and port"),
        ("listen: ::1:8610", "is not an address and port"),
        ("status_socket: run/a.sock", 'start it with "/"'),
        (f"status_socket: /{'x' * 108}", "too long for a Unix socket"),
        ("token_file: nowhere", "nowhere cannot be read: No such file or directory"),
        ("hosts: [http://a]", "write it without http:// and port"),
        ("certificate: a.pem", "certificate: needs key, too"),
        ("key: a.pem", "key: needs certificate, too"),
        ("certificate: /nowhere/a.pem", "/nowhere/a.pem cannot be read: No such file or directory"),
        ("key: /nowhere/a.key", "/nowhere/a.key cannot be read: No such file or directory"),
        ("squid: 127.0.0.1:3128", "is not the address of Squid's listener; write e.g. http://127.0.0.1:3128"),
        ("squid: http://localhost:0", "is not the address of Squid's listener"),
        ("squid: http://localhost:3128/x", "is not the address of Squid's listener"),
        ("names: nowhere", "nowhere cannot be read: No such file or directory"),
        ("names: token", "token line 1: '3f0c1d2e4b5a69788796a5b4c3d2e1f0' is not an IP address"),
        ("grafana: grafana.lan", "is not the address of a web page; write e.g. https://grafana.lan/d/mptcp"),
        ("grafana: 'javascript:alert(1)'", "is not the address of a web page"),
        ("listne: 127.0.0.1:1", "did you mean"),
        ("token_file:", "has no value"),
    ],
)
def test_mistake_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = write_settings(tmp_path, text + "\n", TOKEN)
    found = problems(file)
    assert found.startswith(f"{file}:1: ")
    assert message in found


def test_mistake_ends_run_and_check_with_their_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_settings(tmp_path, "listen: 0.0.0.0\n"))
    assert main(["run", "--config", file]) == CONFIGURATION
    assert main(["check", "--config", file]) == FAILED
    assert main(["check", "--config", str(tmp_path / "none.yaml")]) == FAILED
    assert "Traceback" not in capsys.readouterr().err


def test_check_prints_the_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", "--config", str(write_settings(tmp_path, "listen: '[::1]:99'\nopen_to_this_host: true\n"))])
        == DONE
    )
    assert "http://[::1]:99/, without a token" in capsys.readouterr().out
