# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-gateway doctor`` with given answers of daemons and kernel."""

from __future__ import annotations

import socket
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from mptcp_common.findings import Status
from mptcp_gateway import doctor
from mptcp_gateway.model import STALLS, ParentAddress
from mptcp_gateway.settings import load_settings

SETTINGS = load_settings("uplinks: {dsl: eth0, lte: wwan0}\nparents: [proxy.example.net:3128]\n", "gateway.yaml")


def way(uplink: str, verdict: str) -> dict[str, Any]:
    return {
        "uplink": uplink, "version": 4, "address": "192.168.1.2", "gateway": None, "verdict": verdict,
        "for_seconds": 9, "reason": "",
    }  # fmt: skip


def test_doctor_judges_each_state_of_an_uplink() -> None:
    status = {"ways": [way("dsl", "good")]}  # lte has no way at all.
    assert [each.status for each in doctor.uplinks(SETTINGS, status)] == [Status.OK, Status.WARN]
    status = {"ways": [way("dsl", "plain TCP"), way("lte", "no answer")]}
    found = list(doctor.uplinks(SETTINGS, status))
    found += doctor.uplinks(SETTINGS, {"ways": [way("dsl", "good") | {"reason": STALLS}]})
    assert [each.status for each in found] == [Status.WARN] * 4
    assert all(each.why and each.remedy for each in found)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (None, Status.FAIL),
        ({"silent": "timed out", "open": 0, "connections": 1}, Status.FAIL),
        ({"silent": None, "open": 2, "connections": 9}, Status.OK),
    ],
    ids=["no status", "forwarder is silent", "forwarder answers"],
)
def test_doctor_judges_the_forwarder(answer: dict[str, Any] | None, status: Status) -> None:
    assert doctor.forwarder({"forwarder": answer, "fail": "open"}).status is status


def test_foreign_chains_that_drop_forwarded_packets_are_found() -> None:
    ours = {"family": "inet", "table": "mptcp_gateway", "name": "pass", "hook": "forward", "policy": "drop"}
    theirs = {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}
    harmless = [theirs | {"policy": "accept"}, theirs | {"hook": "output"}, {"family": "ip", "table": "t", "name": "n"}]
    assert doctor.dropping_chains([ours, *harmless]) == []
    assert doctor.dropping_chains([ours, theirs]) == ["ip filter FORWARD"]


def test_doctor_judges_the_home_interface(tmp_path: Path) -> None:
    assert doctor.home_device("br0", tmp_path).status is Status.FAIL
    (tmp_path / "br0").mkdir()
    for state, status in (("down", Status.FAIL), ("up", Status.OK), ("unknown", Status.OK)):
        (tmp_path / "br0/operstate").write_text(f"{state}\n")
        assert doctor.home_device("br0", tmp_path).status is status


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Status.OK),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Status.OK),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", Status.WARN),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", Status.FAIL),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Status.FAIL),
        (b"", Status.FAIL),
        (None, Status.OK),
    ],
    ids=["200", "503", "403", "407", "not HTTP", "closed", "no answer"],
)
def test_doctor_judges_each_answer_of_a_parent(
    answer: bytes | None, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent that gives no answer within the timeout is still connecting, so it has not refused."""
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        finished = threading.Event()

        def serve() -> None:
            with listener.accept()[0] as client:
                assert client.recv(4096).startswith(b"CONNECT 192.0.2.1:22 ")
                if answer:
                    client.sendall(answer)
                if answer != b"":
                    finished.wait(10)

        server = threading.Thread(target=serve)
        server.start()
        target = ParentAddress(ip_address("127.0.0.1"), listener.getsockname()[1])
        assert doctor.parent(target, "").status is status
        finished.set()
        server.join()
