# SPDX-License-Identifier: GPL-2.0-or-later
"""Thousands of forged segments a second beside an honest client: no cap moves, memory and processor stay bounded."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from throttler_site import PORT, Site, ask, clients, connected, listening, make_site, running, until
from wire import Link, link

from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.commands import run
from mptcp_lab.testbed.services import (
    SQUID_CONFIG,
    Origin,
    Proxy,
    Throttler,
    mptcp_command,
    start_origin,
    start_proxy,
)
from mptcp_proxy.process import children
from mptcp_throttler.mptcp.segment import parse_frame

pytestmark = pytest.mark.kernel
SECONDS, PER_SECOND, BURST = 5.0, 10_000, 100
LEAST_PER_SECOND = PER_SECOND / 5
"""On average from the first to the last: what a busy machine could not send in time is sent as soon as it can be.
The rate that was reached is printed. The bound is no higher, for sender, proxy and throttler share the processors with
whatever else runs."""
LEAST_GUESSES = PER_SECOND / 2
"""A second, refused by the kernel: two processors refuse all 10,000 beside other work."""
PATIENCE = 120.0
"""Seconds for that."""
BACKLOG = 4096
"""What Squid asks for. With less the kernel begins to send SYN cookies, and knows few joins by these."""
WRONG_HMAC = "MPTcpExtMPJoinAckHMacFailure"
FRAMES = 4000
"""Different ones."""
LEAST_READ = LEAST_PER_SECOND * SECONDS
"""Segments that the throttler reads, at the least: it reads for half the time of a processor."""
MOST_COST = 15.0
"""What the daemon takes for a segment at the most, all that it does beside included, in times that reading one takes
alone: another machine, or another time, takes twice as long for both. Beside busy loops, where fewer are read at a
time, it came to 9.6."""
MOST_RESYNCS = 0.5
"""A second: one each three ``verify_interval``, 6 s here. Segments that were dropped need none."""
AT_ONCE, MOST_SHARE = 0.5, 0.85
"""Seconds of a processor that the daemon takes at the beginning, and the share that it takes of one besides: half for
what it reads, some 0.15 for all else, more beside other work. Without that bound it comes to 0.92 where all guesses are
sent, each of which is four segments."""
MOST_GROWTH = 60_000
"""kB, of resident memory; the tracker's tables are bounded."""
RIGHT = [("ethernet", 5_000_000), ("wifi", None)]
"""Of each connection that the client really has."""
SPOOFED, NOBODY = "10.77.1.{}", "10.77.1.128/25"
"""Addresses of the capped path that no host has."""


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("gcc")
    site = make_site("nftables", make_module_testbed, require)
    # Else a router asks for each of these by ARP, and says to the proxy that it is not there.
    site.testbed["core"].run(["ip", "route", "add", "blackhole", NOBODY])
    return site


def frames(wire: Link, kind: str, token: int = 0) -> list[bytes]:
    from mptcp_layers import MpCapable, MpJoinAck, MpJoinSyn, tcp_option

    rng = random.Random(8684)

    def client() -> tuple[str, int]:
        return SPOOFED.format(rng.randrange(128, 255)), rng.randrange(1024, 65536)

    def join(token: int) -> Any:
        return tcp_option(MpJoinSyn(address_id=rng.randrange(256), token=token, nonce=rng.getrandbits(32)))

    makers: dict[str, Callable[[], bytes]] = {
        "MP_CAPABLE": lambda: wire.frame(client(), flags="S", ack=0, options=[tcp_option(MpCapable())]),
        "guessed tokens": lambda: wire.frame(client(), flags="S", ack=0, options=[join(rng.getrandbits(32))]),
        "right token": lambda: wire.frame(client(), flags="S", ack=0, options=[join(token)]),
        "guessed HMACs": lambda: wire.frame(
            client(), flags="A", options=[tcp_option(MpJoinAck(hmac=rng.randbytes(20)))]
        ),
        # As many options as a header holds.
        "options": lambda: wire.frame(client(), flags="A", options=[(30, b"\x51")] * 13),
    }
    return [makers[kind]() for _ in range(FRAMES)]


