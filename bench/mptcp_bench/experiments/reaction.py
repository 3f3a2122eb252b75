# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a new subflow is throttled: from the MP_JOIN's third ACK on the wire to the first packet under its cap.

This is measured from outside the daemon. A probe in the proxy's namespace captures the third ACK, and every packet of
the subflow that will be capped, with the kernel's time stamps and netfilter's marks. The first packet with our bits in
its mark was sent when the entry was already in the kernel's set. The proxy's end sends continuously, so that the packet
mostly follows the entry within a fraction of a millisecond, and the bytes that passed unthrottled until then are real.
200 connections follow one another. The second subflow joins in the first round trips; of every fourth connection it
joins in mid-transfer, when the link is full. Anticipation is off, because with it the entry of a connection that is
expected to get a second subflow would exist before the join.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import PROXY_PORT, start_throttler, write_throttler_config

from .aims import aims_table
from .backends import backends
from .findings import Findings
from .reaction_judging import judge

CONNECTIONS = 200
POLICY = """\
version: 1
anticipate: false
paths:
  ethernet: {clients: [10.77.1.0/24]}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Measure the reaction with each backend that this kernel offers."""
    need("root", "mptcp", "mptcp-pm", "htb")
    count = 40 if quick else CONNECTIONS
    data: dict[str, Any] = {"connections": count, "backends": {}}
    offered = backends()
    for backend in offered:
        data["backends"][backend] = measure(backend, count)
    aims = judge(data["backends"], offered, count)
    return Findings((aims_table(f"Reaction, {count} connections", aims),), data, aims=tuple(aims))


def measure(backend: str, count: int) -> list[dict[str, float]]:
    """Return the delay and the unthrottled bytes of each connection."""
    with Testbed(TWO_PATHS) as testbed:
        proxy = testbed["proxy"]
        policy = proxy.write("policy.yaml", POLICY)
        start_throttler(proxy, write_throttler_config(proxy, policy, settings={"netfilter": backend}))
        return probed(testbed, count)


def probed(testbed: Testbed, count: int, port: int = PROXY_PORT) -> list[dict[str, float]]:
    """Return delay and bytes of each connection to the free *port*. A throttler must be running."""
    proxy, client = testbed["proxy"], testbed["client"]
    output = testbed.directory / "samples.json"
    module = "mptcp_bench.experiments.reaction_probe"
    asked = [str(count), str(output), str(port), client.address("eth0")]
    probe = proxy.popen([sys.executable, "-I", "-m", module, *asked], name="probe")
    ends = [proxy.address("wan0"), str(port), str(count), client.address("wlan0")]
    # After an error, kill the probe and its process that listens, to free the port for the next probe.
    with undone_on_error(probe.kill_tree):
        client.run([sys.executable, "-I", "-m", f"{module}_client", *ends], timeout=count + 60)
        if probe.wait(60) != 0:
            raise TestbedError(f"the probe failed{probe.tail()}")
    samples: list[dict[str, float]] = json.loads(Path(output).read_text())
    return samples
