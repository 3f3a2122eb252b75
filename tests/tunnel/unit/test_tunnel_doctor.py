# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-tunnel doctor`` and ``check``: their findings about a host."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from mptcp_common.findings import Status
from mptcp_tunnel import doctor
from mptcp_tunnel.cli import main
from mptcp_tunnel.kernel.trial import NEEDS
from mptcp_tunnel.settings import Tunnel, load_settings

TEXT = """
tunnels:
  home: {port: 51820, peer: "203.0.113.5:51820", key: /k, paths: {dsl: eth0, lte: wwan0}}
"""


@pytest.fixture
def tunnel() -> Tunnel:
    return load_settings(TEXT, "tunnel.yaml").tunnels[0]


def status(*alive: bool) -> dict[str, Any]:
    paths = [{"path": name, "alive": is_alive} for name, is_alive in zip(("dsl", "lte"), alive, strict=False)]
    return {"tunnels": [{"name": "home", "paths": paths}]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, Status.WARN),
        (status(), Status.FAIL),
        (status(False, False), Status.FAIL),
        (status(True, False), Status.WARN),
        (status(True, True), Status.OK),
    ],
    ids=["no answer", "no path", "no path alive", "one path alive", "both paths alive"],
)
def test_doctor_judges_the_states_of_the_paths(tunnel: Tunnel, answer: dict[str, Any] | None, expected: Status) -> None:
    (finding,) = doctor.check_paths([tunnel], answer)
    assert finding.status is expected
    assert expected is Status.OK or (finding.why and finding.remedy)
    assert ("lte" in finding.text) == (answer == status(True, False))


def test_doctor_judges_the_port_of_the_program(tunnel: Tunnel) -> None:
    assert doctor.check_program(tunnel, {51820}).status is Status.OK
    assert doctor.check_program(tunnel, {1194}).status is Status.WARN


@pytest.mark.parametrize(
    "answer",
    [b"", b'{"tunnels": [{"na', b"[" * 100_000, b"[]"],
    ids=["empty", "cut off", "deeply nested", "list"],
)
def test_malformed_answer_of_the_daemon_counts_as_no_answer(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_missing_features", dict)
    (tmp_path / "k").write_bytes(b"k" * 32)
    (tmp_path / "k").chmod(0o600)
    settings = tmp_path / "tunnel.yaml"
    settings.write_text(f"status_socket: {tmp_path}/s\n" + TEXT.replace("/k", str(tmp_path / "k")))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            for _ in range(2):
                client, _address = listener.accept()
                with client:
                    client.recv(4096)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        main(["doctor", "--json", "--config", str(settings)])
        assert "it does not answer" in capsys.readouterr().out
        assert main(["status", "--config", str(settings)]) == 1
        assert "Traceback" not in capsys.readouterr().err
        thread.join()


@pytest.mark.parametrize("feature", NEEDS)
def test_check_names_a_missing_kernel_feature(
    feature: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {name: "Operation not supported" if name == feature else None for name in NEEDS}
    monkeypatch.setattr("mptcp_tunnel.kernel.trial.in_fresh_namespace", lambda *_: (results, ""))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    key = tmp_path / "k"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    settings = tmp_path / "tunnel.yaml"
    settings.write_text(TEXT.replace("/k", str(key)))
    assert main(["check", "--config", str(settings)]) == 1
    assert f"{NEEDS[feature].what}: Operation not supported" in capsys.readouterr().err
