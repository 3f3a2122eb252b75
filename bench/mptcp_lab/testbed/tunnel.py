# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the two ``mptcp-tunnel`` daemons of a tunnel between relay and proxy, over the relay's uplinks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mptcp_common.status_client import ask

from .commands import TestbedError, undone
from .node import LiveNode
from .process import Process
from .services import wait_until

PORT = 51820
"""Port of the tunnel daemons, at both ends."""


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """The tunnel daemon on one node."""

    node: LiveNode
    process: Process
    socket: Path

    def paths(self) -> list[dict[str, Any]]:
        """Return the daemon's status of its paths. Raises TestbedError if it does not answer."""
        try:
            return list(ask(self.socket, {"query": "status"})["tunnels"][0]["paths"])
        except OSError as error:
            raise TestbedError(f"[{self.node.name}] query {self.socket}: {error}{self.process.tail()}") from None

    def alive_paths(self) -> list[bool]:
        """Return for each path whether the BPF programs use it; empty if the daemon does not answer yet."""
        try:
            return [bool(path["alive"]) for path in self.paths()]
        except TestbedError:
            return []


class Tunnel(NamedTuple):
    """The daemons at both ends of a tunnel."""

    relay: TunnelEnd
    proxy: TunnelEnd


@contextmanager
def tunnel(
    relay: LiveNode,
    proxy: LiveNode,
    paths: Mapping[str, str],
    *,
    port: int = PORT,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Tunnel]:
    """Run both daemons during the scope, which begins when both ends use all paths. Raises TestbedError.

    *paths* has the relay's interfaces by name. *settings* are additional settings at both ends.
    """
    key = relay.write("tunnel.key", secrets.token_hex(32))
    key.chmod(0o600)
    common = {"port": port, "key": str(key), **(settings or {})}
    peer = f"{proxy.service_address()}:{port}"
    with (
        _daemon(proxy, {"uplinks": ["wan0"], "tunnels": {"home": common}}) as proxy_end,
        _daemon(relay, {"tunnels": {"home": {**common, "peer": peer, "paths": paths}}}) as relay_end,
    ):
        for end in (relay_end, proxy_end):
            live = f"{end.node.name}: all paths are alive"
            wait_until(lambda: end.alive_paths() == [True] * len(paths), live, process=end.process)  # noqa: B023
        yield Tunnel(relay_end, proxy_end)


@contextmanager
def _daemon(node: LiveNode, values: Mapping[str, object]) -> Iterator[TunnelEnd]:
    socket = node.directory / f"{node.name}-tunnel.sock"
    # JSON is valid YAML.
    config = node.write(f"{node.name}-tunnel.yaml", json.dumps({"status_socket": str(socket), **values}))
    process = node.popen([node.program("mptcp-tunnel"), "run", "--config", str(config)], name="tunnel")
    with undone(process.stop):
        yield TunnelEnd(node, process, socket)