class Flood:
    """What a thread sends, as many a second as wanted."""

    def __init__(self, wire: Link, frames: list[bytes]) -> None:
        self.count, self._over, self._volley = 0, threading.Event(), wire.volley(frames, BURST)
        self._begin = time.monotonic()
        self._sender = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._over.is_set():
            self.count += self._volley.send()
            self._over.wait(max(0.0, self._begin + self.count / PER_SECOND - time.monotonic()))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def goes_on(self) -> bool:
        """Whether it was too short yet, or too thin."""
        assert self.seconds < PATIENCE, f"{self.count} in {self.seconds:.0f} s are no flood"
        return self.seconds < SECONDS or self.count < LEAST_PER_SECOND * self.seconds

    def __enter__(self) -> Flood:
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()


def resident(pid: int) -> int:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1])


def seconds_to_read(frames: list[bytes]) -> float:
    """Return what reading one of *frames* takes of a processor, on this machine and at this time."""
    taken = []
    for _ in range(5):
        begin = time.thread_time()
        for frame in frames:
            parse_frame(frame, 0.0, "wan0")
        taken.append((time.thread_time() - begin) / len(frames))
    return median(taken)


def known(throttler: Throttler) -> list[list[tuple[str, int | None]]]:
    """Return path and cap of each subflow of each connection."""
    connections = ask(throttler.socket)["connections"]
    return [sorted((each["path"], each["rate"]) for each in connection["subflows"]) for connection in connections]


def both_capped(site: Site) -> bool:
    """Whether the kernel has the caps of the client's two connections; it has them later than they are decided."""
    return clients(site.entries()).count("10.77.1.2") == 2


@pytest.mark.nightly(besides=("guessed tokens",))
@pytest.mark.parametrize("kind", ["MP_CAPABLE", "guessed tokens", "guessed HMACs", "options"])
def test_a_flood_moves_no_cap_and_costs_what_is_bounded(site: Site, kind: str) -> None:
    with running(site) as throttler, listening(site) as listener, link(site) as wire, connected(site, listener):
        until(lambda: known(throttler) == [RIGHT])
        forged, pid = frames(wire, kind), throttler.process.pid
        read = observed(throttler)
        memory, used, begin = resident(pid), process_seconds(pid), time.monotonic()
        with Flood(wire, forged) as flood:
            # Who comes in the middle of it is served, and has its cap.
            with connected(site, listener):
                until(lambda: known(throttler) == [RIGHT, RIGHT] and both_capped(site))
                while flood.goes_on():
                    assert known(throttler) == [RIGHT, RIGHT]
                    assert both_capped(site)
                    time.sleep(0.3)
            alone = seconds_to_read(forged)
            spent, seconds = process_seconds(pid) - used, time.monotonic() - begin
            sent, came = flood.count, observed(throttler) - read
        cost = spent / came / alone
        print(
            f"{kind}: {sent / seconds:.0f}/s, {came / sent:.2f} read for each, {spent / seconds:.0%} of a processor, "
            f"{cost:.1f} times what reading takes"
        )
        assert came > LEAST_READ
        assert cost < MOST_COST
        assert resident(pid) - memory < MOST_GROWTH
        until(lambda: known(throttler) == [RIGHT])


