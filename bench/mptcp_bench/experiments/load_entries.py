# SPDX-License-Identifier: GPL-2.0-or-later
"""What entries in the kernel cost: goodput with none of our kernel objects, and with 0, 1,000 and 50,000 entries.

Plain TCP runs at full speed from the proxy's port over an unshaped link. Squid is left out, since it would hide the
cost; so is MPTCP, whose receive path varies from second to second by far more than this cost. Each packet passes the
same rule, set and HTB class as a subflow's packet would. Each number of entries has its own testbed. All are measured
in each round, in an order drawn for that round. Only ratios within a round are compared, because a small machine's
speed drifts.

As a program, ``python -m … DEVICE ADAPTER COUNT DIR``, this installs the kernel objects with the throttler's own
adapters in the proxy's namespace. The entries are for subflows that do not exist.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.services import PROXY_PORT, accepts, python_command, wait_until
from mptcp_throttler.kernel.netfilter.backends import open_netfilter
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import DEFAULT_MINOR, ClassSpec, Ownership, Target

from .columns import Column, Row, Table

SECONDS = 1.0
LINK = paths((None,), name="unshaped-link")
LEAST = 0.98
"""Least goodput, by the median, as a share of the goodput without entries."""
MARGIN = 0.05
"""Non-inferiority margin: the largest accepted loss of goodput, as a share. Rounds vary too much to detect a smaller
loss."""
THROUGH = (0.95, 1.05)
"""Least and most bytes through our class, as a share of the device's. If packets bypassed our objects, these would seem
to cost nothing. Both counters count bytes on the wire."""
COUNTS = {"nothing": None, "0 entries": 0, "1,000 entries": 1_000, "50,000 entries": 50_000}
"""Entries in the kernel set by variant; None: no kernel object of the throttler is installed."""
BASE = {"0 entries": "nothing", "1,000 entries": "0 entries", "50,000 entries": "0 entries"}
"""What each variant is compared with. The total cost of HTB and the rule is shown without an aim, because shaping
cannot be had without it."""
SPEC = ClassSpec(1, 5_000_000, 5_000_000, 16_384, 16_384, 3028, 100)
FIRST_CLIENT = int(IPv4Address("10.78.0.1"))
"""First address of the nonexistent clients, outside the testbed's client networks."""
SENDER = """
import socket, threading
listener = socket.create_server(("0.0.0.0", {port}))
data = bytes(1 << 20)
def send(connection):
    try:
        while True:
            connection.sendall(data)
    except OSError:
        connection.close()
while True:
    threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()
"""
RECEIVER = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], int(sys.argv[2])))
buffer = bytearray(1 << 20)
warm = time.monotonic() + 0.3
while time.monotonic() < warm:
    client.recv_into(buffer)
start, received = time.monotonic(), 0
while (now := time.monotonic()) < start + float(sys.argv[3]):
    received += client.recv_into(buffer)
