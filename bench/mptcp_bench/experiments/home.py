# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices without any setting behind a relay: goodput over both uplinks, added delay, cost, effect of an outage.

The uplinks have 40 and 20 Mbit/s and no delay; for the cost they are unlimited. The parent is a real Squid, the origin
a real Apache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import RELAY, LiveNode, Testbed, TestbedError, home
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.home import SITE, UPLINKS
from mptcp_lab.testbed.host import Program
from mptcp_lab.testbed.services import RELAY_CONFIG, python_command, start_origin, start_relay, wait_until
from mptcp_lab.testbed.topologies import behind_relay, paths

from .aims import aims_table
from .findings import Findings
from .home_judging import DEVICES, PARTS, WAYS, Measured, judge
from .options import choice, count

OPTIONS = {"part": f"which of {', '.join(PARTS)}; default all", "runs": "how often; default 5"}
SMALL, LARGE, HUGE = "small.bin", "large.bin", "huge.bin"
FILES = {SMALL: 100_000, LARGE: 30_000_000, HUGE: 400_000_000}
REQUESTS = 20
"""Requests per run. Their median is the run's value."""
SOON = 60.0
REDIRECTED = """
http_port 3129 intercept name=web
http_port 3130 intercept name=others
acl redirected myportname web others
http_access allow redirected clients
on_unsupported_protocol tunnel all
"""
REDIRECT = """
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
GREETED = f"""
import socket, statistics, time
took = []
for _ in range(3):
    begun = time.monotonic()
    with socket.create_connection(("{SITE}", 25), 30) as talk:
        assert talk.recv(100).startswith(b"220")
    took.append(time.monotonic() - begun)
