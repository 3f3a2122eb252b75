"""How many connections a second the throttler keeps up with, and at what share of a core.

Handshakes of two-subflow connections, with right keys and HMACs, are made beforehand and replayed through a veth
into the interface that the daemon watches, at a set pace; each connection closes a little later. Nothing of it
exists as a socket, so all that the daemon knows it has from packets. No event is lost when every connection got its
entry and lost it again, and no segment was dropped.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from mptcp_throttler.status import ask

from ..testbed import UNSHAPED, LiveNode, Testbed, TestbedError
from ..testbed.features import missing
from ..testbed.services import start_throttler, wait_until, write_throttler_config
from . import Result
from .scene import Aim, aims_table, missed, need

RATES = (250, 500, 1000, 1500)
"""Connections a second."""
SECONDS = 10
AIM_RATE = 1000
POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s}}
"""
BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}


def run(console: Console, seed: int, quick: bool) -> Result:
    """Replay at each rate with every backend this kernel offers."""
    need("root", "mptcp", "htb")
    backends = [name for name, needs in BACKENDS.items() if all(missing(n) is None for n in needs)]
    if not backends:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    aims: list[Aim] = []
    data: dict[str, Any] = {"seconds": SECONDS, "runs": []}
    for backend in backends:
        for rate in (AIM_RATE,) if quick else RATES:
            sample = measure(backend, rate, 3 if quick else SECONDS, seed)
            data["runs"].append({"backend": backend, "rate": rate, **sample})
            console.print(f"{backend}, {rate}/s: {sample}", highlight=False)
            wanted = 0 if rate <= AIM_RATE else None
            name = f"{backend}, {sample['rate']:.0f} connections/s"
            aims += [
                Aim(f"{name}: connections not tracked or not forgotten", sample["lost"], most=wanted),
                Aim(f"{name}: segments dropped", sample["dropped"], most=wanted),
                Aim(f"{name}: share of one core", 100 * sample["cpu"], " %", most=100 if rate <= AIM_RATE else None),
            ]
    data["aims"] = [{**asdict(aim), "met": aim.met} for aim in aims]
    return Result((aims_table("Control plane, two-subflow connections", aims),), data, missed(aims))


def measure(backend: str, rate: int, seconds: int, seed: int) -> dict[str, float]:
    """Replay *rate* connections a second for *seconds*; return what became of them and the daemon's CPU share."""
    with Testbed(UNSHAPED) as testbed:
        proxy, core = testbed["proxy"], testbed["core"]
        policy = testbed.directory / "policy.yaml"
        policy.write_text(POLICY)
        settings = {"netfilter": backend, "verify_interval": 3600, "log_level": "warning"}
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        module, report = "mptcp_bench.experiments.replay", testbed.directory / "replay.json"
        pid, before = throttler.process.pid, cpu_seconds(throttler.process.pid)
        argv = [sys.executable, "-m", module, "to-proxy", str(rate), str(seconds), str(seed), str(report)]
        core.run(argv, timeout=10 * seconds + 60)
        sent = json.loads(Path(report).read_text())

        def entries_gone() -> bool:
            counters = ask(throttler.socket)["counters"]
            return bool(counters["reconciler"]["entries_deleted"] >= sent["connections"])

        _settle(entries_gone, proxy)
        cpu = (cpu_seconds(pid) - before) / sent["seconds"]
        counters = ask(throttler.socket)["counters"]
        done = counters["reconciler"]
        return {
            "rate": sent["connections"] / sent["seconds"],
            "connections": sent["connections"],
            "lost": sent["connections"] - min(done["entries_upserted"], done["entries_deleted"]),
            "dropped": counters["observers"]["segments_dropped"],
            "segments": counters["observers"]["segments"],
            "cpu": cpu,
        }


def _settle(done: Any, node: LiveNode) -> None:
    """Give the daemon time to finish; what it did not finish is counted as lost."""
    try:
        wait_until(done, f"the throttler on {node.name} finishes", timeout=10)
    except TestbedError:
        time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of process *pid*; proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
