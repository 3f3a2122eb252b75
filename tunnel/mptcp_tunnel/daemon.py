# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon of one host: passes the state of each tunnel's paths to the kernel programs, and exchanges messages with
the other ends.

messages ──▶ sessions ──▶ maps of the programs
   ▲            │
   └── probes ◀─┘
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import READY, WATCHDOG, notify, tell, watchdog_seconds
from mptcp_tunnel.kernel.alone import alone
from mptcp_tunnel.kernel.network import MTU, Network, far_end, index_of, near_end
from mptcp_tunnel.kernel.packets import Receiver
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.kernel.resequencer import Resequencer
from mptcp_tunnel.kernel.routes import Routes
from mptcp_tunnel.message import SIZE, Key, Kind, packed, parsed, sender_of
from mptcp_tunnel.model import MOST_PATHS, Address, End, Ends, Mode, PathCounters, PathState
from mptcp_tunnel.session import NO_COUNTERS, Session
from mptcp_tunnel.settings import Settings, Tunnel, read_key
from mptcp_tunnel.status_socket import StatusSocket
from mptcp_tunnel.uplinks import Uplinks

log = logging.getLogger(__name__)

_NEVER: Final = 1 << 63
_TURN: Final = 25_000_000
"""Nanoseconds between two checks of a relay's tunnels for due work."""
_TELL: Final = 2_000_000_000
"""Nanoseconds between two updates of the programs. If they get no update for five seconds, they use every path."""
_UPLINKS: Final = 1_000_000_000
"""Nanoseconds between two checks of the uplinks, their addresses and gateways."""
_TENTHS: Final = 10
"""Number of parts in which a proxy checks its tunnels, one part each second, because a thousand route queries at once
take too long."""
_MEND: Final = 10_000_000_000
"""Nanoseconds between two checks for objects that other programs may have removed."""
_PAUSE: Final = 0.004
"""Seconds for which a proxy lets messages accumulate: a message read in a batch takes half the time of a single one.
The kernel's time stamp shows when each message came."""
_STALE: Final = 200_000_000
"""Nanoseconds. A message that waited longer does not show the present state of a path. It is skipped, so that a backlog
ends soon."""
_BATCH: Final = 64
_LEAST_CHANGE: Final = 0.02
"""Relative change of a rate from which on the programs get the new rate at once."""
_DELAY: Final = 1_000_000
"""Change of a delay, nanoseconds, from which on the programs get it at once."""
_QUEUE: Final = 5_000_000


class _Running:
    def __init__(self, number: int, tunnel: Tunnel) -> None:
        self.number, self.tunnel, self.key = number, tunnel, Key(read_key(tunnel.key))
        self.is_relay = tunnel.peer is not None
        kind = Kind.PROBE if self.is_relay else Kind.ANSWER
        count = len(tunnel.paths) if self.is_relay else MOST_PATHS
        self.session = Session(kind, [tunnel.peer] * count, os.urandom(16))
        self.begun: list[tuple[int, PathCounters]] = [(0, NO_COUNTERS)] * count
        """For each path: since when it has these ends (nanoseconds since the epoch, unique), and its counters at that
        time."""
        self.inside: Ends | None = None
        self.states: list[PathState | None] = [None] * count
        """State of each path that was last passed to the programs."""
        self.leasts: list[int | None] = [None] * count
        """Least delay of each path at that time, measured between the clocks of both ends, which differ."""
        self.lives = [False] * count
        """Which paths were alive, as logged last. A silent path may still be used."""
        self.updated = 0
        self.troubles: dict[int, str] = {}
        self.patience = 0
        """Patience last passed to the resequencer, nanoseconds."""
        self.mtu: int | None = None
        """Largest packet of the narrowest path, as logged last."""
        self.due = self.queued = _NEVER
        """``due``: when to check this tunnel again; ``queued``: the time of its entry in the heap."""


