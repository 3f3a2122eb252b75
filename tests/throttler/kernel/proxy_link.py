# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends crafted TCP segments over the link between the core router and the proxy."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from throttler_site import PORT, Site

from mptcp_lab.testbed import LiveNode
from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.segment import parse_frame

ETH_P_ALL = 3
NO_OPERATION = "NOP"
OPTION_BYTES = 40
"""Maximum length of the options in a TCP header, in bytes."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def _word_sum(data: bytes) -> int:
    """Return the sum of the big-endian 16-bit words of *data*."""
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


class _Iovec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """``struct msghdr``, sendmsg(2)."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("iovecs", ctypes.POINTER(_Iovec)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """``struct mmsghdr``, sendmmsg(2)."""

    _fields_ = (("header", _Header), ("sent", ctypes.c_uint))


class Link:
    """The core router's end of a link to the proxy. It sends frames with any source address."""

    def __init__(
        self, core: LiveNode, proxy: LiveNode, core_device: str = "to-proxy", proxy_device: str = "wan0"
    ) -> None:
        self._macs = [
            node.run(["cat", f"/sys/class/net/{name}/address"]).stdout.strip()
            for node, name in ((core, core_device), (proxy, proxy_device))
        ]
        self._proxy = {family: proxy.address("wan0", family) for family in (4, 6)}
        self._random = random.Random(1)
        with core.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.bind((core_device, ETH_P_ALL))

    def close(self) -> None:
        self._socket.close()

    def frame(
        self, client: tuple[str, int], from_proxy: bool = False, checksum: int | None = None, **tcp: Any
    ) -> bytes:
        from scapy.layers.inet import IP, TCP
        from scapy.layers.inet6 import IPv6
        from scapy.layers.l2 import Ether

        family = 6 if ":" in client[0] else 4
        ends = [(client[0], client[1]), (self._proxy[family], PORT)]
        (source, sport), (destination, dport) = reversed(ends) if from_proxy else ends
        numbers = {"seq": self._random.getrandbits(32), "ack": self._random.getrandbits(32)}
        segment = TCP(sport=sport, dport=dport, chksum=checksum, **{**numbers, **tcp})
        packet = (IPv6 if family == 6 else IP)(src=source, dst=destination)
        return bytes(Ether(src=self._macs[0], dst=self._macs[1]) / packet / segment)

    def frames_with_options(self, client: tuple[str, int], options: Sequence[bytes], **tcp: Any) -> list[bytes]:
        """Return one frame for each item of *options*. An item is all TCP options of its frame, as bytes.

        This is much faster than ``frame``.
        """
        blank = self.frame(client, options=[(NO_OPERATION, None)] * OPTION_BYTES, **tcp)
        headers, checksum_bytes = (
            blank[:-OPTION_BYTES],
            slice(len(blank) - OPTION_BYTES - 4, len(blank) - OPTION_BYTES - 2),
        )
        (checksum,) = struct.unpack("!H", blank[checksum_bytes])
        frames = []
        for each in options:
            padded = each.ljust(OPTION_BYTES, b"\1")
            # RFC 1624: add the difference that the words of the options make to the checksum.
            total = (~checksum & 0xFFFF) + _word_sum(padded) - _word_sum(bytes([1]) * OPTION_BYTES)
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            new_checksum = struct.pack("!H", ~total & 0xFFFF)
            frames.append(headers[: checksum_bytes.start] + new_checksum + headers[checksum_bytes.stop :] + padded)
        return frames

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def batches(self, frames: Sequence[bytes], batch_size: int) -> FrameBatches:
        """Prepare *frames*. Each `send` of the result sends *batch_size* frames, which is much faster."""
        return FrameBatches(self._socket.fileno(), frames, batch_size)

    def fake_handshake(self, client: tuple[str, int]) -> None:
        """Send a handshake that is complete only for an observer: its third ACK has a wrong sequence number.

        An attacker must be on the path for this, to see the proxy's answers. No host may have the client's address.
        """
        from mptcp_layers import MpCapable, tcp_option

        self._socket.settimeout(60)
        self.send(self.frame(client, flags="S", options=[tcp_option(MpCapable())]))
        while True:
            answer = parse_frame(self._socket.recv(2000), 0.0, "")
            if answer is not None and answer.destination_port == client[1] and answer.options:
                break
        (option,) = [each for each in answer.options if isinstance(each, options.MpCapable)]
        assert option.sender_key is not None
        keys = MpCapable(sender_key=self._random.getrandbits(64), receiver_key=int.from_bytes(option.sender_key, "big"))
        ack = (answer.sequence + 1) & 0xFFFFFFFF
        self.send(self.frame(client, flags="A", ack=ack, options=[tcp_option(keys)]))


class FrameBatches:
    """Frames that are prepared for sendmmsg(2). The system call does not block other threads."""

    def __init__(self, fd: int, frames: Sequence[bytes], batch_size: int) -> None:
        self._fd = fd
        self._iovecs = [_Iovec(frame, len(frame)) for frame in frames]
        messages = [_Message(_Header(iovecs=ctypes.pointer(iovec), count=1)) for iovec in self._iovecs]
        batches = [messages[start : start + batch_size] for start in range(0, len(messages), batch_size)]
        self._batches = itertools.cycle([(_Message * len(batch))(*batch) for batch in batches])

    def send(self) -> int:
        """Send the next frames and return how many the kernel accepted. Raises OSError if it accepted none."""
        batch = next(self._batches)
        sent = int(_LIBC.sendmmsg(self._fd, batch, len(batch), 0))
        if sent < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return sent


@contextmanager
def link(site: Site) -> Iterator[Link]:
    with closing(Link(site.testbed["core"], site.proxy)) as proxy_link:
        yield proxy_link
