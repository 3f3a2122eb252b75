# SPDX-License-Identifier: GPL-2.0-or-later
"""kill -9 and restart in mid-transfer; SIGTERM, and clean-up after a crash, in mid-transfer too.

It runs with each netfilter adapter that this kernel offers, on downloads through the proxy under conf/policy.yaml and
two more rules: one steers other clients by order, so that sysctls are set, one caps uploads, so that there is an IFB
device. The start must change each kind of thing whose return is judged: what was never changed is not put back either.

- killed: the keeper restores the sysctls at once as before the start; everything else stays, and the caps are in force
  while no throttler runs. A new throttler adopts them: the same classes on the same subflows, the same entries and
  classes in the kernel, at no moment more traffic than the cap, no gap in goodput;
- ended by SIGTERM under a cap; and killed under a cap, then ``mptcp-throttler cleanup``: each time the kernel's dumps
  are at once as before the first start (``system_state``), and so are processes, what they hold of BPF, and files.
  After SIGTERM the keeper ends with the last connection: processes and files are compared after the download.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from ruamel.yaml import YAML

from mptcp_common.status_client import ask
from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import TWO_PATHS, LiveNode, Process, Testbed, TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    Throttler,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import (
    BPF,
    FAILED,
    FILES,
    PROCESSES,
    SYSCTLS,
    State,
    changed_sysctls,
    differences,
    kernel_state,
    sysctls,
    whole_state,
    without,
)
from mptcp_lab.testbed.topologies import WIFI_RATE
from mptcp_lab.testbed.transfer import Added, wget

from ..shipped import POLICY, ethernet_cap
from .aims import aims_table
from .backends import backends
from .devices import DEVICES
from .findings import Findings
from .recovery_judging import BEFORE, RESTART, Observed, judge, made

SETTLE, DOWN, AFTER = 5.0, 2.0, 4.0
"""Seconds: to the steady state, without a throttler, and after the restart."""
CONNECTIONS = 90.0
"""Seconds until the proxy has dropped a vanished client's connections: it tries for a minute to deliver data."""
FILE_SIZE = 200_000_000
"""More than the download gets; the client is stopped."""
RULES = (
    {
        "name": "others-in-order",
        "when": {"clients": ["192.0.2.0/24"]},
        "steer": {"mode": "waterfall", "order": ["wifi", "ethernet"]},
    },
    {"name": "uploads", "paths": ["wifi"], "direction": "up", "throttle": {"rate": "10 Mbit/s"}},
)
"""Added to conf/policy.yaml. Neither matches the download, whose rates are those without them."""
OF_PROGRAMS = (PROCESSES, BPF, FILES)
"""In a whole state, but not in the kernel's."""


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Run it with every backend that this kernel offers; nothing is drawn at random."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize")
    # Uploads are shaped by nftables on ingress and an IFB device, whatever the downloads' backend.
    need("nftables", "nft-ingress", "ifb", "bpf-pacing")
    offered = backends()
    found = []
    for backend in offered[:1] if quick else offered:
        console.print(f"{backend}: kill -9, restart, SIGTERM, cleanup after kill -9; in mid-transfer", style="dim")
        with Testbed(TWO_PATHS) as testbed:
            found.append(examine(testbed, backend))
    changed = [f"{seen.backend}, {when}: {text}" for seen in found for when, texts in seen.dumps() for text in texts]
    for text in changed:
        console.print(text, highlight=False, soft_wrap=True, style="red")
    aims = [aim for seen in found for aim in judge(seen, ethernet_cap(), WIFI_RATE)]
    data = {
        "rates": {seen.backend: seen.rates() for seen in found},
        "made": {seen.backend: seen.made for seen in found},
        "differences": changed,
    }
    return Findings((aims_table("Recovery", aims),), data, aims=tuple(aims))