class Daemon:
    """The daemon of one host."""

    def __init__(self, settings: Settings) -> None:
        """Raises OSError and ValueError if a key cannot be read."""
        self._settings = settings
        self._running = [_Running(number, each) for number, each in enumerate(settings.tunnels)]
        self._relays = [each for each in self._running if each.is_relay]
        self._by_identifier = {each.key.identifier: each for each in self._running}
        self._changed: dict[_Running, None] = {}
        """A proxy's tunnels whose changes the programs must get."""
        self._more = False
        self._led = set[int]()
        """IP versions that relays have used."""
        self._looks: list[tuple[int, int]] = []
        """A heap with the time at which each of a proxy's tunnels must be checked if no message comes."""
        self._network = Network()
        self._selector = selectors.DefaultSelector()
        self._programs: Programs
        self._routes: Routes
        self._resequencer: Resequencer
        self._uplinks: Uplinks
        self._answering: StatusSocket
        self._is_watched = watchdog_seconds(os.environ) is not None
        self._classes: dict[int, tuple[int, int]] = {}
        """From the throttler, by the path's ID: HTB class and rate cap, bits/s (0 if it has no cap)."""
        self._device = self._tenth = 0
        self._begun = 0
        self.refused = 0
        """Number of messages with a wrong code or an unknown sender."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create device, programs and sockets, and remove them in the end, whatever happens. Raises KernelError."""
        settings = self._settings
        with ExitStack() as scope:
            scope.callback(self._network.close)
            scope.callback(self._network.remove)
            self._device, address = self._network.make()
            self._routes = Routes()
            scope.callback(self._routes.close)
            self._programs = Programs(self._device, address, {each.tunnel.port for each in self._running})
            scope.callback(self._programs.close)
            self._programs.attach_splitter()
            self._uplinks = Uplinks(settings.uplinks, self._programs, self._selector, self._read)
            scope.callback(self._uplinks.close)
            self._resequencer = Resequencer()
            scope.callback(self._resequencer.close)
            self._answering = StatusSocket(settings.status_socket, self._selector, self._take, self.status)
            scope.callback(self._answering.close)
            for each in self._running:
                if each.tunnel.peer is not None:
                    each.inside = Ends(near_end(each.tunnel.port, each.tunnel.peer.address.version), each.tunnel.peer)
                    self._network.lead(each.tunnel.peer, each.tunnel.port)
            yield

    def run(self, stop: socket.socket) -> None:
        """Probe, and keep the programs up to date, until *stop* can be read. Raises KernelError."""
        self._selector.register(stop, selectors.EVENT_READ)
        turn = looked = mended = time.monotonic_ns()
        self._look_at_uplinks()
        while True:
            due = min(looked + _UPLINKS, turn if self._relays else _NEVER, *(each for each, _ in self._looks[:1]))
            if (answering := self._answering.due) is not None:
                due = min(due, answering)
            for key, _ in self._selector.select(max(0.0, (due - time.monotonic_ns()) / 1e9)):
                if key.data is None:
                    return
                key.data()
            now = time.monotonic_ns()
            if now >= looked + _UPLINKS:
                looked = now
                self._look_at_uplinks()
                self._follow_gateways()
                if now >= mended + _MEND:
                    mended = now
                    self._mend()
                if self._is_watched:
                    tell("mptcp-tunnel", WATCHDOG)
            self._answering.answer_the_silent()
            if self._relays and now >= turn:
                turn = now + _TURN
                for each in self._relays:
                    self._count(each, now)
                    self._probe(each, now)
                    self._follow(each, now)
            self._look(now)
            if not self._relays and not self._more:
                time.sleep(_PAUSE)
            self._more = False

    def _mend(self) -> None:
        """Restore objects that other programs removed. Raises KernelError if that fails; the daemon then ends, and its
        restart makes all objects anew."""
        self._network.mend(self._device)
        self._programs.mend()
        if self._resequencer.mend():
            for running in self._running:
                running.patience = running.updated = 0
                self._changed[running] = None

    def _look_at_uplinks(self) -> None:
        changed = self._uplinks.follow()
        addresses = self._routes.addresses() if self._relays else {}
        for running in self._running:
            if running.tunnel.peer is not None:
                for index, (_, interface) in enumerate(running.tunnel.paths):
                    self._find(running, index, interface, running.tunnel.peer, addresses)
            elif changed:
                for index, state in enumerate(running.states):
                    if state is not None and state.interface not in self._uplinks.indices:
                        self._move(running, index, None)
                        running.session.paths[index].remote = None  # until the address is proven again

    def _look(self, now: int) -> None:
        """Update a proxy's tunnels that messages changed, and those that are due."""
        changed, self._changed = self._changed, {}
        while self._looks and self._looks[0][0] <= now:
            at, number = heappop(self._looks)
            running = self._running[number]
            if at == running.queued:
                running.queued = _NEVER
                if running.due <= now:
                    self._count(running, now)
                    changed[running] = None
                else:
                    self._look_again(running, running.due)
        for each in changed:
            self._follow(each, now)
            if each.inside is not None:
                silence = each.session.next_silence(now)
                self._look_again(each, min(_NEVER if silence is None else silence, each.updated + _TELL + 1))

    def _follow_gateways(self) -> None:
        self._tenth = (self._tenth + 1) % _TENTHS
        for running in self._running[self._tenth :: _TENTHS]:
            for index, state in enumerate(running.states):
                if running.is_relay or state is None:
                    continue
                (local, remote), interface = state.outside, state.interface
                with suppress(KernelError):  # there is no route at present, but the known one may come back
                    next_hop = self._routes.next_hop(remote.address, local.address, interface)
                    if next_hop != state.next_hop:
                        name = f"tunnel {running.tunnel.name}: path {index}"
                        log.info("%s leaves by %s", name, next_hop)
                        self._move(running, index, replace(state, next_hop=next_hop))

    def _look_again(self, running: _Running, at: int) -> None:
        running.due = at
        if at < running.queued:
            running.queued = at
            heappush(self._looks, (at, running.number))

    def _take(self, request: dict[str, Any]) -> None:
        """Apply the throttler's ``{"classes": {ID: [CLASS, RATE]}}``, of all paths with a class. Raises ValueError."""
        classes = {int(number): (int(each[0]), int(each[1])) for number, each in request.get("classes", {}).items()}
        if any(not 0 < class_id < 1 << 32 or rate < 0 for class_id, rate in classes.values()):
            raise ValueError("a class is a handle of 32 bits, and a rate is not negative")
        if "classes" in request and classes != self._classes:
            self._classes = classes
            self._changed.update((each, None) for each in self._running if not each.is_relay)

    def status(self) -> dict[str, Any]:
        """Return the status for the status socket."""
        now = time.monotonic_ns()
        for each in self._running:
            if not each.is_relay:
                self._count(each, now)  # the counters of a relay's tunnels are read each turn
        return {"refused": self.refused, "tunnels": [self._shown(each, now) for each in self._running]}

    def _find(
        self, running: _Running, index: int, interface: str, peer: End, addresses: Mapping[int, Sequence[Address]]
    ) -> None:
        """Find by which gateway and from which address a relay's path leaves now."""
        before, name = running.states[index], f"tunnel {running.tunnel.name}: path {self._name(running, index)}"
        try:
            next_hop, source = self._routes.way(peer.address, interface, addresses)
            after = PathState(Ends(End(source, running.tunnel.port), peer), index_of(interface), next_hop, alive=False)
        except KernelError as error:
            if before is not None or running.troubles.get(index) != str(error):
                running.troubles[index] = str(error)
                log.warning("%s: %s", name, error)
            self._move(running, index, None)
            return
        if before is None or _way(before) != _way(after):
            running.troubles.pop(index, None)
            log.info("%s leaves from %s by %s", name, source, next_hop)
            running.session.restart(index)
            self._move(running, index, after)

    def _move(self, running: _Running, index: int, state: PathState | None) -> None:
        """Set a path's state; None means that the path no longer exists."""
        before = running.states[index]
        if before is not None and (state is None or before.outside != state.outside):
            self._programs.forget_outside(before.outside, (running.number, index))
        if state is not None:
            if before is None or before.outside != state.outside:
                self._begun = max(self._begun + 1, time.time_ns())
                running.begun[index] = self._begun, running.session.paths[index].counters
            self._programs.set_outside({state.outside: (running.number, index)})
        running.states[index], running.updated = state, 0
        if not running.is_relay:
            self._changed[running] = None

    def _count(self, running: _Running, now: int) -> None:
        running.session.count(self._programs.counters(running.number), now)

    def _probe(self, running: _Running, now: int) -> None:
        session = running.session
        probes = [(index, message, SIZE) for index, message in session.due(now)]
        for index, message, size in (*probes, *session.larger(now)):
            state = running.states[index]
            if state is not None:
                interface, payload = running.tunnel.paths[index][1], packed(message, running.key, size)
                self._uplinks.send(interface, state.outside, payload, self._cap(running, index)[0])
        mtu = min((path.sizes.largest for path in session.paths if path.sizes.largest is not None), default=None)
        if mtu is not None and mtu != running.mtu:
            running.mtu = mtu
            log.log(
                logging.INFO if mtu >= MTU else logging.WARNING,
                "tunnel %s: its narrowest path takes packets of %s bytes; larger ones of its program are lost there",
                running.tunnel.name,
                mtu,
            )

    def _read(self, receiver: Receiver) -> None:
        try:
            received = receiver.read(_BATCH)
        except KernelError as error:
            log.warning("%s", error)
            return
        self._more = self._more or len(received) == _BATCH
        counted = set[_Running]()
        for each in received:
            now = time.monotonic_ns()
            if now - each.came > _STALE:
                continue
            sender = sender_of(each.payload)
            running = None if sender is None else self._by_identifier.get(sender)
            message = None if running is None else parsed(each.payload, running.key)
            if running is None or message is None:
                self.refused += 1
                continue
            if not running.is_relay and running not in counted:
                counted.add(running)
                self._count(running, now)
            answer, moved = running.session.receive(message, each.ends.remote, now, each.came)
            if answer is not None:
                payload = packed(answer, running.key, len(each.payload))
                class_id, _ = self._cap(running, message.path)
                self._uplinks.send(receiver.interface, each.ends, payload, class_id)
            if running.is_relay:
                continue  # a relay's tunnels are updated each turn
            if moved:
                self._learn(running, message.path, each.ends, receiver.interface)
            if self._has_changed(running, message.path, now):
                self._changed[running] = None

    def _has_changed(self, running: _Running, index: int, now: int) -> bool:
        """Tell whether a message has changed its path's state from the state that the programs have."""
        state, estimator = running.states[index], running.session.paths[index].estimator
        if state is None:
            return False
        _, most = self._cap(running, index)
        rate = min(estimator.rate, most) if most else estimator.rate
        least, before = estimator.delays.least(now), running.leasts[index]
        return (
            not state.alive
            or not running.lives[index]
            or least is None
            or before is None
            or abs(least - before) > _DELAY
            or abs(rate - state.rate) > _LEAST_CHANGE * state.rate
            or abs(estimator.standing - state.queue) > _QUEUE
        )

    def _learn(self, running: _Running, index: int, ends: Ends, interface: str) -> None:
        """Process a new address of a relay's path."""
        name = f"tunnel {running.tunnel.name}: path {index}"
        version = ends.local.address.version
        try:
            if running.inside is None or running.inside.local.address.version != version:
                self._begin_proxy(running, version)
            number = index_of(interface)
            next_hop = self._routes.next_hop(ends.remote.address, ends.local.address, number)
            self._move(running, index, PathState(ends, number, next_hop))
            running.troubles.pop(index, None)
            log.info("%s comes from %s", name, ends.remote)
        except KernelError as error:
            if running.troubles.get(index) != str(error):  # log an error once, even if it occurs at each retry
                running.troubles[index] = str(error)
                log.warning("%s: %s", name, error)
            running.session.paths[index].remote = None  # the next probe tries again

    def _begin_proxy(self, running: _Running, version: int) -> None:
        """Route the tunnel program's packets here. All paths of a tunnel have the IP version of the newest one."""
        port = running.tunnel.port
        inside = Ends(near_end(port, version), far_end(running.number, port, version))
        if version not in self._led:
            self._network.lead_far_ends(version)
            self._led.add(version)
        if running.inside is not None:
            log.warning("tunnel %s: its relay comes by IPv%d now", running.tunnel.name, version)
            self._programs.forget_inside(running.inside)
            for index, path in enumerate(running.session.paths):
                if path.remote is not None and path.remote.address.version != version:
                    self._move(running, index, None)
                    path.remote = None
        running.inside = inside
        running.patience = 0  # the resequencer does not know these ends

    def _follow(self, running: _Running, now: int) -> None:
        """Pass the changes of a tunnel to the programs."""
        session, inside = running.session, running.inside
        if inside is None:
            return
        alive, costs = session.alive(now), session.costs(now)
        if alive != running.lives:
            for index, (before, lives) in enumerate(zip(running.lives, alive, strict=True)):
                if before is not lives and running.states[index] is not None:
                    word = "lives" if lives else "is silent"
                    log.info("tunnel %s: path %s %s", running.tunnel.name, self._name(running, index), word)
            running.lives = alive
        alive = session.used(now, [each is not None for each in running.states])
        after: list[PathState | None] = [
            None
            if state is None
            else replace(state, alive=lives, rate=path.estimator.rate, delay=cost, queue=path.estimator.standing)
            for state, lives, cost, path in zip(running.states, alive, costs, session.paths, strict=True)
        ]
        after = [each and self._capped(running, index, each) for index, each in enumerate(after)]
        due = now - running.updated > _TELL
        if due or any(map(_differ, running.states, after)):
            running.states, running.updated = after, now
            running.leasts = [path.estimator.delays.least(now) for path in session.paths]
            patience = session.patience(now)
            if abs(patience - running.patience) > 1_000_000:
                running.patience = patience
                try:
                    self._resequencer.tell(inside.remote, patience)
                except KernelError as error:
                    log.warning("%s; packets pass as they come", error)
            split = running.tunnel.split
            # While the rate is not yet known, the queue may only seem long.
            known = all(path.estimator.full for path, lives in zip(session.paths, alive, strict=True) if lives)
            bounded = known and split.queue and split.mode is not Mode.WEIGHTS
            queue = split.queue + max(session.delays(now)) if bounded else 0
            self._programs.set_tunnel(running.number, inside, after, split, queue)

    def _cap(self, running: _Running, index: int) -> tuple[int, int]:
        """Return the class and the rate cap of a path's packets."""
        return self._classes.get(running.begun[index][0], (0, 0))

    def _capped(self, running: _Running, index: int, path: PathState) -> PathState:
        class_id, most = self._cap(running, index)
        return replace(path, class_id=class_id, rate=min(path.rate, most) if most else path.rate)

    def _name(self, running: _Running, index: int) -> str:
        return running.tunnel.paths[index][0] if running.is_relay else str(index)

    def _shown(self, running: _Running, now: int) -> dict[str, Any]:
        paths, alive = [], running.session.alive(now)
        for index, (path, state) in enumerate(zip(running.session.paths, running.states, strict=True)):
            if state is None and not running.is_relay:
                continue
            estimator, (begun, before) = path.estimator, running.begun[index]
            counted = PathCounters(*(map(int.__sub__, path.counters, before)))
            ends = None if state is None else state.outside
            heard = estimator.heard
            paths.append(
                {
                    "path": self._name(running, index),
                    "number": index,
                    "id": begun,
                    "local": None if ends is None else str(ends.local.address),
                    "local_port": None if ends is None else ends.local.port,
                    "remote": None if ends is None else str(ends.remote.address),
                    "remote_port": None if ends is None else ends.remote.port,
                    "interface": None if state is None else _name_of(state.interface),
                    "class": 0 if state is None else state.class_id,
                    "alive": state is not None and alive[index],
                    "silent_s": None if heard is None else round((now - heard) / 1e9, 3),
                    "trouble": running.troubles.get(index, ""),
                    "rate": round(estimator.rate),
                    "delay_ms": round((0 if state is None else state.delay) / 1e6, 1),
                    "queue_ms": round(estimator.queue / 1e6, 1),
                    "loss": None if estimator.loss is None else round(estimator.loss, 4),
                    "mtu": path.sizes.largest,
                    "packets_sent": counted.sent_packets,
                    "bytes_sent": counted.sent_bytes,
                    "packets_received": counted.received_packets,
                    "bytes_received": counted.received_bytes,
                }
            )
        return {"name": running.tunnel.name, "role": "relay" if running.is_relay else "proxy", "paths": paths}


def _way(state: PathState) -> tuple[object, ...]:
    return state.outside, state.interface, state.next_hop


def _name_of(interface: int) -> str | None:
    try:
        return socket.if_indextoname(interface)
    except OSError:
        return None


def _differ(before: PathState | None, after: PathState | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (
        before.alive is not after.alive
        or before.class_id != after.class_id
        or abs(after.rate - before.rate) > _LEAST_CHANGE * before.rate
        or abs(after.delay - before.delay) > _DELAY
        or abs(after.queue - before.queue) > _QUEUE
    )


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError, and OSError and ValueError if a key cannot be read."""
    daemon = Daemon(settings)
    woken, wakes = socket.socketpair()
    with woken, wakes, alone(), daemon.opened():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: wakes.send(b"."))
        gc.collect()
        gc.freeze()  # the collector need not scan a thousand tunnels again
        notify(READY)
        daemon.run(woken)
