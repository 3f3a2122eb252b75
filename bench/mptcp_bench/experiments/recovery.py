# SPDX-License-Identifier: GPL-2.0-or-later
"""Kill -9 and restart in mid-transfer; SIGTERM, and clean-up after a crash, in mid-transfer too.

This runs with each netfilter adapter that this kernel offers, during downloads through the proxy, with conf/policy.yaml
and two more rules. One rule steers other clients by order, so that the throttler sets sysctls. The other caps uploads,
so that it makes an IFB device. Only what the start has changed can be seen to be restored, so an aim asks that the
start changes things of each kind.

- After kill -9, the keeper restores the sysctls at once. Everything else stays, and the caps are in force while no
  throttler runs. A new throttler adopts them: the same classes for the same subflows, the same entries and classes in
  the kernel. At no moment does more traffic pass than the cap allows, and goodput has no gap.
- The throttler is ended by SIGTERM under a cap; later it is killed under a cap, and ``mptcp-throttler cleanup`` runs.
  Each time the kernel's dumps are at once as before the first start (``system_state``), and so are processes, the BPF
  objects that they hold, and files. After SIGTERM the keeper ends with the last connection, so processes and files are
  compared after the download.
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
"""Seconds of the download until it is steady, seconds without a throttler, and seconds after the restart."""
CONNECTIONS = 90.0
"""Seconds until the proxy has dropped the connections of a client that vanished. It tries to deliver for a minute."""
FILE_SIZE = 200_000_000
"""Bytes of the file, more than the client can download until it is stopped."""
RULES = (
    {
        "name": "others-in-order",
        "when": {"clients": ["192.0.2.0/24"]},
        "steer": {"mode": "waterfall", "order": ["wifi", "ethernet"]},
    },
    {"name": "uploads", "paths": ["wifi"], "direction": "up", "throttle": {"rate": "10 Mbit/s"}},
)
"""Rules that are added to conf/policy.yaml. Neither matches the download, so its rates do not change."""
OF_PROGRAMS = (PROCESSES, BPF, FILES)
"""The parts of a whole state that are not in the kernel's state."""


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Run the experiment with each backend that this kernel offers. *seed* has no effect."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize")
    # Whichever backend downloads use, uploads are shaped by nftables on ingress and an IFB device.
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
    """Start, kill, restart, stop, start, kill, clean up, and compare the kernel's state after each step."""
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
        # Wait, because making the dumps takes processor time from the download.
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
        # Leave out processes and files, because the keeper runs until the last connection ends.
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
    """Return whether the sysctls are as *before*. Interfaces that came or went do not count."""
    return not now.startswith(FAILED) and not changed_sysctls(before, now)


def policy() -> str:
    """Return conf/policy.yaml with the additional ``RULES``, as JSON, which is valid YAML."""
    shipped = YAML(typ="safe").load(POLICY.read_text())
    return json.dumps({**shipped, "rules": [*shipped["rules"], *RULES]})


def download(testbed: Testbed, backend: str, origin: Origin, proxy: Proxy, clock: Callable[[], float]) -> Process:
    """Start a download and return it when it is steady. Raises TestbedError if it does not use both paths."""
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
    """Return what still differs from *before* when nothing does, or after ``CONNECTIONS`` seconds."""
    with suppress(TestbedError):
        wait_until(lambda: not differences(before, whole_state(node, state)), "it is as before", timeout=CONNECTIONS)
    return differences(before, whole_state(node, state))


def pause(client: Process, clock: Callable[[], float], until: float) -> None:
    """Wait until *until* on *clock*. Raises TestbedError if the download ends meanwhile."""
    while clock() < until:
        still_running(client)
        time.sleep(0.02)


def caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return the class ID and rate of each capped subflow, by the client's address and port, from the status socket."""
    subflows = (
        each
        for connection in ask(throttler.socket, {"query": "status"})["connections"]
        for each in connection["subflows"]
    )
    return {each["remote"]: (each["classid"], each["rate"]) for each in subflows if each["classid"] is not None}


def cleanup(node: LiveNode, config: Path) -> None:
    """Run ``mptcp-throttler cleanup`` with the mounts of the killed daemon."""
    argv = [program("mptcp-throttler"), "cleanup", "--config", str(config)]
    node.run(with_mounts(argv, throttler_mounts(node)))
