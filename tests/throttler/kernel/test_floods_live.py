"""Thousands of forged segments a second beside an honest client: no cap moves, memory and processor stay bounded."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from throttler_site import Site, clients, connected, listening, make_site, running, until
from wire import Link, link

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Throttler
from mptcp_throttler.views.ask import ask

pytestmark = pytest.mark.kernel
SECONDS, PER_SECOND, BURST = 5.0, 10_000, 100
FRAMES = 4000
MOST_SHARE = 0.8
"""Of a processor, that the daemon takes at the most: a whole one would be a flood that it does not keep up with."""
MOST_GROWTH = 60_000
"""kB, of resident memory; the tracker's tables are bounded."""
SPOOFED = "10.77.1.{}"
"""Addresses of the capped path that no host has."""


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    return make_site("nftables", make_module_testbed, require)


def frames(wire: Link, kind: str) -> list[bytes]:
    from mptcp_throttler.views.mptcp_layers import MpCapable, MpJoinAck, MpJoinSyn, tcp_option

    rng = random.Random(8684)

    def client() -> tuple[str, int]:
        return SPOOFED.format(rng.randrange(20, 250)), rng.randrange(1024, 65536)

    def join() -> Any:
        return tcp_option(
            MpJoinSyn(address_id=rng.randrange(256), token=rng.getrandbits(32), nonce=rng.getrandbits(32))
        )

    makers: dict[str, Callable[[], bytes]] = {
        "MP_CAPABLE": lambda: wire.frame(client(), flags="S", ack=0, options=[tcp_option(MpCapable())]),
        "guessed tokens": lambda: wire.frame(client(), flags="S", ack=0, options=[join()]),
        "guessed HMACs": lambda: wire.frame(
            client(), flags="A", options=[tcp_option(MpJoinAck(hmac=rng.randbytes(20)))]
        ),
        # As many options as a header holds.
        "options": lambda: wire.frame(client(), flags="A", options=[(30, b"\x51")] * 13),
    }
    return [makers[kind]() for _ in range(FRAMES)]


@contextmanager
def flood(wire: Link, sent: list[bytes]) -> Iterator[list[int]]:
    """Send as many a second as wanted; how many were sent, at the end."""
    over, count = threading.Event(), [0]

    def send() -> None:
        turn = itertools.cycle(sent)
        begin = time.monotonic()
        while not over.is_set():
            for frame in itertools.islice(turn, BURST):
                wire.send(frame)
            count[0] += BURST
            over.wait(max(0.0, begin + count[0] / PER_SECOND - time.monotonic()))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield count
    finally:
        over.set()
        sender.join()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1])


def honest(throttler: Throttler) -> list[dict[str, tuple[str, int | None]]]:
    """Return the subflows of the connections that the client really has."""
    return [
        {each["path"]: (each["state"], each["rate"]) for each in connection["subflows"]}
        for connection in ask(throttler.socket)["connections"]
        if any(each["remote"].startswith("10.77.1.2:") for each in connection["subflows"])
    ]


@pytest.mark.parametrize("kind", ["MP_CAPABLE", "guessed tokens", "guessed HMACs", "options"])
def test_a_flood_moves_no_cap_and_costs_what_is_bounded(site: Site, kind: str) -> None:
    right: dict[str, tuple[str, int | None]] = {"ethernet": ("active", 5_000_000), "wifi": ("active", None)}
    with running(site) as throttler, listening(site) as listener, link(site) as wire, connected(site, listener):
        until(lambda: honest(throttler) == [right])
        forged, pid = frames(wire, kind), throttler.process.pid
        read = ask(throttler.socket)["counters"]["observers"]["segments"]
        memory, used, begin = resident(pid), processor_seconds(pid), time.monotonic()
        with flood(wire, forged) as count:
            # Who comes in the middle of it is served, and has its cap.
            with connected(site, listener):
                until(lambda: honest(throttler) == [right, right])
                while time.monotonic() < begin + SECONDS or count[0] <= FRAMES:
                    assert honest(throttler) == [right, right]
                    assert clients(site.entries()).count("10.77.1.2") == 2
                    time.sleep(0.3)
            share = (processor_seconds(pid) - used) / (time.monotonic() - begin)
        assert count[0] > FRAMES
        assert ask(throttler.socket)["counters"]["observers"]["segments"] > read + FRAMES / 10, "it saw them"
        assert share < MOST_SHARE
        assert resident(pid) - memory < MOST_GROWTH
        until(lambda: honest(throttler) == [right])