print(statistics.median(took))
"""
CROWD = f"""
import asyncio, sys, time
async def one(number):
    own = f"10.48.{{number // 200}}.{{number % 200 + 2}}"
    reader, writer = await asyncio.open_connection("{SITE}", 80, local_addr=(own, 0))
    writer.write(b"GET /{SMALL} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    size = 0
    while more := await reader.read(65536):
        size += len(more)
    writer.close()
    return size > {FILES[SMALL]}
async def main():
    begun = time.monotonic()
    found = await asyncio.gather(*(one(number) for number in range({DEVICES})), return_exceptions=True)
    print(sum(each is True for each in found), time.monotonic() - begun)
asyncio.run(main())
"""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure the parts that *options* choose. *seed* has no effect."""
    need("root", "mptcp", "mptcp-pm", "tbf", "apache2", "squid", "curl", "nftables", "openssl")
    parts = choice(options, "part", PARTS, ("goodput", "banner", "killed") if quick else None)
    runs = count(options, "runs", 1 if quick else 5)
    measured = Measured()
    for shaped in (True, False):
        chosen = [part for part in parts if (part != "cost") is shaped]
        if chosen:
            with Testbed(RELAY if shaped else behind_relay(paths((None, None)))) as testbed:
                site = Site(testbed, measured)
                for number in range(runs):
                    for part in chosen:
                        console.print(f"{part}, {number + 1} of {runs}", style="dim", highlight=False)
                        getattr(site, part.replace(" ", "_"))()
    aims = judge(measured.values, dict.fromkeys(parts, runs))
    return Findings((aims_table("Home", aims),), {"values": measured.values}, aims=tuple(aims))


class Site:
    """One testbed with a relay, its parent and an origin. Each public method measures one part once."""

    def __init__(self, testbed: Testbed, measured: Measured) -> None:
        self._testbed, self._measured = testbed, measured
        self._relay, self._device = testbed["relay"], testbed["client"]
        self._parent = testbed["proxy"].service_address()
        home.give_site(testbed)
        home.start_parent(testbed["proxy"])
        start_origin(testbed["origin"], FILES, ports=(80,), tls_port=443)
        testbed["origin"].popen(python_command(GREETING), name="greeting")
        home.reached(testbed)
        self._relay.run(["ip", "addr", "add", "10.48.0.1/16", "dev", "lan0"])
        for number in range(DEVICES):
            address = f"10.48.{number // 200}.{number % 200 + 2}/16"
            self._device.run(["ip", "addr", "add", address, "dev", "eth0"])

    @contextmanager
    def _by(self, way: str, uplinks: tuple[str, ...] = UPLINKS) -> Iterator[Program | None]:
        """Send a device's connections by NAT, our forwarder or Squid. Yield the process that carries them, or None."""
        settings = home.settings_of(self._relay, self._parent, uplinks=uplinks)
        with home.gateway(self._relay, settings):
            if way == "nat":
                yield None
            elif way == "forwarder":
                with home.forwarder(self._relay, settings) as process:
                    yield process
            else:
                with _squid(self._relay, self._parent) as process:
                    yield process

    def goodput(self) -> None:
        for uplink in UPLINKS:
            with self._by("nat", (uplink, *(each for each in UPLINKS if each != uplink))):
                self._measured.add("goodput", uplink, self._download(LARGE))
        for way in ("forwarder", "squid"):
            with self._by(way):
                self._download(SMALL)
                self._measured.add("goodput", way, self._download(LARGE))

    def first_byte(self) -> None:
        urls = [f"https://{SITE}/{SMALL}"] * REQUESTS
        for way in WAYS:
            with self._by(way):
                took = sorted(self._curl("%{time_starttransfer}", url) for url in urls)
                self._measured.add("first byte", way, took[len(took) // 2] * 1e3)

    def banner(self) -> None:
        for way in WAYS:
            with self._by(way):
                took = float(self._device.run(python_command(GREETED), timeout=SOON).stdout)
                self._measured.add("banner", way, took * 1e3)

    def outage(self) -> None:
        add = self._measured.add
        with self._by("forwarder"), _living(self._device) as grown:
            wait_until(lambda: self._received("eth0") > 0 and grown() > 3_000_000, "it takes both uplinks")
            with home.silent(self._testbed["core"], "eth0"):
                begun, size, pause, since = time.monotonic(), grown(), 0.0, time.monotonic()
                asked = self._device.popen(_curl(f"http://{SITE}/{SMALL}", "%{time_total}"))
                while time.monotonic() < begun + 8:
                    time.sleep(0.01)
                    if grown() > size:
                        size, since = grown(), time.monotonic()
                    pause = max(pause, time.monotonic() - since)
                add("outage", "pause", pause)
                if asked.wait(SOON) != 0:
                    raise TestbedError(f"the first new request failed{asked.tail()}")
                add("outage", "request", float(asked.output()))
                add("outage", "later", max(self._curl("%{time_total}", f"http://{SITE}/{SMALL}") for _ in range(5)))
            begun, before = time.monotonic(), self._received("eth0")
            wait_until(lambda: self._received("eth0") > before + 500_000, "the living download is back on it")
            add("outage", "back", time.monotonic() - begun)

    def killed(self) -> None:
        settings = home.settings_of(self._relay, self._parent)
        with home.gateway(self._relay, settings):
            with home.forwarder(self._relay, settings) as process:
                self._curl("%{time_total}", f"http://{SITE}/{SMALL}")
                process.kill()
                begun = time.monotonic()
            self._curl("%{time_total}", f"http://{SITE}/{SMALL}")
            self._measured.add("killed", "answered", time.monotonic() - begun)

    def crowd(self) -> None:
        with self._by("forwarder"):
            answered, seconds = map(float, self._device.run(python_command(CROWD), timeout=120).stdout.split())
            time.sleep(1.5)  # the forwarder writes its status once a second
            self._measured.add("crowd", "answered", answered)
            self._measured.add("crowd", "seconds", seconds)
            self._measured.add("crowd", "direct", float(home.forwarded(self._relay)["direct"]))

    def cost(self) -> None:
        for way in WAYS:
            with self._by(way) as process:
                self._download(SMALL)
                before, ran = _busy(), _ran(process)
                self._download(HUGE)
                gigabytes = FILES[HUGE] / 1e9
                self._measured.add("cost", f"{way}, machine", (_busy() - before) / gigabytes)
                if process is not None:
                    self._measured.add("cost", f"{way}, process", (_ran(process) - ran) / gigabytes)

    def _received(self, device: str) -> int:
        return self._relay.interface_bytes(device).received

    def _download(self, name: str) -> float:
        """Download a file and return its goodput in Mbit/s."""
        return FILES[name] * 8e-6 / self._curl("%{time_total}", f"https://{SITE}/{name}")

    def _curl(self, what: str, url: str) -> float:
        """Return curl's variable *what* for a request of *url*. Raises TestbedError if the request fails."""
        return float(self._device.run(_curl(url, what), timeout=SOON + 5).stdout)


def _curl(url: str, what: str, into: str = "/dev/null") -> list[str]:
    return ["curl", "-sSfk", "-m", str(SOON), "-o", into, "-w", what, url]


@contextmanager
def _living(device: LiveNode) -> Iterator[Callable[[], int]]:
    """Keep a download running. Yield a function that returns the bytes received so far."""
    file = device.directory / "living"
    file.write_bytes(b"")
    with device.running(_curl(f"https://{SITE}/{HUGE}", "", str(file))):
        yield lambda: file.stat().st_size


@contextmanager
def _squid(relay: LiveNode, parent: str) -> Iterator[Program]:
    before = "http_access deny !web_ports"
    text = RELAY_CONFIG.read_text().replace(before, f"{REDIRECTED}{before}")
    peer = f"cache_peer {parent} parent 3128 0 no-query no-digest connect-timeout=3"
    config = relay.write("relay.conf", f"{text}{peer}\nrequest_start_timeout 3 seconds\nshutdown_lifetime 0 seconds\n")
    proxy = start_relay(relay, config)
    with ExitStack() as scope:
        scope.callback(proxy.process.stop)
        relay.run(["nft", REDIRECT.strip().replace("\n", "; ")])
        scope.callback(relay.run, ["nft", "delete table ip squid"])
        yield proxy.process


def _busy() -> float:
    """Return the seconds that all processors of this machine have worked since its start (proc(5))."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, words[:7])
    return (user + nice + system + irq + softirq) / 100


def _ran(process: Program | None) -> float:
    """Return the processor seconds that a program and its descendants have used."""
    if process is None:
        return 0.0
    total = 0
    for pid in (process.pid, *descendants(process.pid)):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / 100
