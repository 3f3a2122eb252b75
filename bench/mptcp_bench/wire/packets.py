# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP segments of a capture, with their lengths, MPTCP options and the captured part of their payload.

The throttler's module ``replay`` reads the capture file. Times are integer nanoseconds since the epoch, as captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from mptcp_lab.testbed.commands import TestbedError
from mptcp_throttler.mptcp.options import MptcpOption
from mptcp_throttler.replay import capture

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10


class CaptureError(TestbedError):
    """A capture that cannot be read, or that lacks what it should show. The message is one line."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment. The addresses are packed into 4 or 16 bytes."""

    time: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    flags: int
    sequence: int
    acknowledgment: int
    options: tuple[MptcpOption, ...]
    length: int
    """Number of payload bytes on the wire."""
    payload: bytes
    """The captured part of the payload."""


def read_capture(data: bytes, name: str = "capture") -> Iterator[Packet]:
    """Yield the TCP segments of the capture file *data*, in file order. Raises CaptureError if it is unreadable."""
    file = capture.CaptureFile(BytesIO(data), name)
    try:
        for each, time, length, payload in file:
            source, destination = (each.source, each.source_port), (each.destination, each.destination_port)
            numbers = each.flags, each.sequence, each.acknowledgment
            yield Packet(time, *source, *destination, *numbers, each.options, length, payload)
    except capture.CaptureError as error:
        raise CaptureError(str(error)) from error
    if file.damage is not None:
        raise CaptureError(file.damage)
    if file.unsupported:
        raise CaptureError(f"{name}: link type {next(iter(file.unsupported))}; known are {capture.KNOWN_LINK_TYPES}")
