# SPDX-License-Identifier: GPL-2.0-or-later
"""Capture TCP segments with tcpdump(8) on several interfaces of one host, so that all time stamps are from one clock.

Each packet is cut after its headers and a request line. ``-U`` and ``--immediate-mode`` are not used: they
would wake tcpdump for each packet on the measured processor. A capture that dropped a packet is void. On a host whose
interfaces coalesce segments (GRO, TSO), the time stamps are those of the coalesced segments. The throttler's module
``replay`` reads the capture files.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import count
from pathlib import Path

from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Host, Program
from mptcp_lab.testbed.services import wait_until
from mptcp_throttler.mptcp.options import MptcpOption
from mptcp_throttler.replay import capture

SYN, ACK = 0x02, 0x10
SNAPSHOT = 320
"""Captured bytes of each frame: 14 of Ethernet, up to 40 of IP and 60 of TCP, the rest for a request line."""
BUFFER = 16_384
"""Size of the kernel's capture buffer in KiB."""
DRAIN_SECONDS = 1.5
"""Seconds in which tcpdump, with its read timeout of a second, reads the packets that the kernel still holds."""
_DROPPED = re.compile(r"^(\d+) packets? dropped by (?:kernel|interface)$", re.MULTILINE)
_numbers = count(1)


class CaptureError(TestbedError):
    """A capture cannot be read, or is incomplete. The message is one line."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment. The addresses are packed into 4 or 16 bytes."""

    time: int
    """Nanoseconds since the epoch."""
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


def dropped_packets(output: str) -> int | None:
    """Return the number of dropped packets in tcpdump's final *output*; None if the output does not contain it."""
    counts = _DROPPED.findall(output)
    return sum(map(int, counts)) if counts else None


def device_towards(host: Host, address: str) -> str:
    """Return the interface by which *host* reaches *address*. Raises TestbedError if there is no route."""
    [route] = json.loads(host.run(["ip", "-json", "route", "get", address]).stdout)
    return str(route["dev"])


@contextmanager
def capture_segments(host: Host, devices: Sequence[str], expression: str) -> Iterator[list[Packet]]:
    """Capture *expression*, pcap-filter(7), on *devices*. Raises CaptureError.

    The yielded list, which is not sorted, is filled when the context ends.
    """
    packets: list[Packet] = []
    running: list[tuple[Path, Program]] = []
    try:
        for device in devices:
            # The suffix is needed: Debian's AppArmor profile allows tcpdump to write only such files.
            file = host.directory / f"{host.name}-{device}-{next(_numbers)}.pcap"
            options = f"-n -Z root -i {device} -s {SNAPSHOT} -B {BUFFER} --time-stamp-precision=nano".split()
            process = host.popen(["tcpdump", *options, "-w", str(file), expression], name=f"tcpdump-{device}")
            running.append((file, process))
            listens = f"tcpdump on {host.name}:{device} listens"
            wait_until(lambda: "listening on" in process.output(), listens, process=process)  # noqa: B023
        yield packets
        time.sleep(DRAIN_SECONDS)
        for file, process in running:
            process.stop()
            if dropped_packets(process.output()) != 0:
                raise CaptureError(f"{process.name} on {host.name} failed or dropped packets{process.tail()}")
            packets += read_capture(host.read(file), f"{host.name}:{file.stem}")
    finally:
        for file, process in running:
            process.stop()
            host.run(["rm", "-f", str(file)], check=False)


def read_capture(data: bytes, name: str) -> Iterator[Packet]:
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
