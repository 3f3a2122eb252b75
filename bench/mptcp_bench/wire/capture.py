# SPDX-License-Identifier: GPL-2.0-or-later
"""Capture both sides of the proxy with tcpdump(8) on its own host, so that all time stamps are from one clock.

Each packet is cut to headers, TCP options and a request line. ``-U`` and ``--immediate-mode`` are not used: they
would wake tcpdump for each packet on the measured processor. A capture that dropped a packet is void. On a host whose
interfaces coalesce segments (GRO, TSO), the time stamps are those of the coalesced segments.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from mptcp_lab.testbed.host import Host, Program
from mptcp_lab.testbed.services import wait_until

from .packets import CaptureError, Packet, read_capture

SNAPSHOT = 320
"""Captured bytes of each frame: 14 of Ethernet, up to 40 of IP and 60 of TCP, the rest for a request line."""
BUFFER = 16_384
"""Size of the kernel's capture buffer in KiB."""
DRAIN_SECONDS = 1.5
"""Time in which tcpdump reads the packets that the kernel still holds. Its read timeout is a second."""
_COUNTS = re.compile(r"^(\d+) packets? (dropped by kernel|dropped by interface)$", re.M)
_numbers = count(1)


def dropped(output: str) -> int | None:
    """Return the number of dropped packets in tcpdump's final *output*; None if the output does not contain it."""
    counts = {kind: int(number) for number, kind in _COUNTS.findall(output)}
    return (
        counts["dropped by kernel"] + counts.get("dropped by interface", 0) if "dropped by kernel" in counts else None
    )


def device_towards(host: Host, address: str) -> str:
    """Return the interface by which *host* reaches *address*. Raises TestbedError if there is no route."""
    [route] = json.loads(host.run(["ip", "-json", "route", "get", address]).stdout)
    return str(route["dev"])


@contextmanager
def captured(host: Host, devices: Sequence[str], expression: str) -> Iterator[list[Packet]]:
    """Capture *expression*, pcap-filter(7), on *devices*. Raises CaptureError.

    The yielded list, which is not sorted, is filled when the context ends.
    """
    packets: list[Packet] = []
    running: list[tuple[str, Path, Program]] = []
    try:
        for device in devices:
            # The suffix is needed: Debian's AppArmor profile allows tcpdump to write only such files.
            file = host.directory / f"{host.name}-{device}-{next(_numbers)}.pcap"
            options = f"-n -Z root -i {device} -s {SNAPSHOT} -B {BUFFER} --time-stamp-precision=nano".split()
            process = host.popen(["tcpdump", *options, "-w", str(file), expression], name="tcpdump")
            running.append((device, file, process))
            wait_until(partial(_listens, process), f"tcpdump on {host.name}:{device} listens", process=process)
        yield packets
        time.sleep(DRAIN_SECONDS)
        for device, file, process in running:
            packets += _finish(host, device, file, process)
    finally:
        for _, file, process in running:
            process.stop()
            host.run(["rm", "-f", str(file)], check=False)


def _listens(process: Program) -> bool:
    return "listening on" in process.output()


def _finish(host: Host, device: str, file: Path, process: Program) -> list[Packet]:
    """End tcpdump and return its packets. Raises CaptureError if packets were dropped or tcpdump failed."""
    name = f"tcpdump on {host.name}:{device}"
    if not process.running:
        raise CaptureError(f"{name} ended with {process.returncode}{process.tail()}")
    if process.stop() != 0:
        raise CaptureError(f"{name} did not end in order{process.tail()}")
    lost = dropped(process.output())
    if lost is None:
        raise CaptureError(f"{name} did not report how much it captured{process.tail()}")
    if lost:
        raise CaptureError(f"{name}: {lost} packets were dropped, so the run is not a data point")
    return list(read_capture(host.read(file), f"{host.name}:{device}"))
