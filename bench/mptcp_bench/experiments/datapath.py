"""What the throttler's kernel objects cost: goodput with 0, 1,000 and 50,000 set entries, as ratios.

Raw MPTCP from the proxy node over two links as fast as the machine is, without Squid, which would hide the
cost. One testbed for each number of entries, all measured in turn in the same run, in an order drawn anew for
each round: only ratios within a round are compared, since a small machine's speed drifts.
"""

from __future__ import annotations

import random
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ..testbed import UNSHAPED, Testbed, TestbedError
from ..testbed.services import PROXY_PORT, accepts, python_command, wait_until
from . import Result
from .scene import Aim, aims_table, missed, need

COUNTS: tuple[int | None, ...] = (None, 0, 1_000, 50_000)
"""None: nothing of the throttler is installed."""
BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}
SECONDS = 3.0

SENDER = """
import socket, threading
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
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
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
client.connect((address, port))
buffer = bytearray(1 << 20)
warm = time.monotonic() + 0.5
while time.monotonic() < warm:
    client.recv_into(buffer)
start, received = time.monotonic(), 0
while (now := time.monotonic()) < start + seconds:
    received += client.recv_into(buffer)
print(received * 8 / (now - start))
"""


def run(console: Console, seed: int, quick: bool) -> Result:
    """Measure every number of entries with every backend this kernel offers."""
    need("root", "mptcp", "mptcp-pm", "htb")
    from ..testbed.features import missing

    backends = [name for name, needs in BACKENDS.items() if all(missing(n) is None for n in needs)]
    if not backends:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    for name in BACKENDS.keys() - set(backends):
        console.print(f"not measured: {name}, which this kernel or host lacks", style="yellow")
    rounds = 3 if quick else 15
    draw = random.Random(seed)
    goodput: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        beds = {
            (backend, count): prepare(stack.enter_context(Testbed(UNSHAPED)), backend, count)
            for backend in backends
            for count in COUNTS
        }
        for number in range(rounds):
            for key in draw.sample(list(beds), len(beds)):
                rate = measure(beds[key])
                goodput.setdefault(key[0], {}).setdefault(label(key[1]), []).append(rate)
            shown = "; ".join(
                f"{backend}: " + ", ".join(f"{name} {rates[-1] / 1e9:.2f}" for name, rates in by.items())
                for backend, by in sorted(goodput.items())
            )
            console.print(f"round {number + 1}, Gbit/s: {shown}", highlight=False)
    aims = [aim for backend in backends for aim in judge(backend, goodput[backend])]
    data: dict[str, Any] = {
        "rounds": rounds,
        "seconds": SECONDS,
        "goodput": goodput,
        "aims": [{**asdict(aim), "met": aim.met} for aim in aims],
    }
    return Result((aims_table(f"Ratios of goodput, median of {rounds} rounds", aims),), data, missed(aims))


def label(count: int | None) -> str:
    return "nothing" if count is None else f"{count:,} entries"


def prepare(testbed: Testbed, backend: str, count: int | None) -> Testbed:
    """Install the throttler's objects on the proxy and start the sender there."""
    proxy = testbed["proxy"]
    if count is not None:
        module = "mptcp_bench.experiments.kernel_entries"
        argv = [sys.executable, "-m", module, "wan0", backend, str(count), str(testbed.directory)]
        proxy.run(argv, timeout=120)
    process = proxy.popen(python_command(SENDER.format(port=PROXY_PORT)), name="sender")
    address = proxy.address("wan0")
    wait_until(lambda: accepts(proxy, address, PROXY_PORT), "the sender listens", process=process)
    return testbed


def measure(testbed: Testbed) -> float:
    address = testbed["proxy"].address("wan0")
    argv = python_command(RECEIVER, address, str(PROXY_PORT), str(SECONDS))
    return float(testbed["client"].run(argv, timeout=SECONDS + 20).stdout)


def judge(backend: str, goodput: dict[str, list[float]]) -> list[Aim]:
    """Return the median over the rounds of the ratios within a round."""

    def ratio(count: int | None, base: int | None) -> float:
        pairs = zip(goodput[label(count)], goodput[label(base)], strict=True)
        return statistics.median(rate / other for rate, other in pairs)

    # What HTB and the rule cost at all is shown without an aim: it is the price of shaping.
    return [
        Aim(f"{backend}: 0 entries / nothing installed", ratio(0, None)),
        Aim(f"{backend}: 1,000 entries / 0 entries", ratio(1_000, 0), least=0.98),
        Aim(f"{backend}: 50,000 entries / 0 entries", ratio(50_000, 0), least=0.98),
    ]