def examine(testbed: Testbed, backend: str) -> Observed:
    """Start, kill, restart, stop, start, kill, clean up; look at the kernel after each step."""
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file": FILE_SIZE})
    proxy = start_proxy(node)
    config = write_throttler_config(node, node.write("policy.yaml", policy()), settings={"netfilter": backend})
    state = Path(throttler_mounts(node)["/run/mptcp-throttler"])
    before = whole_state(node, state)
    with Recorder(testbed["client"], DEVICES) as recorder:
        throttler = start_throttler(node, config)
        client = download(testbed, backend, origin, proxy, lambda: recorder.now)
        capped = caps(throttler)
        under = whole_state(node, state)
        objects = without(under, *OF_PROGRAMS)
        # The dumps take processor time from the download.
        pause(client, lambda: recorder.now, recorder.now + BEFORE)
        killed, fail_open = recorder.now, math.inf
        throttler.process.kill()
        with suppress(TestbedError):
            wait_until(lambda: are_back(before[SYSCTLS], sysctls(node)), "the sysctls are back", timeout=RESTART)
            fail_open = recorder.now - killed
        by_kill = differences(without(objects, SYSCTLS), without(kernel_state(node), SYSCTLS))
        pause(client, lambda: recorder.now, killed + DOWN)
        restarted, same = recorder.now, math.inf
        throttler = start_throttler(node, config)
        with suppress(TestbedError):
            wait_until(lambda: caps(throttler) == capped, "it has the same caps", timeout=RESTART)
            same = recorder.now
        by_restart = differences(objects, kernel_state(node))
        ready = recorder.now
        pause(client, lambda: recorder.now, ready + AFTER)
        end, samples = recorder.now, recorder.samples
        capped_at_stop, exit_code = len(caps(throttler)), throttler.process.stop(grace=15)
        # The keeper ends with the last connection.
        at_stop = differences(without(before, PROCESSES, FILES), without(whole_state(node, state), PROCESSES, FILES))
        still_running(client)
        client.stop()
        after_stop = settled(before, node, state)
        throttler = start_throttler(node, config)
        client = download(testbed, backend, origin, proxy, lambda: recorder.now)
        capped_at_cleanup = len(caps(throttler))
        throttler.process.kill()
        cleanup(node, config)
        at_cleanup = differences(before, whole_state(node, state))
        still_running(client)
        client.stop()
    return Observed(
        backend, samples, killed, restarted, same, ready, end, len(capped), made(before, under), fail_open, by_kill,
        by_restart, capped_at_stop, at_stop, after_stop, exit_code, capped_at_cleanup, at_cleanup,
    )  # fmt: skip


def are_back(before: str, now: str) -> bool:
    """Return whether the sysctls are as *before*; links that came or went do not count."""
    return not now.startswith(FAILED) and not changed_sysctls(before, now)


def policy() -> str:
    """Return conf/policy.yaml followed by ``RULES``, as JSON, which is YAML."""
    shipped = YAML(typ="safe").load(POLICY.read_text())
    return json.dumps({**shipped, "rules": [*shipped["rules"], *RULES]})


def download(testbed: Testbed, backend: str, origin: Origin, proxy: Proxy, clock: Callable[[], float]) -> Process:
    """Start a download and return it in its steady state. Raises TestbedError if it does not use both paths."""
    added, begin = Added(testbed["client"], testbed["proxy"]), clock()
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    client = testbed["client"].popen(["sh", "-c", '"$@" >/dev/null', "sh", *argv], name="wget")
    pause(client, clock, begin + SETTLE)
    complaint = Protocol.of(*added.read()).complaint(multipath=True)
    if complaint is not None:
        raise TestbedError(f"recovery, {backend}: {complaint}")
    return client


def still_running(client: Process) -> None:
    if not client.running:
        raise TestbedError(f"the download ended with {client.returncode} before its time{client.tail()}")


def settled(before: State, node: LiveNode, state: Path) -> list[str]:
    """Return what differs once the keeper has ended, or has had time to."""
    with suppress(TestbedError):
        wait_until(lambda: not differences(before, whole_state(node, state)), "it is as before", timeout=CONNECTIONS)
    return differences(before, whole_state(node, state))


def pause(client: Process, clock: Callable[[], float], until: float) -> None:
    """Wait until *until* while the download goes on."""
    while clock() < until:
        still_running(client)
        time.sleep(0.02)


def caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return classid and rate of each capped subflow, by the client's end, from the status socket."""
    subflows = (
        each
        for connection in ask(throttler.socket, {"query": "status"})["connections"]
        for each in connection["subflows"]
    )
    return {each["remote"]: (each["classid"], each["rate"]) for each in subflows if each["classid"] is not None}


def cleanup(node: LiveNode, config: Path) -> None:
    """Run ``mptcp-throttler cleanup`` with the dead daemon's mounts."""
    argv = [program("mptcp-throttler"), "cleanup", "--config", str(config)]
    node.run(with_mounts(argv, throttler_mounts(node)))
