"""The daemon of one host: it keeps the programs told of each tunnel's paths, and talks to the other ends.

messages ──▶ sessions ──▶ maps of the programs
   ▲            │
   └── probes ◀─┘
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import notify
from mptcp_tunnel.kernel.network import MTU, Network, far_end, index_of, near_end
from mptcp_tunnel.kernel.packets import Receiver, Sender
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.kernel.resequencer import Resequencer
from mptcp_tunnel.kernel.routes import Routes
from mptcp_tunnel.message import SIZE, Key, Kind, packed, parsed, sender_of
from mptcp_tunnel.model import MOST_PATHS, End, Ends, PathState
from mptcp_tunnel.session import Session
from mptcp_tunnel.settings import Settings, Tunnel, read_key

log = logging.getLogger(__name__)

_NEVER: Final = 1 << 63
_TURN: Final = 25_000_000
"""Nanoseconds between two looks at what is due of a relay."""
_TELL: Final = 2_000_000_000
"""The programs are told so often, changed or not: they fall back to every path after five of silence."""
_PAUSE: Final = 0.004
"""Seconds that a proxy's host lets messages come before it looks at them: many at once take half the time of each by
itself. When each came, the kernel tells."""
_STALE: Final = 200_000_000
"""A message that waited so long, nanoseconds, tells nothing of now: without work for those, a backlog is soon over."""
_BATCH: Final = 64
"""Messages that are read of an interface before anything else is done."""
_LEAST_CHANGE: Final = 0.02
"""Of a rate that the programs are told of at once."""
_DELAY: Final = 1_000_000
"""The same of a delay, nanoseconds."""
_QUEUE: Final = 5_000_000


class _Running:
    """One tunnel that runs here."""

    def __init__(self, number: int, tunnel: Tunnel) -> None:
        self.number, self.tunnel, self.key = number, tunnel, Key(read_key(tunnel.key))
        self.is_relay = tunnel.peer is not None
        kind = Kind.PROBE if self.is_relay else Kind.ANSWER
        count = len(tunnel.paths) if self.is_relay else MOST_PATHS
        self.session = Session(kind, [tunnel.peer] * count, os.urandom(16))
        self.outside: list[Ends | None] = [None] * count
        self.inside: Ends | None = None
        self.states: list[PathState | None] = [None] * count
        """What the programs were told last."""
        self.leasts: list[int | None] = [None] * count
        """Each path's least delay then, by clocks that differ."""
        self.told = 0
        self.patience = 0
        """What the resequencer was told last, nanoseconds."""
        self.mtu: int | None = None
        """What the narrowest path takes, as was said last."""
        self.due = self.queued = _NEVER
        """When to look at it again, and when that is among what is to be looked at."""


