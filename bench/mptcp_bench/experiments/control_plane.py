# SPDX-License-Identifier: GPL-2.0-or-later
"""How many real connections per second the throttler can follow, and at what share of a core.

The crowd of the experiment ``scale`` opens connections with two subflows at a fixed pace to a listener on the proxy's
port, without Squid. Each connection closes half a second later. No event is lost if the tracker opened each connection
and both subflows exactly once, if each capped subflow got its kernel entry and lost it again, and if no path-manager
event and no segment was dropped. The client counts the connections; the kernel counts their joins.
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
"""Rates that are measured, in connections per second."""
SECONDS = 10
OPTIONS = {
    "rate": f"connections a second, a list, default {','.join(map(str, RATES))}",
    "seconds": f"measured at each rate, default {SECONDS}",
}
LIFETIME = 0.5
"""Seconds from the opening of a connection to its end."""
LINGERING = 11.0
"""Seconds after which as many entries are removed as are added: an entry stays for ten after its subflow has ended."""
FINISHED = 30.0
"""Seconds within which the last entry must be gone."""
PAUSE = 0.5
"""Seconds between two queries whether the last entry is gone. Each query costs the daemon processor time."""
# landing: at-once, because a soft cap gets its entry up to a second later, when some connections have already ended.
POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Open connections at each rate with every backend that this kernel offers. *seed* has no effect."""
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
    """Open *rate* connections per second. Return their counts, and pace and CPU share in the last *seconds*."""
    with Testbed(with_crowd(UNSHAPED)) as testbed:
        proxy = testbed["proxy"]
        policy = proxy.write("policy.yaml", POLICY)
        settings = {"netfilter": backend, "verify_interval": 3600, "log_level": "warning"}
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        # The pace is that of closing. If another program delays the client, it opens the missing connections later.
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
    """Wait until the daemon has removed all entries, which stay for a while. If it does not, they count as lost."""

    def entries_gone() -> bool:
        time.sleep(PAUSE)
        return bool(throttler.status()["counters"]["reconciler"]["entries_deleted"] >= connections)

    with suppress(TestbedError):
        wait_until(entries_gone, "the throttler finishes", timeout=FINISHED)
