# SPDX-License-Identifier: GPL-2.0-or-later
"""Capture both sides of the proxy with tcpdump(8) on its own host, so that all time stamps are from one clock.

Each packet is cut to headers, TCP options and a request line. tcpdump writes through its buffer. ``-U`` and
``--immediate-mode`` are not used, because they would wake tcpdump for each packet on the measured processor. Instead,
tcpdump has some time at the end to read the packets that the kernel still holds. If a capture dropped any packet, it is
void.

On a host whose interfaces coalesce segments (GRO, TSO), the time stamps are those of the coalesced segments.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from mptcp_lab.testbed.commands import TestbedError, undone_on_error
from mptcp_lab.testbed.host import Host, Program
from mptcp_lab.testbed.services import wait_until

from .packets import CaptureError, Packet, read_capture

SNAPSHOT = 320
"""Captured bytes of each frame: 14 of Ethernet, up to 40 of IP and 60 of TCP, the rest for a request line."""
BUFFER = 16_384
"""Size of the kernel's capture buffer in KiB."""
DRAIN = 1.5
"""Seconds in which tcpdump reads the packets that the kernel still holds. Its read timeout is a second."""
_COUNTS = re.compile(r"^(\d+) packets? (captured|received by filter|dropped by kernel|dropped by interface)$", re.M)
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Capture:
    """A tcpdump process that captures on one interface."""

    host: Host
    device: str
    file: Path
    process: Program

    def finish(self) -> list[Packet]:
        """End tcpdump and return its packets. Raises CaptureError if packets were dropped or tcpdump failed."""
        name = f"{self.host.name}:{self.device}"
        if not self.process.running:
            raise CaptureError(f"tcpdump on {name} ended with {self.process.returncode}{self.process.tail()}")
        if self.process.stop() != 0:
            raise CaptureError(f"tcpdump on {name} did not end in order{self.process.tail()}")
        lost = dropped(self.process.output())
        if lost is None:
            raise CaptureError(f"tcpdump on {name} did not say how much it captured{self.process.tail()}")
        if lost:
            raise CaptureError(f"tcpdump on {name}: {lost} packets were dropped; the run says nothing")
        return list(read_capture(self.host.read(self.file), name))


def dropped(said: str) -> int | None:
    """Return the number of dropped packets in tcpdump's final output *said*; None if the output does not contain it."""
    counts = {what: int(number) for number, what in _COUNTS.findall(said)}
    if "captured" not in counts or "dropped by kernel" not in counts:
        return None
    return counts["dropped by kernel"] + counts.get("dropped by interface", 0)


def device_towards(host: Host, address: str) -> str:
    """Return the interface by which *host* reaches *address*. Raises TestbedError if there is no route."""
    routes = json.loads(host.run(["ip", "-json", "route", "get", address]).stdout)
    if not routes or "dev" not in routes[0]:
        raise TestbedError(f"{host.name}: no route to {address}")
    return str(routes[0]["dev"])


@contextmanager
def captured(host: Host, devices: Sequence[str], expression: str) -> Iterator[list[Packet]]:
    """Capture *expression*, pcap-filter(7), on *devices*. Raises CaptureError.

    The yielded list, which is not sorted, is filled when the context ends.
    """
    packets: list[Packet] = []
    running: list[Capture] = []
    try:
        for device in devices:
            running.append(_start(host, device, expression))
        yield packets
        time.sleep(DRAIN)
        for capture in running:
            packets += capture.finish()
    finally:
        for capture in running:
            capture.process.stop()
            host.run(["rm", "-f", str(capture.file)], check=False)


def _start(host: Host, device: str, expression: str) -> Capture:
    # The suffix is needed: Debian's AppArmor profile allows tcpdump to write only such files.
    file = host.directory / f"{host.name}-{device}-{next(_numbers)}.pcap"
    options = ["-n", "-Z", "root", "-i", device, "-s", str(SNAPSHOT), "-B", str(BUFFER)]
    argv = ["tcpdump", *options, "--time-stamp-precision=nano", "-w", str(file), expression]
    process = host.popen(argv, name="tcpdump")
    listens = f"tcpdump on {host.name}:{device} listens"
    with undone_on_error(process.stop):
        wait_until(lambda: "listening on" in process.output(), listens, process=process)
    return Capture(host, device, file, process)
