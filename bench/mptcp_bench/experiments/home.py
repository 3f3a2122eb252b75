# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices without proxy settings behind a relay: goodput over both uplinks, added delay, processor time, outages.

The uplinks have 40 and 20 Mbit/s and no delay; while the cost is measured, their rate is unlimited. The parent is a
real Squid, and the origin is a real Apache.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import RELAY, LiveNode, Testbed, TestbedError, home
from mptcp_lab.testbed.home import SITE, UPLINKS
from mptcp_lab.testbed.host import Program
from mptcp_lab.testbed.services import RELAY_CONFIG, python_command, start_origin, start_relay, wait_until
from mptcp_lab.testbed.topologies import behind_relay, paths

from ..statistics import median
from .columns import Results, Turn
from .findings import Aim
from .parameters import choices, parameter, whole
from .scenario import Scenario

DEVICES = 300
"""Number of devices, each with its own address: the maximum number of curl's parallel transfers."""
ADDRESSES = [f"10.48.{number // 200}.{number % 200 + 2}" for number in range(DEVICES)]
SMALL, LARGE, HUGE = "small.bin", "large.bin", "huge.bin"
FILES = {SMALL: 100_000, LARGE: 30_000_000, HUGE: 400_000_000}
SMALL_URL = f"http://{SITE}/{SMALL}"
REQUESTS = 20
"""Number of HTTPS requests for each way and run."""
REQUEST_TIMEOUT = 60.0
SQUID_CONFIG_LINES = """
http_port 3129 intercept name=web
http_port 3130 intercept name=others
acl redirected myportname web others
http_access allow redirected clients
on_unsupported_protocol tunnel all
"""
NFT_RULES = """
add table ip squid
add chain ip squid pre { type nat hook prerouting priority dstnat; }
add rule ip squid pre iifname lan0 ip daddr 203.0.113.0/24 tcp dport 80 redirect to :3129
add rule ip squid pre iifname lan0 ip daddr 203.0.113.0/24 meta l4proto tcp redirect to :3130
"""
GREETING = """
import socketserver
class Greeting(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"220 here\\r\\n")
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("", 25), Greeting).serve_forever()
"""
WAYS = ("nat", "forwarder", "squid")
"""How a device's connections are carried: by a router with address translation, over the best uplink; by our forwarder;
or by Debian's Squid, which has the same parent, and gets the connections at its ``intercept`` ports."""
PARTS = ("goodput", "first byte", "banner", "outage", "crowd", "cost")
MAX_ADDED_MS = 5.0
"""Maximum milliseconds that the forwarder may add. The round trip to its parent takes none here."""


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = choices("parts to measure", PARTS, quick="goodput,banner")
    runs: int = parameter("number of runs", "5", whole(), quick="1")


@dataclass(frozen=True, slots=True)
class Values:
    """The values that a part measured, by name: Mbit/s, milliseconds, seconds, or counts."""

    values: Mapping[str, float]


@contextmanager
def home_bed(chosen: Settings, cells: Sequence[str], seed: int) -> Iterator[Site]:
    """Build the testbed, with unlimited uplinks if the cost is measured."""
    with Testbed(behind_relay(paths((None, None))) if "cost" in cells else RELAY, seed=seed) as testbed:
        yield Site(testbed)


def measure(site: Site, turn: Turn[str]) -> Values:
    """Measure one part, by the method of *site* with its name."""
    return Values(getattr(site, turn.cell.replace(" ", "_"))())


