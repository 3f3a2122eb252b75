"""Segments that nobody's stack sent, put on a link in front of the proxy."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from throttler_site import PORT, Site

from mptcp_lab.testbed import LiveNode
from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.segment import parse_frame

ETH_P_ALL = 3


class Link:
    """The core's end of a link to the proxy; sends frames with the addresses that are wanted."""

    def __init__(self, core: LiveNode, proxy: LiveNode, device: str = "to-proxy", end: str = "wan0") -> None:
        self._macs = [
            node.run(["cat", f"/sys/class/net/{name}/address"]).stdout.strip()
            for node, name in ((core, device), (proxy, end))
        ]
        self._proxy = proxy.address("wan0")
        self._random = random.Random(1)
        with core.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.bind((device, ETH_P_ALL))

    def close(self) -> None:
        self._socket.close()

    def frame(
        self, client: tuple[str, int], from_proxy: bool = False, checksum: int | None = None, **tcp: Any
    ) -> bytes:
        from scapy.layers.inet import IP, TCP
        from scapy.layers.l2 import Ether

        ends = [(client[0], client[1]), (self._proxy, PORT)]
        (source, sport), (destination, dport) = reversed(ends) if from_proxy else ends
        numbers = {"seq": self._random.getrandbits(32), "ack": self._random.getrandbits(32)}
        segment = TCP(sport=sport, dport=dport, chksum=checksum, **{**numbers, **tcp})
        return bytes(Ether(src=self._macs[0], dst=self._macs[1]) / IP(src=source, dst=destination) / segment)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def handshake(self, client: tuple[str, int]) -> None:
        """Open a connection as far as the wire shows: the proxy's kernel drops the third ACK for its sequence number.

        Whoever does so is on the way, and sees what the proxy answers. Nobody may have the client's address.
        """
        from mptcp_throttler.views.mptcp_layers import MpCapable, tcp_option

        self._socket.settimeout(60)
        self.send(self.frame(client, flags="S", options=[tcp_option(MpCapable())]))
        while True:
            answer = parse_frame(self._socket.recv(2000), 0.0, "")
            if answer is not None and answer.destination_port == client[1] and answer.options:
                break
        (option,) = [each for each in answer.options if isinstance(each, options.MpCapable)]
        keys = MpCapable(sender_key=self._random.getrandbits(64), receiver_key=int.from_bytes(option.sender_key, "big"))
        ack = (answer.sequence + 1) & 0xFFFFFFFF
        self.send(self.frame(client, flags="A", ack=ack, options=[tcp_option(keys)]))


@contextmanager
def link(site: Site) -> Iterator[Link]:
    with closing(Link(site.testbed["core"], site.proxy)) as end:
        yield end
