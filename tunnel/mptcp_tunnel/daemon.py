"""The daemon of one host: it keeps the programs told of each tunnel's paths, and talks to the other ends.

messages ──▶ sessions ──▶ maps of the programs
   ▲            │
   └── probes ◀─┘
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import READY, WATCHDOG, notify, tell, watchdog_seconds
from mptcp_tunnel.kernel.network import Network, far_end, index_of, near_end
from mptcp_tunnel.kernel.packets import Receiver
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.kernel.resequencer import Resequencer
from mptcp_tunnel.message import Kind, identifier, packed, parsed, sender_of
from mptcp_tunnel.model import MOST_PATHS, End, Ends, PathCounters, PathState
from mptcp_tunnel.session import NO_COUNTERS, Session
from mptcp_tunnel.settings import Settings, Tunnel, read_key
from mptcp_tunnel.status_socket import StatusSocket
from mptcp_tunnel.uplinks import Uplinks

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.025
"""Between two looks at what is due."""
TELL_SECONDS: Final = 1.0
"""The programs are told so often, changed or not: they fall back to every path after five of silence."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at uplinks, their addresses and gateways."""
_BATCH: Final = 64
_LEAST_CHANGE: Final = 0.02
"""Of a rate or a delay that the programs are told of at once."""


class _Running:
    """One tunnel that runs here."""

    def __init__(self, number: int, tunnel: Tunnel) -> None:
        self.number, self.tunnel, self.key = number, tunnel, read_key(tunnel.key)
        self.is_relay = tunnel.peer is not None
        kind = Kind.PROBE if self.is_relay else Kind.ANSWER
        count = len(tunnel.paths) if self.is_relay else MOST_PATHS
        self.session = Session(kind, [tunnel.peer] * count, time.time_ns())
        self.begun: list[tuple[int, PathCounters]] = [(0, NO_COUNTERS)] * count
        """Since when a path has these ends, nanoseconds since the epoch: no two have the same. And what was counted
        before."""
        self.inside: Ends | None = None
        self.states: list[PathState | None] = [None] * count
        """What the programs were told last."""
        self.told = 0
        self.troubles: dict[int, str] = {}
        """Of paths, by index: why a relay's is not there."""
        self.patience = 0
        """What the resequencer was told last, nanoseconds."""