def verdicts(results: Results[str, Values]) -> Iterator[Aim]:
    """Yield the aims of each measured part."""
    for part in results.cells:
        runs = [run.values for run in results.of(part)]
        if not runs:
            continue
        values = {name: [run[name] for run in runs] for name in runs[0]}
        medians = {name: median(each) for name, each in values.items()}
        ours, squid, nat = (medians.get(way, 0.0) for way in ("forwarder", "squid", "nat"))
        if part == "goodput":
            both = sum(medians[uplink] for uplink in UPLINKS)
            yield Aim("goodput of the forwarder / sum of the uplinks", ours / both, least=0.9, most=1.05)
            yield Aim("goodput of Squid / sum of the uplinks", squid / both)
        elif part in ("first byte", "banner"):
            name = "first byte of HTTPS" if part == "first byte" else "greeting of a server that speaks first"
            yield Aim(f"{name}: added by the forwarder", ours - nat, " ms", most=MAX_ADDED_MS)
            yield Aim(f"{name}: added by Squid", squid - nat, " ms")
        elif part == "outage":
            yield Aim("first uplink silent: pause of a running download", max(values["pause"]), " s", most=3.0)
            yield Aim("first uplink silent: first new request", max(values["request"]), " s", most=4.0)
            yield Aim("first uplink silent: longest later request", max(values["later"]), " s", most=0.5)
            yield Aim("first uplink restored: download uses it after", max(values["back"]), " s", most=10.0)
        elif part == "crowd":
            crowd = f"{DEVICES} devices at once"
            yield Aim(f"{crowd}: answered requests", min(values["answered"]), least=DEVICES, most=DEVICES)
            yield Aim(f"{crowd}: connections that bypassed the parent", max(values["direct"]), most=0)
            yield Aim(f"{crowd}: last answer after", medians["seconds"], " s")
        else:
            yield Aim("processor time per GB, forwarder / Squid", ours / squid, most=1.2)
            yield Aim("processor time per GB, forwarder", ours, " s")


class Site:
    """A testbed with a relay, its parent and an origin. A method with the name of a part measures this part once."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self._relay, self._device = testbed["relay"], testbed["client"]
        self._parent = testbed["proxy"].service_address()
        home.add_site_addresses(testbed)
        home.start_parent(testbed["proxy"])
        start_origin(testbed["origin"], FILES, ports=(80,), tls_port=443)
        testbed["origin"].popen(python_command(GREETING), name="greeting")
        home.wait_for_site(testbed)
        self._relay.run(["ip", "addr", "add", "10.48.0.1/16", "dev", "lan0"])
        for address in ADDRESSES:
            self._device.run(["ip", "addr", "add", f"{address}/16", "dev", "eth0"])

    @contextmanager
    def _carried_by(self, way: str, uplinks: tuple[str, ...] = UPLINKS) -> Iterator[Program | None]:
        """Carry a device's connections by NAT, our forwarder or Squid. Yield the relay's process; None for NAT."""
        settings = home.write_settings(self._relay, self._parent, uplinks=uplinks)
        with home.gateway(self._relay, settings):
            if way == "nat":
                yield None
            else:
                forwarder = home.forwarder(self._relay, settings) if way == "forwarder" else None
                with forwarder or _squid(self._relay, self._parent) as process:
                    yield process

    def _measure_each_way(self, measure: Callable[[], float], ways: Sequence[str] = WAYS) -> dict[str, float]:
        values = {}
        for way in ways:
            with self._carried_by(way):
                values[way] = measure()
        return values

    def goodput(self) -> dict[str, float]:
        """Return the Mbit/s of a download over each uplink with NAT, and over both with our forwarder and Squid."""
        rates = {}
        for uplink in UPLINKS:
            with self._carried_by("nat", (uplink, *(each for each in UPLINKS if each != uplink))):
                rates[uplink] = self._download(LARGE)
        return rates | self._measure_each_way(lambda: self._download(LARGE), WAYS[1:])

    def first_byte(self) -> dict[str, float]:
        """Return, for each way, the milliseconds to the first byte of an HTTPS answer: the median of ``REQUESTS``."""
        url = f"https://{SITE}/{SMALL}"
        return self._measure_each_way(
            lambda: 1e3 * median([self._curl("%{time_starttransfer}", url) for _ in range(REQUESTS)])
        )

    def banner(self) -> dict[str, float]:
        """Return, for each way, the milliseconds to the greeting of a server that speaks first: the median of 3."""

        def greeting_seconds() -> float:
            start = time.monotonic()
            try:
                with self._device.entered(), socket.create_connection((SITE, 25), REQUEST_TIMEOUT) as connection:
                    greeting = connection.recv(100)
            except OSError as error:
                raise TestbedError(f"no greeting arrived: {error}") from error
            if not greeting:
                raise TestbedError("the connection was closed without a greeting")
            return time.monotonic() - start

        return self._measure_each_way(lambda: 1e3 * median([greeting_seconds() for _ in range(3)]))

    def outage(self) -> dict[str, float]:
        """Return seconds: a download's longest pause and requests' durations in an outage, and the recovery time."""
        with self._carried_by("forwarder"), _endless_download(self._device) as size:
            wait_until(lambda: self._received("eth0") > 0 and size() > 3_000_000, "the download uses both uplinks")
            with home.silent_link(self.testbed["core"], "eth0"):
                start = last = time.monotonic()
                before, pause = size(), 0.0
                request = self._device.popen(_curl(SMALL_URL, "%{time_total}"))
                while time.monotonic() < start + 8:
                    time.sleep(0.01)
                    if size() > before:
                        before, last = size(), time.monotonic()
                    pause = max(pause, time.monotonic() - last)
                if request.wait(REQUEST_TIMEOUT) != 0:
                    raise TestbedError(f"the first new request failed{request.tail()}")
                later = max(self._curl("%{time_total}", SMALL_URL) for _ in range(5))
            start, received = time.monotonic(), self._received("eth0")
            wait_until(lambda: self._received("eth0") > received + 500_000, "the download uses the first uplink again")
            back = time.monotonic() - start
        return {"pause": pause, "request": float(request.output()), "later": later, "back": back}

    def crowd(self) -> dict[str, float]:
        """Let all devices request a file at once. Return answers, connections past the parent, and the duration."""
        request = 'url = "{}"\noutput = /dev/null\nwrite-out = "%{{size_download}}\\n"\ninterface = {}\n'
        requests = self._device.write("crowd", "next\n".join(request.format(SMALL_URL, each) for each in ADDRESSES))
        with self._carried_by("forwarder"):
            start = time.monotonic()
            parallel = ["--parallel", "--parallel-immediate", "--parallel-max", str(DEVICES)]
            transfers = self._device.run(["curl", "-sS", *parallel, "-K", str(requests)], timeout=120, check=False)
            seconds = time.monotonic() - start
            # The forwarder writes its status once a second.
            time.sleep(1.5)
            direct = float(home.forwarder_status(self._relay)["direct"])
        return {"answered": transfers.stdout.split().count(str(FILES[SMALL])), "direct": direct, "seconds": seconds}

    def cost(self) -> dict[str, float]:
        """Return the processor seconds per GB of the process that carries the download."""
        costs = {}
        for way in WAYS[1:]:
            with self._carried_by(way) as process:
                assert process is not None
                self._download(SMALL)
                before = tree_seconds(process.pid)
                self._download(HUGE)
                costs[way] = (tree_seconds(process.pid) - before) / (FILES[HUGE] / 1e9)
        return costs

    def _received(self, device: str) -> int:
        return self._relay.interface_bytes(device).received

    def _download(self, name: str) -> float:
        """Download a file and return its goodput in Mbit/s."""
        return FILES[name] * 8e-6 / self._curl("%{time_total}", f"https://{SITE}/{name}")

    def _curl(self, variable: str, url: str) -> float:
        """Return curl's *variable* for a request of *url*. Raises TestbedError if the request fails."""
        return float(self._device.run(_curl(url, variable), timeout=REQUEST_TIMEOUT + 5).stdout)


