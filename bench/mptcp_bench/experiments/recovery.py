"""kill -9 and restart in mid-transfer; clean-up after a crash; SIGTERM.

With each netfilter adapter that this kernel offers, on one download through the proxy with conf/policy.yaml:

- killed: the caps stay in force while no throttler runs; a new one adopts them: the same classes on the same
  subflows, the same entries and classes in the kernel, at no moment more traffic than the cap, no gap in goodput;
- killed, then ``mptcp-throttler cleanup``; and ended by SIGTERM: each time the kernel's dumps, the processes, what
  they hold of BPF, and the files (``system_state``) are as before the first start.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import TWO_PATHS, LiveNode, Process, Testbed, TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Recorder
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
from mptcp_lab.testbed.topologies import WIFI_RATE
from mptcp_lab.testbed.transfer import Added, Protocol, wget
from mptcp_throttler.views.ask import ask

from ..shipped import POLICY, ethernet_cap
from .aims import aims_table
from .backends import backends
from .findings import Findings
from .recovery_judging import DEVICES, RESTART, Observed, judge
from .system_state import differences, kernel_state, whole_state

SETTLE, DOWN, AFTER = 5.0, 2.0, 4.0
"""Seconds: to the steady state, without a throttler, and after the restart."""
FILE_SIZE = 200_000_000
"""More than the download gets done; the client is stopped."""
COUNTERS = re.compile(r"\s(packets|bytes) \d+")


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Run it with every backend that this kernel offers; nothing in it is drawn at random."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize")
    offered = backends()
    found = []
    for backend in offered[:1] if quick else offered:
        console.print(f"{backend}: kill -9 and restart in mid-transfer, cleanup, SIGTERM", style="dim")
        with Testbed(TWO_PATHS) as testbed:
            found.append(examine(testbed, backend))
    changed = [
        f"{seen.backend}, {when}: {text}"
        for seen in found
        for when, texts in (
            ("kill -9", seen.by_kill),
            ("restart", seen.by_restart),
            ("cleanup after kill -9", seen.after_cleanup),
            ("SIGTERM", seen.after_stop),
        )
        for text in texts
    ]
    for text in changed:
        console.print(text, highlight=False, soft_wrap=True, style="red")
    aims = [aim for seen in found for aim in judge(seen, ethernet_cap(), WIFI_RATE)]
    data = {
        "rates": {seen.backend: seen.rates() for seen in found},
        "differences": changed,
    }
    return Findings((aims_table("Recovery", aims),), data, aims=tuple(aims))


def examine(testbed: Testbed, backend: str) -> Observed:
    """Start, kill, restart, kill, clean up, start, stop; look at the kernel after each step."""
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file": FILE_SIZE})
    proxy = start_proxy(node)
    config = write_throttler_config(node, POLICY, settings={"netfilter": backend})
    state = Path(throttler_mounts(node)["/run/mptcp-throttler"])
    before, network = whole_state(node, state), ours(node)
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
        by_kill = differences(objects, ours(node))
        pause(client, lambda: recorder.now, killed + DOWN)
        restarted, same = recorder.now, math.inf
        throttler = start_throttler(node, config)
        with suppress(TestbedError):
            wait_until(lambda: caps(throttler) == capped, "it has the same caps", timeout=RESTART)
            same = recorder.now
        by_restart = differences(objects, ours(node))
        ready = recorder.now
        pause(client, lambda: recorder.now, ready + AFTER)
        end = recorder.now
        client.stop()
    seen = Observed(
        backend, recorder.samples, killed, restarted, same, ready, end, len(capped),
        len(differences(network, objects)), by_kill, by_restart,
    )  # fmt: skip
    throttler.process.kill()
    cleanup(node, config)
    after_cleanup = differences(before, whole_state(node, state))
    throttler = start_throttler(node, config)
    code = throttler.process.stop(grace=15)
    return replace(
        seen, after_cleanup=after_cleanup, after_stop=differences(before, whole_state(node, state)), exit_code=code
    )


def pause(client: Process, clock: Callable[[], float], until: float) -> None:
    """Wait while the download goes on."""
    while clock() < until:
        if not client.running:
            raise TestbedError(f"the download ended with {client.returncode} before its time{client.tail()}")
        time.sleep(0.02)


def caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return classid and rate of each capped subflow, by the client's end, from the status socket."""
    subflows = (each for connection in ask(throttler.socket)["connections"] for each in connection["subflows"])
    return {each["remote"]: (each["classid"], each["rate"]) for each in subflows if each["classid"] is not None}


def ours(node: LiveNode) -> dict[str, str]:
    """Return the kernel's dumps without the counters that traffic drives."""
    state = kernel_state(node)
    return {command: COUNTERS.sub("", text) for command, text in state.items()}


def cleanup(node: LiveNode, config: Path) -> None:
    """Run ``mptcp-throttler cleanup`` where it sees the dead daemon's state."""
    argv = [program("mptcp-throttler"), "cleanup", "--config", str(config)]
    node.run(with_mounts(argv, throttler_mounts(node)))
