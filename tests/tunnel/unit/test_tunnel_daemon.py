# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tunnel's daemon: which messages it accepts."""

from __future__ import annotations

import time
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptcp_tunnel import daemon as daemon_module
from mptcp_tunnel.daemon import Daemon
from mptcp_tunnel.kernel.packets import Received
from mptcp_tunnel.message import Key, Kind, Message, pack
from mptcp_tunnel.model import MAX_PATHS, End, Ends, PathCounters
from mptcp_tunnel.settings import load_settings

SECRET = b"x" * 32
RELAY = Ends(End(ip_address("192.0.2.1"), 51820), End(ip_address("192.0.2.9"), 51820))


@pytest.mark.parametrize("path", [MAX_PATHS - 1, MAX_PATHS, 255])
def test_message_is_accepted_only_with_a_possible_path_number(
    path: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: a relay's signed message with a higher number ended the daemon, and with it the tunnels of all relays."""
    key = tmp_path / "key"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    monkeypatch.setattr(daemon_module, "Network", lambda: None)
    text = f"status_socket: {tmp_path}/socket\nuplinks: [lo]\ntunnels:\n  home: {{port: 51820, key: {key}}}\n"
    daemon: Any = Daemon(load_settings(text, "tunnel.yaml"))
    daemon._programs = SimpleNamespace(counters=lambda _: (PathCounters(0, 0, 0, 0),) * MAX_PATHS)
    sent: list[bytes] = []
    daemon._uplinks = SimpleNamespace(send=lambda interface, ends, payload, class_id: sent.append(payload))
    payload = pack(Message(Kind.PROBE, path, 1, 2, 0, 0, 0, 0), Key(SECRET))
    daemon._read_messages(
        SimpleNamespace(interface="lo", read=lambda _: [Received(RELAY, payload, time.monotonic_ns())])
    )
    accepted = path < MAX_PATHS
    assert (len(sent), daemon.refused) == (accepted, not accepted)
