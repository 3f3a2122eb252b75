"""How many connections a second the throttler keeps up with, and at what share of a core.

Handshakes of two-subflow connections, with right keys and HMACs, are made beforehand and replayed at a set pace on the
interface that the daemon watches: what the client says comes in, what the proxy says goes out; each connection closes a
little later. Nothing of it exists as a socket, so all that the daemon knows it has from packets. No event is lost when
the tracker opened each connection and both its subflows once, every connection got its entry and lost it again, and no
segment was dropped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from mptcp_common.status_client import ask
from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.testbed import UNSHAPED, LiveNode, Testbed, TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import start_throttler, wait_until, write_throttler_config

from .aims import aims_table
from .backends import backends
from .control_plane_judging import AIM_RATE, judge
from .findings import Findings
from .options import count, counts

RATES = (250, 500, 1000, 1500)
"""Connections a second."""
SECONDS = 10
OPTIONS = {
    "rate": f"connections a second, a list, default {','.join(map(str, RATES))}",
    "seconds": f"that each replay takes, default {SECONDS}; frames are made before, 1.5 kB for a connection",
}
SUBFLOWS = 2
FINISHED = 30.0
"""Seconds within which the last entry is gone: it stays for ten after its subflow has ended."""
POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s}}
"""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Replay at each rate with every backend this kernel offers."""
    rates = counts(options, "rate", (AIM_RATE,) if quick else RATES)
    seconds = count(options, "seconds", 3 if quick else SECONDS)
    need("root", "mptcp", "htb")
    data: dict[str, Any] = {"seconds": seconds, "runs": []}
    offered = backends()
    for backend in offered:
        for rate in rates:
            sample = measure(backend, rate, seconds, seed)
            data["runs"].append({"backend": backend, "asked": rate, **sample})
            console.print(f"{backend}, {rate}/s: {sample}", highlight=False)
    aims = judge(data["runs"], offered)
    return Findings((aims_table("Control plane, two-subflow connections", aims),), data, aims=tuple(aims))


def measure(backend: str, rate: int, seconds: int, seed: int) -> dict[str, float]:
    """Replay *rate* connections a second for *seconds*; return what became of them and the daemon's CPU share."""
    with Testbed(UNSHAPED) as testbed:
        proxy, core = testbed["proxy"], testbed["core"]
        policy = proxy.write("policy.yaml", POLICY)
        settings = {"netfilter": backend, "verify_interval": 3600, "log_level": "warning"}
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        module, report = "mptcp_bench.experiments.replay", testbed.directory / "replay.json"
        pid, before = throttler.process.pid, process_seconds(throttler.process.pid)
        argv = [sys.executable, "-I", "-m", module, "to-proxy", proxy.namespace, "wan0"]
        argv += [str(rate), str(seconds), str(seed), str(report)]
        core.run(argv, timeout=10 * seconds + 60)
        sent = json.loads(Path(report).read_text())

        def entries_gone() -> bool:
            counters = ask(throttler.socket, {"query": "status"})["counters"]
            return bool(counters["reconciler"]["entries_deleted"] >= sent["connections"])

        _settle(entries_gone, proxy)
        cpu = (process_seconds(pid) - before) / sent["seconds"]
        counters = ask(throttler.socket, {"query": "status"})["counters"]
        done, tracked = counters["reconciler"], counters["tracker"]
        return {
            "rate": sent["connections"] / sent["seconds"],
            "connections": sent["connections"],
            "seconds": sent["seconds"],
            "opened_less_sent": tracked["connections_opened"] - sent["connections"],
            "activated_less_sent": tracked["subflows_activated"] - SUBFLOWS * sent["connections"],
            "lost": sent["connections"] - min(done["entries_upserted"], done["entries_deleted"]),
            "dropped": counters["observers"]["segments_dropped"],
            "segments": counters["observers"]["segments"],
            "cpu": cpu,
        }


def _settle(done: Any, node: LiveNode) -> None:
    """Give the daemon time to finish, as entries linger; what it did not finish is counted as lost."""
    try:
        wait_until(done, f"the throttler on {node.name} finishes", timeout=FINISHED)
    except TestbedError:
        time.sleep(0.1)
