# SPDX-License-Identifier: GPL-2.0-or-later
"""What the throttler's kernel objects cost: goodput with 0, 1,000 and 50,000 set entries, as ratios.

Plain TCP runs at full speed from the proxy's port over an unshaped link. Squid is left out, since it would hide the
cost; so is MPTCP, whose receive path varies from second to second by far more than this cost. Each packet passes the
same rule, set and HTB class as a subflow's packet would. Each number of entries has its own testbed. All are measured
in each round, in an order drawn for that round. Only ratios within a round are compared, because a small machine's
speed drifts.
"""

from __future__ import annotations

import random
import re
import sys
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import PROXY_PORT, accepts, python_command, wait_until
from mptcp_throttler.shaping.model import DEFAULT_MINOR, Ownership

from ..statistics import CONFIDENCE, median_interval
from .aims import aims_table
from .backends import BACKENDS, backends
from .datapath_judging import COUNTS, SentBytes, compared, judge, label, through_class
from .findings import Findings

SECONDS = 1.0
LINK = paths((None,), name="unshaped-link")
HANDLE = Ownership().htb_major

SENDER = """
import socket, threading
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", {port}))
listener.listen()
data = bytes(1 << 20)
def send(connection):
    try:
        while True:
            connection.sendall(data)
    except OSError:
        connection.close()
while True:
    threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()
"""
RECEIVER = """
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
client.connect((address, port))
buffer = bytearray(1 << 20)
warm = time.monotonic() + 0.3
while time.monotonic() < warm:
    client.recv_into(buffer)
start, received = time.monotonic(), 0
while (now := time.monotonic()) < start + seconds:
    received += client.recv_into(buffer)
print(received * 8 / (now - start))
"""


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Measure each number of entries with every backend that this kernel offers."""
    need("root", "htb")
    offered = backends()
    for name in BACKENDS.keys() - set(offered):
        console.print(f"not measured: {name}, which this kernel or host lacks", style="yellow")
    rounds = 5 if quick else 30
    draw = random.Random(seed)
    goodput: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        beds = {
            (backend, count): prepare(stack.enter_context(Testbed(LINK)), backend, count)
            for backend in offered
            for count in COUNTS
        }
        before = {key: sent(bed) for key, bed in beds.items()}
        for number in range(rounds):
            for key in draw.sample(list(beds), len(beds)):
                rate = measure(beds[key])
                goodput.setdefault(key[0], {}).setdefault(label(key[1]), []).append(rate)
            shown = "; ".join(
                f"{backend}: " + ", ".join(f"{name} {rates[-1] / 1e9:.2f}" for name, rates in by.items())
                for backend, by in sorted(goodput.items())
            )
            console.print(f"round {number + 1}, Gbit/s: {shown}", highlight=False, soft_wrap=True)
        carried = {
            backend: through_class(
                (before[backend, count], sent(beds[backend, count])) for count in COUNTS if count is not None
            )
            for backend in offered
        }
    ratios = {what: values for backend in offered for what, values in compared(backend, goodput[backend]).items()}
    aims = judge(goodput, carried, offered, rounds)
    data: dict[str, Any] = {
        "rounds": rounds,
        "seconds": SECONDS,
        "goodput": goodput,
        "intervals": {what: median_interval(values, draw) for what, values in ratios.items()},
    }
    for what, (low, high) in data["intervals"].items():
        console.print(f"{what}: {CONFIDENCE:.0%} interval of the median {low:.3f} to {high:.3f}", highlight=False)
    return Findings((aims_table(f"Ratios of goodput, median of {rounds} rounds", aims),), data, aims=tuple(aims))


def sent(testbed: Testbed) -> SentBytes:
    """Return the bytes sent by the proxy's device and by our class for uncapped traffic; 0 without the class.

    Nothing is sent between two transfers, so both counters can be read one after the other.
    """
    proxy = testbed["proxy"]
    shown = proxy.run(["tc", "-s", "class", "show", "dev", "wan0"]).stdout
    found = re.search(rf"^class htb {HANDLE:x}:{DEFAULT_MINOR:x} .*\n Sent (\d+) bytes", shown, re.M)
    return SentBytes(int(found[1]) if found else 0, proxy.interface_bytes("wan0").sent)


def prepare(testbed: Testbed, backend: str, count: int | None) -> Testbed:
    """Install the throttler's objects on the proxy and start the sender there."""
    proxy = testbed["proxy"]
    if count is not None:
        module = "mptcp_bench.experiments.kernel_entries"
        argv = [sys.executable, "-I", "-m", module, "wan0", backend, str(count), str(testbed.directory)]
        proxy.run(argv, timeout=120)
    process = proxy.popen(python_command(SENDER.format(port=PROXY_PORT)), name="sender")
    address = proxy.address("wan0")
    wait_until(lambda: accepts(proxy, address, PROXY_PORT), "the sender listens", process=process)
    return testbed


def measure(testbed: Testbed) -> float:
    address = testbed["proxy"].address("wan0")
    argv = python_command(RECEIVER, address, str(PROXY_PORT), str(SECONDS))
    return float(testbed["client"].run(argv, timeout=SECONDS + 20).stdout)