class Daemon:
    """One host's."""

    def __init__(self, settings: Settings) -> None:
        """Raises OSError and ValueError for a key that cannot be read."""
        self._settings = settings
        self._running = [_Running(number, each) for number, each in enumerate(settings.tunnels)]
        self._by_identifier = {identifier(each.key): each for each in self._running}
        self._network = Network()
        self._selector = selectors.DefaultSelector()
        self._programs: Programs
        self._resequencer: Resequencer
        self._uplinks: Uplinks
        self._looked = 0
        """When at the uplinks last."""
        self._is_watched = watchdog_seconds(os.environ) is not None
        self._answering: StatusSocket
        self._classes: dict[int, tuple[int, int]] = {}
        """HTB class of a path, and the most that it lets through, bits/s, 0 for no bound: as the throttler says."""
        self._begun = 0
        self.refused = 0
        """Messages with a wrong HMAC or an unknown sender."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have device, programs and sockets. Raises KernelError; whatever happens, nothing stays."""
        settings = self._settings
        with ExitStack() as scope:
            scope.callback(self._network.close)
            scope.callback(self._network.remove)
            device, address = self._network.make()
            self._programs = Programs(device, address, {each.tunnel.port for each in self._running})
            scope.callback(self._programs.close)
            self._programs.attach_splitter()
            self._uplinks = Uplinks(settings.uplinks, self._programs, self._selector, self._read)
            scope.callback(self._uplinks.close)
            self._uplinks.follow()
            self._resequencer = Resequencer()
            scope.callback(self._resequencer.close)
            self._answering = StatusSocket(settings.status_socket, self._selector, self._take, self.status)
            scope.callback(self._answering.close)
            for each in self._running:
                if each.tunnel.peer is not None:
                    each.inside = Ends(near_end(each.tunnel.port, each.tunnel.peer.address.version), each.tunnel.peer)
                    self._network.lead([each.tunnel.peer], each.tunnel.port)
            yield

    def run(self, stop: socket.socket) -> None:
        """Probe, and keep the programs told, until something can be read from *stop*."""
        self._selector.register(stop, selectors.EVENT_READ)
        due = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                if key.data is None:
                    return
                key.data()
            if time.monotonic() >= due:
                due = time.monotonic() + TURN_SECONDS
                self._turn(time.monotonic_ns())

    def _turn(self, now: int) -> None:
        if now - self._looked > LOOK_SECONDS * 1e9:
            self._looked = now
            self._look()
            if self._is_watched:
                tell("mptcp-tunnel", WATCHDOG)
        self._answering.answer_the_silent()
        for each in self._running:
            if each.is_relay:
                self._probe(each, now)
            self._follow(each, now)

    def _take(self, request: dict[str, Any]) -> None:
        """Take what the throttler wants: ``{"classes": {ID: [CLASS, RATE]}}``, of all paths that are to have a class.

        Raises ValueError.
        """
        classes = {int(number): (int(each[0]), int(each[1])) for number, each in request.get("classes", {}).items()}
        if any(not 0 < class_id < 1 << 32 or rate < 0 for class_id, rate in classes.values()):
            raise ValueError("a class is a handle of 32 bits, and a rate is not negative")
        if "classes" in request:
            self._classes = classes

    def status(self) -> dict[str, Any]:
        """Return what there is, for people and programs."""
        now = time.monotonic_ns()
        return {"refused": self.refused, "tunnels": [self._shown(each, now) for each in self._running]}

    def _look(self) -> None:
        """Follow the uplinks: which are there, and of a relay's their addresses and gateways."""
        changed = self._uplinks.follow()
        for running in self._running:
            if running.tunnel.peer is not None:
                for index, (_, interface) in enumerate(running.tunnel.paths):
                    self._find(running, index, interface, running.tunnel.peer)
            elif changed:
                for index, state in enumerate(running.states):
                    if state is not None and state.interface not in self._uplinks.indices:
                        self._move(running, index, None)
                        running.session.paths[index].remote = None  # until it is proven anew

    def _find(self, running: _Running, index: int, interface: str, peer: End) -> None:
        """Find out by what a relay's path leaves now."""
        before, name = running.states[index], f"tunnel {running.tunnel.name}: path {self._name(running, index)}"
        try:
            next_hop, source = self._network.next_hop(peer.address, interface)
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
            running.session.paths[index].estimator.restart()
            self._move(running, index, after)

    def _move(self, running: _Running, index: int, state: PathState | None) -> None:
        """A path is as *state* says from now; None: there is none."""
        before = running.states[index]
        if before is not None and (state is None or before.outside != state.outside):
            self._programs.forget_outside([before.outside])
        if state is not None:
            if before is None or before.outside != state.outside:
                self._begun = max(self._begun + 1, time.time_ns())
                running.begun[index] = self._begun, running.session.paths[index].counters
            self._programs.set_outside({state.outside: (running.number, index)})
        running.states[index], running.told = state, 0

    def _probe(self, running: _Running, now: int) -> None:
        for index, message, _ in running.session.due(now):
            state = running.states[index]
            if state is not None:
                interface, payload = running.tunnel.paths[index][1], packed(message, running.key)
                self._uplinks.send(interface, state.outside, payload, self._cap(running, index)[0])

    def _read(self, receiver: Receiver) -> None:
        try:
            received = receiver.read(_BATCH)
        except KernelError as error:
            log.warning("%s", error)
            return
        for each in received:
            sender = sender_of(each.payload)
            running = None if sender is None else self._by_identifier.get(sender)
            message = None if running is None else parsed(each.payload, running.key)
            if running is None or message is None:
                self.refused += 1
                continue
            now = time.monotonic_ns()
            answer, moved = running.session.receive(message, each.ends.remote, now)
            if answer is not None:
                payload = packed(answer, running.key, len(each.payload))
                class_id, _ = self._cap(running, message.path)
                self._uplinks.send(receiver.interface, each.ends, payload, class_id)
            if moved and not running.is_relay:
                self._learn(running, message.path, each.ends, receiver.interface)

    def _learn(self, running: _Running, index: int, ends: Ends, interface: str) -> None:
        """A relay's path has this address from now."""
        log.info("tunnel %s: path %d comes from %s", running.tunnel.name, index, ends.remote)
        version, port = ends.local.address.version, running.tunnel.port
        try:
            if running.inside is None:
                inside = Ends(near_end(port, version), far_end(running.number, port, version))
                self._network.lead([inside.remote], port)
                running.inside = inside
            next_hop, _ = self._network.next_hop(ends.remote.address, interface)
            self._move(running, index, PathState(ends, index_of(interface), next_hop))
        except KernelError as error:
            log.warning("tunnel %s: %s", running.tunnel.name, error)
            running.session.paths[index].remote = None  # the next probe tries again

    def _follow(self, running: _Running, now: int) -> None:
        """Tell the programs what has changed of a tunnel."""
        session, inside = running.session, running.inside
        if inside is None:
            return
        session.count(self._programs.counters(running.number), now)
        alive, delays = session.alive(now), session.delays()
        if not any(alive):
            # Nobody is heard: the other end's daemon may be gone, and the paths as good as ever.
            alive = [True] * len(alive)
        after: list[PathState | None] = [
            None
            if state is None
            else replace(state, alive=lives, rate=path.estimator.rate, delay=delay, queue=max(0, path.estimator.queue))
            for state, lives, delay, path in zip(running.states, alive, delays, session.paths, strict=True)
        ]
        after = [each and self._capped(running, index, each) for index, each in enumerate(after)]
        due = now - running.told > TELL_SECONDS * 1e9
        if due or any(map(_differ, running.states, after)):
            for index, (before, path) in enumerate(zip(running.states, after, strict=True)):
                if before is not None and path is not None and before.alive is not path.alive:
                    word = "lives" if path.alive else "is silent"
                    log.info("tunnel %s: path %s %s", running.tunnel.name, self._name(running, index), word)
            running.states, running.told = after, now
            patience = session.patience()
            if abs(patience - running.patience) > 1_000_000:
                running.patience = patience
                try:
                    self._resequencer.tell(inside.remote, patience)
                except KernelError as error:
                    log.warning("%s; packets pass as they come", error)
            self._programs.set_tunnel(running.number, inside, after, running.tunnel.split)

    def _cap(self, running: _Running, index: int) -> tuple[int, int]:
        """Return class and bound of a path's packets."""
        return self._classes.get(running.begun[index][0], (0, 0))

    def _capped(self, running: _Running, index: int, path: PathState) -> PathState:
        class_id, most = self._cap(running, index)
        return replace(path, class_id=class_id, rate=min(path.rate, most) if most else path.rate)

    def _name(self, running: _Running, index: int) -> str:
        return running.tunnel.paths[index][0] if running.is_relay else str(index)

    def _shown(self, running: _Running, now: int) -> dict[str, Any]:
        paths = []
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
                    "alive": state is not None and state.alive,
                    "silent_s": None if heard is None else round((now - heard) / 1e9, 3),
                    "trouble": running.troubles.get(index, ""),
                    "rate": round(estimator.rate),
                    "delay_ms": round((0 if state is None else state.delay) / 1e6, 1),
                    "queue_ms": round(estimator.queue / 1e6, 1),
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
        or abs(after.delay - before.delay) > 1_000_000
        or abs(after.queue - before.queue) > 5_000_000
    )


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError, and OSError and ValueError for a key that cannot be read."""
    daemon = Daemon(settings)
    woken, wakes = socket.socketpair()
    with woken, wakes, daemon.opened():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: wakes.send(b"."))
        notify(READY)
        daemon.run(woken)
