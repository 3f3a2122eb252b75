# SPDX-License-Identifier: GPL-2.0-or-later
"""Bytes of an upload per path over time, from the proxy's sockets: bytes that arrived, not bytes that the client
sent."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.recorder import Recorder, Sample
from mptcp_lab.testbed.services import PROXY_PORT
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

from .devices import DEVICES


def upload_recorder(proxy: LiveNode, client: LiveNode) -> Recorder:
    """Return a recorder of the bytes that *proxy* received from each address of *client* (tcp_info)."""
    clients = {device: ip_address(client.address(device)).packed for device in DEVICES}
    with proxy.entered():
        diagnostics = SocketDiagnostics((PROXY_PORT,))

    def read() -> dict[str, int]:
        with proxy.entered():
            found = {subflow.four_tuple.remote: subflow.bytes_received for subflow in diagnostics.subflows()}
        return {device: found.get(address, 0) for device, address in clients.items()}

    return Recorder(proxy, DEVICES, read=read)


def on_the_wire(samples: Sequence[Sample], payload_share: float) -> tuple[Sample, ...]:
    """Return *samples* converted from payload to bytes on the wire, for full packets with *payload_share*."""
    return tuple(
        Sample(each.time, {name: round(octets / payload_share) for name, octets in each.octets.items()})
        for each in samples
    )
