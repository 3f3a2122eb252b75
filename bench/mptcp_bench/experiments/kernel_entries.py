# SPDX-License-Identifier: GPL-2.0-or-later
"""Install a throttler's kernel objects, with any number of set entries: ``python -m … DEVICE BACKEND COUNT DIR``.

The experiment ``datapath`` runs this program inside the proxy's namespace. It uses the throttler's own adapters, so the
kernel objects are exactly the throttler's. The entries are for subflows that do not exist.
"""

from __future__ import annotations

import asyncio
import sys
from ipaddress import IPv4Address
from pathlib import Path

from mptcp_throttler.kernel.netfilter.backends import open_netfilter
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import ClassSpec, Ownership, Target

PROXY = IPv4Address("10.77.8.2").packed
FIRST_CLIENT = int(IPv4Address("10.78.0.1"))
"""First address of the nonexistent clients, outside the testbed's client networks."""
SPEC = ClassSpec(1, 5_000_000, 5_000_000, 16_384, 16_384, 3028, 100)


def entries(count: int, ownership: Ownership) -> dict[FourTuple, Target]:
    """Return *count* entries, sixteen per client address."""
    mark = ownership.mark_mask & -ownership.mark_mask
    target = Target(SPEC.minor, mark)
    port = ownership.listen_ports[0]
    return {
        FourTuple(PROXY, port, (FIRST_CLIENT + i // 16).to_bytes(4, "big"), 40_000 + i % 16): target
        for i in range(count)
    }


async def main(device: str, backend: str, count: int, directory: Path) -> None:
    """Install the qdisc, the rule and *count* entries, and leave them in the kernel."""
    ownership = Ownership()
    _, netfilter = open_netfilter(backend, ownership)
    traffic_control = HtbTrafficControl((device,), ownership, directory)
    await traffic_control.prepare()
    await traffic_control.upsert_classes([SPEC])
    await netfilter.prepare()
    await netfilter.upsert_entries(entries(count, ownership))
    found = len(await netfilter.read_entries())
    if found != count:
        raise SystemExit(f"{count} entries were wanted in the kernel, {found} are there")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