def _curl(url: str, variable: str, target: str = "/dev/null") -> list[str]:
    return ["curl", "-sSfk", "-m", str(REQUEST_TIMEOUT), "-o", target, "-w", variable, url]


@contextmanager
def _endless_download(device: LiveNode) -> Iterator[Callable[[], int]]:
    """Keep a download running. Yield a function that returns the bytes received so far."""
    file = device.directory / "download"
    file.write_bytes(b"")
    with device.running(_curl(f"https://{SITE}/{HUGE}", "", str(file))):
        yield lambda: file.stat().st_size


@contextmanager
def _squid(relay: LiveNode, parent: str) -> Iterator[Program]:
    rule = "http_access deny !web_ports"
    text = RELAY_CONFIG.read_text().replace(rule, f"{SQUID_CONFIG_LINES}{rule}")
    peer = f"cache_peer {parent} parent 3128 0 no-query no-digest connect-timeout=3"
    config = relay.write("relay.conf", f"{text}{peer}\nrequest_start_timeout 3 seconds\nshutdown_lifetime 0 seconds\n")
    proxy = start_relay(relay, config)
    try:
        with relay.changed(["nft", NFT_RULES.strip().replace("\n", "; ")], ["nft", "delete table ip squid"]):
            yield proxy.process
    finally:
        proxy.process.stop()


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "apache2", "squid", "curl", "nftables", "openssl"),
    cells=lambda chosen: chosen.part,
    shared_bed=lambda part: part == "cost",
    bed=home_bed,
    measure=measure,
    tables=(),
    name=lambda row: row.cell,
    verdicts=verdicts,
)