print(received * 8 / (now - start))
"""


@dataclass(frozen=True, slots=True)
class Carried:
    """One transfer."""

    goodput: float
    """In bits/s."""
    through: float
    """Bytes through our class for uncapped traffic, as a share of those that the device sent."""


@dataclass(frozen=True, slots=True)
class Beds:
    """A testbed for each number of entries."""

    of: dict[str, Testbed]

    def check_emulation(self) -> None:
        """Nothing is emulated."""


@dataclass(frozen=True, slots=True)
class EntriesCell:
    """Entries of one netfilter adapter."""

    adapter: str

    def __str__(self) -> str:
        return self.adapter

    @contextmanager
    def bed(self, seed: int) -> Iterator[Beds]:
        with ExitStack() as stack:
            beds = {name: stack.enter_context(Testbed(LINK)) for name in COUNTS}
            for name, testbed in beds.items():
                self._prepare(testbed, COUNTS[name])
            yield Beds(beds)

    def _prepare(self, testbed: Testbed, count: int | None) -> None:
        proxy = testbed["proxy"]
        if count is not None:
            argv = [sys.executable, "-I", "-m", __name__, "wan0", self.adapter, str(count), str(testbed.directory)]
            proxy.run(argv, timeout=120)
        process = proxy.popen(python_command(SENDER.format(port=PROXY_PORT)), name="sender")
        address = proxy.address("wan0")
        wait_until(lambda: accepts(proxy, address, PROXY_PORT), "the sender listens", process=process)

    def measure(self, bed: Beds, variant: str) -> Carried:
        testbed = bed.of[variant]
        proxy = testbed["proxy"]
        ours, device = through_class(testbed), proxy.interface_bytes("wan0").sent
        argv = python_command(RECEIVER, proxy.address("wan0"), str(PROXY_PORT), str(SECONDS))
        goodput = float(testbed["client"].run(argv, timeout=SECONDS + 20).stdout)
        # Nothing is sent between two transfers, so both counters can be read one after the other.
        ours, device = through_class(testbed) - ours, proxy.interface_bytes("wan0").sent - device
        return Carried(goodput, ours / device)


def through_class(testbed: Testbed) -> int:
    """Return the bytes that our class for uncapped traffic has sent; 0 without the class."""
    shown = testbed["proxy"].run(["tc", "-s", "class", "show", "dev", "wan0"]).stdout
    name = f"{Ownership().htb_major:x}:{DEFAULT_MINOR:x}"
    found = re.search(rf"^class htb {name} .*\n Sent (\d+) bytes", shown, re.MULTILINE)
    return int(found[1]) if found else 0


def _ratios(row: Row[EntriesCell, Carried]) -> list[float]:
    """Return goodput divided by the one of the same round with which it is compared."""
    if row.variant not in BASE:
        return []
    of = {
        variant: {
            run.turn.number: run.measured.goodput
            for run in row.results.runs
            if (run.turn.cell, run.turn.variant) == (row.cell, variant)
        }
        for variant in (row.variant, BASE[row.variant])
    }
    there, base = of.values()
    return [there[number] / base[number] for number in there.keys() & base.keys()]


def _judged(row: Row[EntriesCell, Carried]) -> bool:
    return BASE.get(row.variant) == "0 entries"


def _through(row: Row[EntriesCell, Carried]) -> list[float]:
    """Return the share through our class of the round in which it differs most from 1."""
    return sorted(row.values("through"), key=lambda share: abs(share - 1))[-1:] if row.variant in BASE else []


TABLE: Table[Any, Carried] = Table(
    "Entries in the kernel",
    [
        Column("Gbit/s", "goodput", "median", scale=1e-9),
        Column("× compared with", _ratios, "median", aim="× the goodput without entries, median", digits=3,
               least=LEAST, judged=_judged),
        Column("mean at least", _ratios, "lower bound", aim="× the goodput without entries, mean, lower bound",
               digits=3, least=1 - MARGIN, judged=_judged),
        Column("through our class, × what the device sent", _through, least=THROUGH[0], most=THROUGH[1], digits=3),
    ],
    labels=[
        ("adapter", lambda row: str(row.cell)),
        ("installed", lambda row: row.variant),
        ("compared with", lambda row: BASE.get(row.variant, "")),
    ],
    of=lambda row: isinstance(row.cell, EntriesCell),
)  # fmt: skip


async def install(device: str, adapter: str, count: int, directory: Path) -> None:
    """Install the qdisc, the rule and *count* entries, sixteen per client address, and leave them in the kernel."""
    ownership = Ownership()
    target = Target(SPEC.minor, ownership.mark_mask & -ownership.mark_mask)
    proxy, port = IPv4Address("10.77.8.2").packed, ownership.listen_ports[0]
    entries = {
        FourTuple(proxy, port, (FIRST_CLIENT + i // 16).to_bytes(4, "big"), 40_000 + i % 16): target
        for i in range(count)
    }
    _, netfilter = open_netfilter(adapter, ownership)
    traffic_control = HtbTrafficControl((device,), ownership, directory)
    await traffic_control.prepare()
    await traffic_control.upsert_classes([SPEC])
    await netfilter.prepare()
    await netfilter.upsert_entries(entries)
    found = len(await netfilter.read_entries())
    if found != count:
        raise SystemExit(f"{count} entries were wanted in the kernel, {found} are there")


if __name__ == "__main__":
    asyncio.run(install(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