@pytest.mark.nightly
def test_guessed_hmacs_of_joins_that_are_answered_move_no_cap(site: Site) -> None:
    """The token is right, as every join shows it to whoever is on its path; only the HMAC is wrong."""
    with running(site) as throttler, listening(site) as listener, link(site) as wire, connected(site, listener):
        listener.listen(BACKLOG)
        until(lambda: known(throttler) == [RIGHT])
        (token,) = (int(each["token"], 16) for each in ask(throttler.socket)["connections"])
        core, pid, forged = site.testbed["core"], throttler.process.pid, frames(wire, "right token", token)
        file, program = core.directory / "joins", built(core)
        file.write_bytes(b"".join(len(each).to_bytes(2, "big") + each for each in forged))
        before, kernel, memory = counters(throttler), site.proxy.mib().get(WRONG_HMAC, 0), resident(pid)

        def wrong() -> int:
            """Return how many HMACs the kernel has refused."""
            return int(site.proxy.mib().get(WRONG_HMAC, 0)) - kernel

        used, begin = process_seconds(pid), time.monotonic()
        attacker = core.popen([str(program), "to-proxy", str(file), str(PER_SECOND)])
        try:
            # Who comes in the middle of it is served, and has its cap.
            with connected(site, listener):
                until(lambda: known(throttler) == [RIGHT, RIGHT] and both_capped(site))
                while time.monotonic() < begin + SECONDS or wrong() < LEAST_GUESSES * (time.monotonic() - begin):
                    assert attacker.running, attacker.output()
                    assert time.monotonic() < begin + PATIENCE, attacker.output()
                    assert known(throttler) == [RIGHT, RIGHT]
                    assert both_capped(site)
                    time.sleep(0.3)
            alone = seconds_to_read(forged)
            spent, after, guessed = process_seconds(pid) - used, counters(throttler), wrong()
            seconds = time.monotonic() - begin
        finally:
            attacker.kill()
        refused = after["tracker"]["joins_refused"] - before["tracker"]["joins_refused"]
        seen = {name: count - before["observers"][name] for name, count in after["observers"].items()}
        read, dropped, resyncs = (seen[name] for name in ("segments", "segments_dropped", "resyncs"))
        cost, more = spent / read / alone, resident(pid) - memory
        print(
            f"refused by kernel and throttler: {guessed / seconds:.0f}/s, {refused / seconds:.0f}/s; segments read and "
            f"dropped: {read / seconds:.0f}/s, {dropped / seconds:.0f}/s; {resyncs} resyncs in {seconds:.1f} s; "
            f"{spent / seconds:.0%} of a processor, {cost:.1f} times what reading takes, {more} kB more"
        )
        assert refused > 0
        assert read > LEAST_READ
        assert resyncs <= MOST_RESYNCS * seconds + 2
        assert cost < MOST_COST
        assert spent < AT_ONCE + MOST_SHARE * seconds
        assert more < MOST_GROWTH
        until(lambda: known(throttler) == [RIGHT])


def built(node: LiveNode) -> Path:
    """Return ``guessing.c``, compiled below the directory of *node*."""
    program, source = node.directory / "guessing", Path(__file__).with_name("guessing.c")
    run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source)])
    return program


def counters(throttler: Throttler) -> dict[str, dict[str, int]]:
    return dict(ask(throttler.socket)["counters"])


def observed(throttler: Throttler) -> int:
    return counters(throttler)["observers"]["segments"]


@pytest.fixture(scope="module")
def served(make_module_testbed: Callable[..., Testbed], require: Any) -> tuple[Site, Origin, Proxy]:
    """A site with the real proxy, of one worker."""
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    site = make_site("nftables", make_module_testbed, require)
    config = site.proxy.directory / "squid.conf"
    config.write_text(f"include {SQUID_CONFIG}\nworkers 1\nshutdown_lifetime 0 seconds\n")
    return site, start_origin(site.testbed["origin"], {"file": 100_000}), start_proxy(site.proxy, config)


@pytest.mark.nightly
def test_a_flood_of_the_proxy_itself_keeps_no_client_from_it(served: tuple[Site, Origin, Proxy]) -> None:
    site, origin, proxy = served
    command = mptcp_command(["curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"])
    (squid,) = (pid for parent in children(proxy.process.pid) for pid in children(parent))
    with running(site) as throttler, link(site) as wire, kept(site, origin):
        until(lambda: known(throttler) == [RIGHT])
        forged, memory = frames(wire, "MP_CAPABLE"), resident(squid)
        with Flood(wire, forged) as flood:
            downloads = 0
            while flood.goes_on() or not downloads:
                got = site.client.run([*command, "-x", proxy.url(), origin.url("file")], timeout=90).stdout
                assert got == "200 100000"
                downloads += 1
                assert RIGHT in known(throttler)
                assert clients(site.entries()).count("10.77.1.2") >= 1
        print(f"{flood.count / flood.seconds:.0f}/s beside {downloads} downloads; {resident(squid) - memory} kB more")
        assert resident(squid) - memory < MOST_GROWTH
        until(lambda: known(throttler) == [RIGHT])


@contextmanager
def kept(site: Site, origin: Origin) -> Iterator[None]:
    """A connection of the client to the proxy that has had its answer and waits for more."""
    with site.client.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    with client:
        client.settimeout(60)
        client.connect((site.proxy.address("wan0"), PORT))
        client.sendall(f"GET {origin.url('file')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        got = b""
        while len(got.partition(b"\r\n\r\n")[2]) < 100_000:
            got += client.recv(65536)
        yield
