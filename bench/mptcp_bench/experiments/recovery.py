"""kill -9 and restart in mid-transfer; clean-up after a crash; SIGTERM.

With each netfilter adapter that this kernel offers, on one download through the proxy with conf/policy.yaml:

- killed: the caps stay in force while no throttler runs; a new one adopts them: the same classes on the same
  subflows, the same entries and classes in the kernel, at no moment more traffic than the cap, no gap in goodput;
- killed, then ``mptcp-throttler cleanup``; and ended by SIGTERM: each time the kernel's dumps (``scene.DUMPS``) are
  equal to those before the first start.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import TWO_PATHS, LiveNode, Process, Testbed, TestbedError
from mptcp_lab.testbed.recorder import Recorder, greatest_rate, longest_gap, mean_rate
from mptcp_lab.testbed.services import (
    Throttler,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import Added, Protocol, wget

from ..shipped import POLICY, ethernet_cap
from . import Result
from .scene import Aim, aims_table, backends, differences, kernel_state, need

DEVICES = ("eth0", "wlan0")
SETTLE, DOWN, AFTER = 5.0, 2.0, 4.0
"""Seconds: to the steady state, without a throttler, and after the restart."""
FILE_SIZE = 200_000_000
"""More than the download gets done; the client is stopped."""
GAP = 0.25
"""Seconds below half of the steady rate that count as no gap: two and a half samples."""
WINDOW = 0.5
"""Seconds over which the cap must hold at every moment from the kill to the end."""
COUNTERS = re.compile(r"\s(packets|bytes) \d+")


@dataclass
class Findings:
    """What one backend's run showed."""

    backend: str
    aims: list[Aim] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, what: str, value: float, **bounds: float) -> None:
        self.aims.append(Aim(f"{self.backend}: {what}", value, **bounds))  # type: ignore[arg-type]

    def equal(self, what: str, found: list[str]) -> None:
        self.add(f"{what}: dumps that differ", len(found), most=0)
        self.differences += [f"{self.backend}, {what}: {text}" for text in found]


def run(console: Console, seed: int, quick: bool) -> Result:
    """Run it with every backend that this kernel offers; nothing in it is drawn at random."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize")
    offered = backends()
    found = []
    for backend in offered[:1] if quick else offered:
        console.print(f"{backend}: kill -9 and restart in mid-transfer, cleanup, SIGTERM", style="dim")
        with Testbed(TWO_PATHS) as testbed:
            found.append(examine(testbed, backend))
    for text in (text for f in found for text in f.differences):
        console.print(text, highlight=False, soft_wrap=True, style="red")
    aims = [aim for f in found for aim in f.aims]
    data: dict[str, Any] = {
        "rates": {f.backend: f.rates for f in found},
        "differences": [text for f in found for text in f.differences],
    }
    return Result((aims_table("Recovery", aims),), data, aims=tuple(aims))


def examine(testbed: Testbed, backend: str) -> Findings:
    """Start, kill, restart, kill, clean up, start, stop; look at the kernel after each step."""
    findings = Findings(backend)
    cap = ethernet_cap()
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file": FILE_SIZE})
    proxy = start_proxy(node)
    config = write_throttler_config(node, POLICY, settings={"netfilter": backend})
    before = kernel_state(node)
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    with Recorder(testbed["client"], DEVICES) as recorder:
        throttler = start_throttler(node, config)
        added = Added(testbed["client"], node)
        client = testbed["client"].popen(["sh", "-c", '"$@" >/dev/null', "sh", *argv], name="wget")
        pause(client, lambda: recorder.now, SETTLE)
        complaint = Protocol.of(*added.read()).complaint(multipath=True)
        if complaint is not None:
            raise TestbedError(f"recovery, {backend}: {complaint}")
        capped = caps(throttler)
        objects = ours(node)
        killed = recorder.now
        throttler.process.kill()
        findings.add("dumps that changed by kill -9", len(differences(objects, ours(node))), most=0)
        pause(client, lambda: recorder.now, killed + DOWN)
        restarted = recorder.now
        throttler = start_throttler(node, config)
        wait_until(lambda: caps(throttler) == capped, "the restarted throttler has the same caps", timeout=10)
        findings.add("dumps that changed by the restart", len(differences(objects, ours(node))), most=0)
        findings.add("seconds from restart to the same caps on the same subflows", recorder.now - restarted)
        ready = recorder.now
        pause(client, lambda: recorder.now, ready + AFTER)
        end = recorder.now
        client.stop()
    samples = recorder.samples
    phases = {"before": (SETTLE - 2.0, killed), "dead": (killed, restarted), "after": (ready, end)}
    findings.rates = {n: {d: mean_rate(samples, d, *span) for d in DEVICES} for n, span in phases.items()}
    total = sum(findings.rates["before"].values())
    for name, rate in findings.rates.items():
        findings.add(f"Ethernet / its cap, {name}", rate["eth0"] / cap, least=0.95, most=1.05)
    # The moments in which one throttler is gone and the next begins are too short for a mean of their own.
    most = greatest_rate(samples, "eth0", WINDOW, killed, end)
    findings.add(f"Ethernet / its cap, greatest over {WINDOW:g} s from the kill to the end", most / cap, most=1.05)
    after = sum(findings.rates["after"].values()) / total
    findings.add("goodput after / before", after, least=0.95)
    gap = longest_gap(samples, DEVICES, total / 2, killed, end)
    findings.add("longest gap in goodput, seconds", gap, most=GAP)

    throttler.process.kill()
    cleanup(node, config)
    findings.equal("cleanup after kill -9", differences(before, kernel_state(node)))
    throttler = start_throttler(node, config)
    code = throttler.process.stop(grace=15)
    findings.add("exit code after SIGTERM", code, least=0, most=0)
    findings.equal("SIGTERM", differences(before, kernel_state(node)))
    return findings


def pause(client: Process, clock: Callable[[], float], until: float) -> None:
    """Wait while the download goes on."""
    while clock() < until:
        if not client.running:
            raise TestbedError(f"the download ended with {client.returncode} before its time{client.tail()}")
        time.sleep(0.02)


def caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return classid and rate of each capped subflow, by the client's end, as the status socket tells."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(5)
        asked.connect(str(throttler.socket))
        status = json.loads(b"".join(iter(lambda: asked.recv(1 << 16), b"")))
    subflows = (s for connection in status["connections"] for s in connection["subflows"])
    found = {s["remote"]: (s["classid"], s["rate"]) for s in subflows if s["classid"] is not None}
    return found


def ours(node: LiveNode) -> dict[str, str]:
    """Return the dumps without the counters that traffic drives."""
    state = kernel_state(node)
    return {command: COUNTERS.sub("", text) for command, text in state.items()}


def cleanup(node: LiveNode, config: Path) -> None:
    """Run ``mptcp-throttler cleanup`` where it sees the dead daemon's state."""
    argv = [program("mptcp-throttler"), "cleanup", "--config", str(config)]
    node.run(with_mounts(argv, throttler_mounts(node)))
