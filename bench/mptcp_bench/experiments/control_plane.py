# SPDX-License-Identifier: GPL-2.0-or-later
"""How many real connections a second the throttler keeps up with, and at what share of a core.

The crowd of the experiment ``scale``, without Squid, opens two-subflow connections at a set pace to a listener on the
proxy's port; each closes half a second later. No event is lost if the tracker opened each connection and both its
subflows once, every capped subflow got its entry and lost it again, and neither a path-manager event nor a segment was
dropped. The client counts the connections, the kernel their joins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console

from mptcp_lab.agent.counters import added_to
from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.testbed import UNSHAPED, Testbed, TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import Throttler, start_throttler, wait_until, write_throttler_config

from .aims import aims_table
from .backends import backends
from .control_plane_judging import AIM_RATE, judge
from .findings import Findings
from .options import count, counts
from .scale_crowd import Crowd, with_crowd

RATES = (250, 500, 750, 1000)
"""Connections per second."""
SECONDS = 10
OPTIONS = {
    "rate": f"connections a second, a list, default {','.join(map(str, RATES))}",
    "seconds": f"measured at each rate, default {SECONDS}",
}
LIFETIME = 0.5
"""Seconds from the opening of a connection to its end."""
LINGERING = 11.0
"""Seconds after which as many entries go as come: each stays for ten after its subflow has ended."""
FINISHED = 30.0
"""Seconds within which the last entry is gone."""
PAUSE = 0.5
"""Seconds between two queries whether it is gone: each takes the daemon's time."""
# A soft cap's entry comes up to a second later: after the end of some connections.
POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Open connections at each rate with every backend this kernel offers; *seed* draws nothing."""
    rates = counts(options, "rate", (AIM_RATE,) if quick else RATES)
    seconds = count(options, "seconds", 3 if quick else SECONDS)
    need("root", "mptcp", "mptcp-pm", "htb", "gcc")
    data: dict[str, Any] = {"seconds": seconds, "runs": []}
    offered = backends()
    for backend in offered:
        for rate in rates:
            sample = measure(backend, rate, seconds)
            data["runs"].append({"backend": backend, "asked": rate, **sample})
            console.print(f"{backend}, {rate}/s: {sample}", highlight=False)
    aims = judge(data["runs"], offered)
    return Findings((aims_table("Control plane, two-subflow connections", aims),), data, aims=tuple(aims))


def measure(backend: str, rate: int, seconds: int) -> dict[str, float]:
    """Open *rate* connections a second; return the fate of all, and pace and CPU share over the last *seconds*."""
    with Testbed(with_crowd(UNSHAPED)) as testbed:
        proxy = testbed["proxy"]
        policy = proxy.write("policy.yaml", POLICY)
        settings = {"netfilter": backend, "verify_interval": 3600, "log_level": "warning"}
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        # Closing sets the pace; connections delayed by other programs are opened later.
        crowd = Crowd.without_squid(testbed, 2 * rate)
        mib = proxy.mib()
        crowd.hold(round(rate * LIFETIME))
        crowd.churn(rate)
        time.sleep(LINGERING)
        pid, client = throttler.process.pid, crowd.client
        begin, opened, used = time.monotonic(), client.read().opened, process_seconds(pid)
        time.sleep(seconds)
        took, opened, used = time.monotonic() - begin, client.read().opened - opened, process_seconds(pid) - used
        crowd.churn(0)
        crowd.hold(0)
        connections = client.read().opened
        joins = added_to(mib, proxy.mib()).get("MPTcpExtMPJoinAckRx", 0)
        _settle(throttler, connections)
        counters = throttler.status()["counters"]
        done, tracked, observed = counters["reconciler"], counters["tracker"], counters["observers"]
        return {
            "rate": opened / took,
            "connections": connections,
            "joins": joins,
            "opened_less_made": tracked["connections_opened"] - connections,
            "activated_less_made": tracked["subflows_activated"] - connections - joins,
            "lost": connections - min(done["entries_upserted"], done["entries_deleted"]),
            "events_lost": observed["kernel_events_lost"],
            "dropped": observed["segments_dropped"],
            "segments": observed["segments"],
            "cpu": used / took,
        }


def _settle(throttler: Throttler, connections: int) -> None:
    """Give the daemon time to finish, because entries linger; what it did not finish counts as lost."""

    def entries_gone() -> bool:
        time.sleep(PAUSE)
        return bool(throttler.status()["counters"]["reconciler"]["entries_deleted"] >= connections)

    with suppress(TestbedError):
        wait_until(entries_gone, "the throttler finishes", timeout=FINISHED)