class Daemon:
    """One host's."""

    def __init__(self, settings: Settings) -> None:
        """Raises OSError and ValueError for a key that cannot be read."""
        self._settings = settings
        self._running = [_Running(number, each) for number, each in enumerate(settings.tunnels)]
        self._relays = [each for each in self._running if each.is_relay]
        self._by_identifier = {each.key.identifier: each for each in self._running}
        self._changed: dict[_Running, None] = {}
        """A proxy's, of which something came that the programs are to be told of."""
        self._more = False
        """More waits than was read."""
        self._led = set[int]()
        """IP versions by which relays came."""
        self._looks: list[tuple[int, int]] = []
        """A heap of when to look at which tunnel of a proxy, though nothing comes."""
        self._network = Network()
        self._senders: dict[str, Sender] = {}
        self._selector = selectors.DefaultSelector()
        self._programs: Programs
        self._routes: Routes
        self._resequencer: Resequencer
        self.refused = 0
        """Messages with a wrong code or an unknown sender."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have device, programs and sockets. Raises KernelError; whatever happens, nothing stays."""
        settings = self._settings
        with ExitStack() as scope:
            scope.callback(self._network.close)
            scope.callback(self._network.remove)
            device, address = self._network.make()
            self._routes = Routes()
            scope.callback(self._routes.close)
            self._programs = Programs(device, address, {each.tunnel.port for each in self._running})
            scope.callback(self._programs.close)
            self._programs.attach([index_of(each) for each in settings.uplinks])
            for interface in settings.uplinks:
                self._senders[interface] = sender = Sender(interface)
                scope.callback(sender.close)
                receiver = Receiver(interface)
                scope.callback(receiver.close)
                self._selector.register(receiver, selectors.EVENT_READ, partial(self._read, receiver))
            self._resequencer = Resequencer()
            scope.callback(self._resequencer.close)
            answering = scope.enter_context(_listening(settings.status_socket))
            self._selector.register(answering, selectors.EVENT_READ, partial(self._answer, answering))
            for each in self._running:
                if each.tunnel.peer is not None:
                    self._begin_relay(each, each.tunnel.peer)
            yield

    def run(self, stop: socket.socket) -> None:
        """Probe, and keep the programs told, until something can be read from *stop*."""
        self._selector.register(stop, selectors.EVENT_READ)
        turn = time.monotonic_ns()
        while True:
            due = min(turn if self._relays else _NEVER, self._looks[0][0] if self._looks else _NEVER)
            wait = None if due == _NEVER else max(0.0, (due - time.monotonic_ns()) / 1e9)
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    return
                key.data()
            now = time.monotonic_ns()
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

    def _look(self, now: int) -> None:
        """Follow a proxy's tunnels of which something came that changes them, or of which it is time."""
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
            silence = each.session.next_silence(now)
            if silence is None or each.inside is None:
                each.due = _NEVER  # the programs go on with what they know
            else:
                self._look_again(each, min(silence, each.told + _TELL + 1))

    def _look_again(self, running: _Running, at: int) -> None:
        running.due = at
        if at < running.queued:
            running.queued = at
            heappush(self._looks, (at, running.number))

    def _answer(self, listening: socket.socket) -> None:
        with suppress(OSError), listening.accept()[0] as client:
            client.settimeout(0.5)
            client.sendall(json.dumps(self.status()).encode() + b"\n")

    def status(self) -> dict[str, Any]:
        """Return what there is, for people and programs."""
        now = time.monotonic_ns()
        return {"refused": self.refused, "tunnels": [self._shown(each, now) for each in self._running]}

    def _begin_relay(self, running: _Running, peer: End) -> None:
        tunnel = running.tunnel
        running.inside = Ends(near_end(tunnel.port, peer.address.version), peer)
        self._network.lead([peer], tunnel.port)
        for index, (_, interface) in enumerate(tunnel.paths):
            try:
                self._find(running, index, interface, peer)
            except KernelError as error:
                log.warning("tunnel %s: %s", tunnel.name, error)

    def _find(self, running: _Running, index: int, interface: str, peer: End) -> None:
        """Find out by what a path leaves. Raises KernelError."""
        next_hop, source = self._network.next_hop(peer.address, interface)
        ends = Ends(End(source, running.tunnel.port), peer)
        self._move(running, index, ends)
        running.states[index] = PathState(ends, index_of(interface), next_hop, alive=False)

    def _move(self, running: _Running, index: int, ends: Ends) -> None:
        before, running.outside[index] = running.outside[index], ends
        if before is not None and before != ends:
            self._programs.forget_outside([before])
        self._programs.set_outside({ends: (running.number, index)})

    def _count(self, running: _Running, now: int) -> None:
        running.session.count(self._programs.counters(running.number), now)

    def _probe(self, running: _Running, now: int) -> None:
        session = running.session
        probes = [(index, message, SIZE) for index, message, _ in session.due(now)]
        for index, message, size in (*probes, *session.larger(now)):
            ends = running.outside[index]
            if ends is not None:
                payload = packed(message, running.key, size)
                self._senders[running.tunnel.paths[index][1]].send(ends, payload)
        mtu = min((path.sizes.largest for path in session.paths if path.sizes.largest is not None), default=None)
        if mtu != running.mtu:
            running.mtu = mtu
            log.log(
                logging.INFO if mtu is None or mtu >= MTU else logging.WARNING,
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
                self._senders[receiver.interface].send(each.ends, payload)
            if running.is_relay:
                continue  # it is followed each turn
            if moved:
                self._learn(running, message.path, each.ends, receiver.interface)
            if _has_changed(running, message.path, now):
                self._changed[running] = None

    def _learn(self, running: _Running, index: int, ends: Ends, interface: str) -> None:
        """A relay's path has this address from now."""
        log.info("tunnel %s: path %d comes from %s", running.tunnel.name, index, ends.remote)
        version = ends.local.address.version
        try:
            if running.inside is None or running.inside.local.address.version != version:
                self._begin_proxy(running, version)
            number = index_of(interface)
            next_hop = self._routes.next_hop(ends.remote.address, ends.local.address, number)
            self._move(running, index, ends)
        except KernelError as error:
            log.warning("tunnel %s: %s", running.tunnel.name, error)
            running.session.paths[index].remote = None  # the next probe tries again
            return
        running.states[index] = PathState(ends, number, next_hop)
        running.told = 0

    def _begin_proxy(self, running: _Running, version: int) -> None:
        """Have the tunnel program's packets led here; the paths of a tunnel have one IP version, that of the newest."""
        port = running.tunnel.port
        inside = Ends(near_end(port, version), far_end(running.number, port, version))
        if version not in self._led:
            self._network.lead_far_ends(version)
            self._led.add(version)
        if running.inside is not None:
            log.warning("tunnel %s: its relay comes by IPv%d now", running.tunnel.name, version)
            self._programs.forget_inside(running.inside)
            for index, path in enumerate(running.session.paths):
                ends = running.outside[index]
                if ends is not None and path.remote is not None and path.remote.address.version != version:
                    self._programs.forget_outside([ends])
                    running.outside[index] = running.states[index] = path.remote = None
        running.inside = inside

    def _follow(self, running: _Running, now: int) -> None:
        """Tell the programs what has changed of a tunnel."""
        session, inside = running.session, running.inside
        if inside is None:
            return
        alive, delays = session.alive(now), session.delays(now)
        if not any(alive):
            # Nobody is heard: the other end's daemon may be gone, and the paths as good as ever.
            alive = [True] * len(alive)
        after: list[PathState | None] = [
            None
            if state is None
            else replace(state, alive=lives, rate=path.estimator.rate, delay=delay, queue=max(0, path.estimator.queue))
            for state, lives, delay, path in zip(running.states, alive, delays, session.paths, strict=True)
        ]
        due = now - running.told > _TELL
        if due or any(map(_differ, running.states, after)):
            for index, (before, path) in enumerate(zip(running.states, after, strict=True)):
                if before is not None and path is not None and before.alive is not path.alive:
                    word = "lives" if path.alive else "is silent"
                    log.info("tunnel %s: path %s %s", running.tunnel.name, self._name(running, index), word)
            running.states, running.told = after, now
            running.leasts = [path.estimator.delays.least(now) for path in session.paths]
            patience = session.patience(now)
            if abs(patience - running.patience) > 1_000_000:
                running.patience = patience
                try:
                    self._resequencer.tell(inside.remote, patience)
                except KernelError as error:
                    log.warning("%s; packets pass as they come", error)
            self._programs.set_tunnel(running.number, inside, after, running.tunnel.spill)

    def _name(self, running: _Running, index: int) -> str:
        return running.tunnel.paths[index][0] if running.is_relay else str(index)

    def _shown(self, running: _Running, now: int) -> dict[str, Any]:
        paths = []
        for index, (path, state) in enumerate(zip(running.session.paths, running.states, strict=True)):
            if state is None:
                continue
            counted, estimator = path.counters, path.estimator
            paths.append(
                {
                    "path": self._name(running, index),
                    "remote": str(state.outside.remote.address),
                    "alive": state.alive,
                    "rate": round(estimator.rate),
                    "delay_ms": round(state.delay / 1e6, 1),
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


def _has_changed(running: _Running, index: int, now: int) -> bool:
    """Tell whether the path of a message that just came is another than the programs were told."""
    state, estimator = running.states[index], running.session.paths[index].estimator
    if state is None:
        return False
    least, before = estimator.delays.least(now), running.leasts[index]
    return (
        running.due == _NEVER  # nothing lived until now
        or not state.alive
        or least is None
        or before is None
        or abs(least - before) > _DELAY
        or abs(estimator.rate - state.rate) > _LEAST_CHANGE * state.rate
        or abs(max(0, estimator.queue) - state.queue) > _QUEUE
    )


def _differ(before: PathState | None, after: PathState | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (
        before.alive is not after.alive
        or abs(after.rate - before.rate) > _LEAST_CHANGE * before.rate
        or abs(after.delay - before.delay) > _DELAY
        or abs(after.queue - before.queue) > _QUEUE
    )


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen at *path*, for root alone; its directory is made if need be. Raises KernelError."""
    made = not path.parent.exists()
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            path.unlink(missing_ok=True)
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(8)
        except OSError as error:
            raise KernelError(f"listen at {path}: {error.strerror}") from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)
            if made:
                with suppress(OSError):
                    path.parent.rmdir()


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError, and OSError and ValueError for a key that cannot be read."""
    daemon = Daemon(settings)
    woken, wakes = socket.socketpair()
    with woken, wakes, daemon.opened():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: wakes.send(b"."))
        gc.collect()
        gc.freeze()  # what a thousand tunnels are need not be looked through again
        notify("READY=1")
        daemon.run(woken)
