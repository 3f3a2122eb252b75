"""The daemon of one host: it looks at the uplinks, tries them, and has the kernel as the plan says.

notices of the kernel ──▶ look ──▶ health ──▶ plan ──▶ routes, rules, endpoints
                                    ▲ │
                          outcomes ─┘ └─▶ trials, each in a thread
"""

from __future__ import annotations

import json
import logging
import queue
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import READY, WATCHDOG, status, tell
from mptcp_gateway.health import HealthWatch
from mptcp_gateway.kernel.before import Before
from mptcp_gateway.kernel.network import Network, retransmitting
from mptcp_gateway.kernel.trial import tried
from mptcp_gateway.model import Access, Outcome, Verdict, Way
from mptcp_gateway.plan import MOST_UPLINKS, Objects, best, planned
from mptcp_gateway.settings import Settings

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.25
"""Between two looks whether a connection has to send again, and what trials said."""
LOOK_SECONDS: Final = 10.0
"""Between two looks at all that the kernel has, without a notice of its."""
TELL_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 0.05
"""After a notice: addresses and routes come in several."""
_GROUPS: Final = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
"""Links, addresses and routes of both versions (linux/rtnetlink.h)."""


@dataclass(frozen=True, slots=True)
class _Tried:
    way: Way
    access: Access
    outcome: Outcome


class Daemon:
    """One host's."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """*directory* is where what is to be put back is noted, and the status. Raises KernelError."""
        self._settings = settings
        self._order = tuple(settings.uplinks)
        self._directory = directory
        self._network = Network()
        self._before = Before(directory / "before.json")
        self._health = HealthWatch()
        self._outcomes: queue.SimpleQueue[_Tried] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._notices = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._notices.bind((0, _GROUPS))
        self._notices.setblocking(False)
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self._trials = ThreadPoolExecutor(2 * MOST_UPLINKS, "trial")
        self._failed = ""
        """The last error that was logged."""
        self._bests: dict[int, Way | None] = {}
        self._told = 0.0
        self.ending = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have sysctls and limits set; at the end all is as it was before. Raises KernelError."""
        with ExitStack() as scope:
            for each in (self._network, self._notices, self._woken, self._wakes, self._selector):
                scope.callback(each.close)
            scope.callback(self._trials.shutdown, wait=False, cancel_futures=True)
            for each in (self._notices, self._woken):
                self._selector.register(each, selectors.EVENT_READ)
            scope.callback(self._leave)
            self._before.prepare(self._settings.uplinks)
            yield

    def wake(self, *, ending: bool = False) -> None:
        """Have the loop go on at once; it may be called by a signal handler or a thread."""
        self.ending = self.ending or ending
        with suppress(OSError):  # it is awake, or has ended
            self._wakes.send(b".")

    def run(self) -> None:
        """Look after the uplinks until it is told to end."""
        looked = -LOOK_SECONDS
        while not self.ending:
            woken = {key.fileobj for key, _ in self._selector.select(TURN_SECONDS)}
            if self._notices in woken:
                time.sleep(_SETTLE_SECONDS)
            for each in (self._notices, self._woken):
                _drain(each)
            now = time.monotonic()
            try:
                if self._notices in woken or now - looked >= LOOK_SECONDS:
                    looked = now
                    self._look(now)
                self._turn(now)
            except KernelError as error:
                if str(error) != self._failed:
                    log.error("%s", error)
                self._failed, looked = str(error), -LOOK_SECONDS
                time.sleep(TURN_SECONDS)
            else:
                self._failed = ""
            tell("mptcp-gateway", WATCHDOG)

    def _look(self, now: float) -> None:
        """See which ways there are. Raises KernelError."""
        found, before = self._network.found(self._settings.uplinks), self._health.ways.copy()
        self._health.follow(found, now)
        for way in before.keys() - found.keys():
            log.warning("uplink %s has no IPv%d any more", *way)
        for way in found.keys() - before.keys():
            log.info("uplink %s has IPv%d: %s by %s", *way, found[way].address, found[way].gateway or found[way].device)
        self._apply()

    def _turn(self, now: float) -> None:
        """Take the outcomes of trials, and begin those that are due. Raises KernelError."""
        health = self._health
        health.suspect(retransmitting(each.access.address for each in health.ways.values()), now)
        changed = False
        while not self._outcomes.empty():
            each = self._outcomes.get()
            if health.take(each.way, each.access, each.outcome, now):
                changed = True
                level = logging.INFO if each.outcome.verdict is Verdict.GOOD else logging.WARNING
                why = f": {each.outcome.reason}" if each.outcome.reason else ""
                log.log(level, "uplink %s, IPv%d: %s%s", *each.way, each.outcome.verdict.value, why)
        if changed:
            self._apply()
        for way in health.due(now):
            self._trials.submit(self._try, way, health.ways[way].access)
        if changed or now - self._told >= TELL_SECONDS:
            self._told = now
            self._tell(now)

    def _apply(self) -> None:
        """Bring the kernel in line. Raises KernelError."""
        verdicts = self._health.verdicts
        found = {way: each.access for way, each in self._health.ways.items()}
        wanted = planned(self._order, found, verdicts)
        self._network.apply(wanted)
        self._before.have_endpoints(wanted.endpoints, frozenset(self._settings.uplinks.values()))
        bests = {version: best(self._order, verdicts, version) for version in (4, 6)}
        for version, chosen in bests.items():
            if chosen != self._bests.get(version):
                log.info("IPv%d: connections begin on %s", version, "no uplink" if chosen is None else chosen.uplink)
        self._bests = bests

    def _try(self, way: Way, access: Access) -> None:
        outcome = tried(access, self._settings.parents)
        self._outcomes.put(_Tried(way, access, outcome))
        self.wake()

    def _leave(self) -> None:
        try:
            self._network.apply(Objects())
        except KernelError as error:
            log.error("%s", error)
        self._before.restore()
        (self._directory / "status.json").unlink(missing_ok=True)

    def _tell(self, now: float) -> None:
        """Leave the status in its file."""
        ways = []
        for uplink, device in self._settings.uplinks.items():
            for version in (4, 6):
                health = self._health.ways.get(Way(uplink, version))
                if health is not None:
                    ways.append(
                        {
                            "uplink": uplink,
                            "device": device,
                            "version": version,
                            "address": str(health.access.address),
                            "gateway": None if health.access.gateway is None else str(health.access.gateway),
                            "verdict": health.verdict.value,
                            "for_seconds": round(now - health.since),
                            "rtt_ms": round(health.rtt * 1e3, 1),
                            "reason": health.reason,
                            "begins_here": self._bests.get(version) == Way(uplink, version),
                        }
                    )
        found: dict[str, Any] = {"uplinks": list(self._order), "ways": ways}
        temporary = self._directory / "status.new"
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self._directory / "status.json")


def _drain(of: socket.socket) -> None:
    with suppress(OSError):  # nothing is left, or notices were lost: what there is, is looked at
        while of.recv(65536):
            pass


def serve(settings: Settings, directory: Path) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError and OSError."""
    daemon = Daemon(settings, directory)
    with daemon.opened():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: daemon.wake(ending=True))
        tell("mptcp-gateway", READY, status(f"{len(settings.uplinks)} uplinks"))
        daemon.run()
