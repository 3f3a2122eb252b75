# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon of one host: passes the state of each tunnel's paths to the kernel programs, and exchanges messages with
the other ends.

messages ──▶ sessions ──▶ maps of the kernel programs
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
from mptcp_common.service_manager import READY, WATCHDOG, notify, notify_or_warn, watchdog_seconds
from mptcp_common.single_daemon import single_daemon
from mptcp_tunnel.kernel.network import MTU, Network, far_end, index_of, near_end
from mptcp_tunnel.kernel.packets import Receiver
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.kernel.resequencer import Resequencer
from mptcp_tunnel.kernel.routes import Routes
from mptcp_tunnel.message import SIZE, Key, Kind, pack, parse, sender_of
from mptcp_tunnel.model import MAX_PATHS, Address, End, Ends, Mode, PathCounters, PathState
from mptcp_tunnel.session import NO_COUNTERS, Path, Session
from mptcp_tunnel.settings import Settings, Tunnel, read_key
from mptcp_tunnel.status_socket import StatusSocket
from mptcp_tunnel.uplinks import Uplinks

log = logging.getLogger(__name__)

_NEVER: Final = 1 << 63
_TUNNELS_INTERVAL: Final = 25_000_000
"""Nanoseconds between two checks whether a relay's tunnels need a probe or an update."""
_UPDATE_INTERVAL: Final = 2_000_000_000
"""Nanoseconds between two updates of the programs. If they get no update for five seconds, they use every path."""
_UPLINKS_INTERVAL: Final = 1_000_000_000
"""Nanoseconds between two checks of the uplinks, their addresses and gateways."""
_GATEWAY_CHECK_PARTS: Final = 10
"""A proxy checks the gateways of its tunnels in this many parts, one part each second, because a thousand route queries
in a row take too long."""
_REPAIR_INTERVAL: Final = 10_000_000_000
"""Nanoseconds between two checks for objects that other programs may have removed."""
_PAUSE_SECONDS: Final = 0.004
"""A proxy lets messages accumulate for this time, because reading them in batches takes half the processor time. The
kernel's time stamp shows when each message arrived."""
_STALE_AGE: Final = 200_000_000
"""Nanoseconds. The daemon skips a message that waited longer, because it does not show the current state of a path, and
so that the daemon soon reads current messages again."""
_BATCH: Final = 64
_RATE_CHANGE: Final = 0.02
"""Relative change of a rate above which the programs get the new rate at once."""
_DELAY_CHANGE: Final = 1_000_000
"""Change of a delay, nanoseconds, above which the programs get the new delay at once."""
_QUEUE_CHANGE: Final = 5_000_000
"""Change of a queue, nanoseconds, above which the programs get the new queue at once."""


class _RunningTunnel:
    def __init__(self, number: int, tunnel: Tunnel) -> None:
        self.number, self.tunnel, self.key = number, tunnel, Key(read_key(tunnel.key))
        self.is_relay = tunnel.peer is not None
        kind = Kind.PROBE if self.is_relay else Kind.ANSWER
        count = len(tunnel.paths)  # none at a proxy
        self.session = Session(kind, [tunnel.peer] * count, os.urandom(16))
        self.starts: list[tuple[int, PathCounters]] = [(0, NO_COUNTERS)] * count
        """For each path: its ID, which is the time at which it got its current ends (nanoseconds since the epoch,
        unique), and its counters at that time."""
        self.inside: Ends | None = None
        """The ends that the tunnel program uses; None until a proxy's tunnel has its first path."""
        self.states: list[PathState | None] = [None] * count
        """For each path, the state that was last passed to the programs."""
        self.minimum_delays: list[int | None] = [None] * count
        """Minimum delay of each path when its state was last passed to the programs, measured between the clocks of
        both ends, which differ."""
        self.logged_alive = [False] * count
        """For each path, whether the last log line about it reports it as alive. A silent path may still be used."""
        self.updated_at = 0
        """When the programs last got the states of this tunnel; 0 requests an update."""
        self.troubles: dict[int, str] = {}
        self.hold_time = 0
        """How long the resequencer may hold a packet, as last passed to it, nanoseconds."""
        self.mtu: int | None = None
        """Size of the largest packet that all paths carry, as in the last log line about it."""
        self.next_check = self.scheduled_check = _NEVER
        """``next_check``: when to check this tunnel again; ``scheduled_check``: the time of its entry in the heap."""

    def add_paths(self, count: int) -> None:
        """Add paths until there are *count*. A proxy's tunnel has only the paths that its relay has used: most relays
        have two of the possible :data:`MAX_PATHS`."""
        while len(self.states) < count:
            self.session.paths.append(Path())
            self.starts.append((0, NO_COUNTERS))
            self.states.append(None)
            self.minimum_delays.append(None)
            self.logged_alive.append(False)


class Daemon:
    """The daemon of one host."""

    def __init__(self, settings: Settings) -> None:
        """Raises OSError and ValueError if a key cannot be read."""
        self._settings = settings
        self._running = [_RunningTunnel(number, each) for number, each in enumerate(settings.tunnels)]
        self._relays = [each for each in self._running if each.is_relay]
        self._by_identifier = {each.key.identifier: each for each in self._running}
        self._changed_tunnels: dict[_RunningTunnel, None] = {}
        """A proxy's tunnels with changes that must be passed to the programs."""
        self._has_backlog = False
        self._routed_versions = set[int]()
        """IP versions for which the addresses that represent relays are routed to the device."""
        self._schedule: list[tuple[int, int]] = []
        """A heap of times and numbers of a proxy's tunnels: when each of them must be checked if no message comes."""
        self._network = Network()
        self._selector = selectors.DefaultSelector()
        self._programs: Programs
        self._routes: Routes
        self._resequencer: Resequencer
        self._uplinks: Uplinks
        self._status_socket: StatusSocket
        self._is_watched = watchdog_seconds(os.environ) is not None
        self._classes: dict[int, tuple[int, int]] = {}
        """From the throttler, by the path's ID: HTB class and rate cap, bits/s (0 means no cap)."""
        self._device = self._gateway_check_part = 0
        self._latest_id = 0
        self.refused = 0
        """Number of messages with a wrong authentication code or an unknown sender."""

    @contextmanager
    def kernel_objects(self) -> Iterator[None]:
        """Create the device, the programs and the sockets. Remove them when the block ends, also after an error. Raises
        KernelError."""
        settings = self._settings
        with ExitStack() as scope:
            scope.callback(self._network.close)
            scope.callback(self._network.remove)
            self._device, address = self._network.create()
            self._routes = Routes()
            scope.callback(self._routes.close)
            self._programs = Programs(self._device, address, {each.tunnel.port for each in self._running})
            scope.callback(self._programs.close)
            self._programs.attach_splitter()
            self._uplinks = Uplinks(settings.uplinks, self._programs, self._selector, self._read_messages)
            scope.callback(self._uplinks.close)
            self._resequencer = Resequencer()
            scope.callback(self._resequencer.close)
            self._status_socket = StatusSocket(settings.status_socket, self._selector, self._apply, self.status)
            scope.callback(self._status_socket.close)
            for each in self._running:
                if each.tunnel.peer is not None:
                    each.inside = Ends(near_end(each.tunnel.port, each.tunnel.peer.address.version), each.tunnel.peer)
                    self._network.route_to_device(each.tunnel.peer, each.tunnel.port)
            yield

    def run(self, stop: socket.socket) -> None:
        """Probe, and keep the programs up to date, until *stop* can be read. Raises KernelError."""
        self._selector.register(stop, selectors.EVENT_READ)
        next_check = uplinks_checked_at = repaired_at = time.monotonic_ns()
        self._check_uplinks()
        while True:
            wake_up_at = min(
                uplinks_checked_at + _UPLINKS_INTERVAL,
                next_check if self._relays else _NEVER,
                *(each for each, _ in self._schedule[:1]),
            )
            if (deadline := self._status_socket.next_deadline) is not None:
                wake_up_at = min(wake_up_at, deadline)
            for key, _ in self._selector.select(max(0.0, (wake_up_at - time.monotonic_ns()) / 1e9)):
                if key.data is None:
                    return
                key.data()
            now = time.monotonic_ns()
            if now >= uplinks_checked_at + _UPLINKS_INTERVAL:
                uplinks_checked_at = now
                self._check_uplinks()
                self._check_gateways()
                if now >= repaired_at + _REPAIR_INTERVAL:
                    repaired_at = now
                    self._repair()
                if self._is_watched:
                    notify_or_warn("mptcp-tunnel", WATCHDOG)
            self._status_socket.answer_waiting()
            if self._relays and now >= next_check:
                next_check = now + _TUNNELS_INTERVAL
                for each in self._relays:
                    self._read_counters(each, now)
                    self._probe(each, now)
                    self._update_programs(each, now)
            self._update_due_tunnels(now)
            if not self._relays and not self._has_backlog:
                time.sleep(_PAUSE_SECONDS)
            self._has_backlog = False

    def _repair(self) -> None:
        """Restore objects that other programs removed. Raises KernelError if that fails; the daemon then ends, and
        creates all objects again when it is restarted."""
        self._network.repair(self._device)
        self._programs.repair()
        if self._resequencer.repair():
            for running in self._running:
                running.hold_time = running.updated_at = 0
                self._changed_tunnels[running] = None

    def _check_uplinks(self) -> None:
        has_changed = self._uplinks.update()
        addresses = self._routes.addresses() if self._relays else {}
        for running in self._running:
            if running.tunnel.peer is not None:
                for index, (_, interface) in enumerate(running.tunnel.paths):
                    self._find_route(running, index, interface, running.tunnel.peer, addresses)
            elif has_changed:
                for index, state in enumerate(running.states):
                    if state is not None and state.interface not in self._uplinks.indices:
                        self._set_path(running, index, None)
                        running.session.paths[index].remote = None  # until the address is proven again

    def _update_due_tunnels(self, now: int) -> None:
        """Update a proxy's tunnels that messages changed, and those whose scheduled check is due."""
        due_tunnels, self._changed_tunnels = self._changed_tunnels, {}
        while self._schedule and self._schedule[0][0] <= now:
            check_time, number = heappop(self._schedule)
            running = self._running[number]
            if check_time == running.scheduled_check:
                running.scheduled_check = _NEVER
                if running.next_check <= now:
                    self._read_counters(running, now)
                    due_tunnels[running] = None
                else:
                    self._schedule_check(running, running.next_check)
        for each in due_tunnels:
            self._update_programs(each, now)
            if each.inside is not None:
                silence = each.session.next_silence(now)
                self._schedule_check(
                    each, min(_NEVER if silence is None else silence, each.updated_at + _UPDATE_INTERVAL + 1)
                )

    def _check_gateways(self) -> None:
        self._gateway_check_part = (self._gateway_check_part + 1) % _GATEWAY_CHECK_PARTS
        for running in self._running[self._gateway_check_part :: _GATEWAY_CHECK_PARTS]:
            for index, state in enumerate(running.states):
                if running.is_relay or state is None:
                    continue
                (local, remote), interface = state.outside, state.interface
                with suppress(KernelError):  # the route is missing now, but may return
                    next_hop = self._routes.next_hop(remote.address, local.address, interface)
                    if next_hop != state.next_hop:
                        name = f"tunnel {running.tunnel.name}: path {index}"
                        log.info("%s: packets are sent to the next hop %s", name, next_hop)
                        self._set_path(running, index, state._replace(next_hop=next_hop))

    def _schedule_check(self, running: _RunningTunnel, check_time: int) -> None:
        running.next_check = check_time
        if check_time < running.scheduled_check:
            running.scheduled_check = check_time
            heappush(self._schedule, (check_time, running.number))

    def _apply(self, request: dict[str, Any]) -> None:
        """Apply the throttler's request ``{"classes": {ID: [CLASS, RATE]}}``, which lists all paths with a class.
        Raises ValueError."""
        classes = {int(number): (int(each[0]), int(each[1])) for number, each in request.get("classes", {}).items()}
        if any(not 0 < class_id < 1 << 32 or rate < 0 for class_id, rate in classes.values()):
            raise ValueError("a class must be a handle of 32 bits, and a rate must not be negative")
        if "classes" in request and classes != self._classes:
            self._classes = classes
            self._changed_tunnels.update((each, None) for each in self._running if not each.is_relay)

    def status(self) -> dict[str, Any]:
        """Return the status for the status socket."""
        now = time.monotonic_ns()
        for each in self._running:
            if not each.is_relay:
                self._read_counters(each, now)  # for a relay's tunnels, the loop reads the counters often enough
        return {"refused": self.refused, "tunnels": [self._status_of(each, now) for each in self._running]}

    def _find_route(
        self, running: _RunningTunnel, index: int, interface: str, peer: End, addresses: Mapping[int, Sequence[Address]]
    ) -> None:
        """Find the current gateway and source address of a relay's path."""
        before, name = running.states[index], f"tunnel {running.tunnel.name}: path {self._path_name(running, index)}"
        try:
            next_hop, source = self._routes.route(peer.address, interface, addresses)
            after = PathState(Ends(End(source, running.tunnel.port), peer), index_of(interface), next_hop, alive=False)
        except KernelError as error:
            if before is not None or running.troubles.get(index) != str(error):
                running.troubles[index] = str(error)
                log.warning("%s: %s", name, error)
            self._set_path(running, index, None)
            return
        if before is None or _route_of(before) != _route_of(after):
            running.troubles.pop(index, None)
            log.info("%s: packets are sent from %s to the next hop %s", name, source, next_hop)
            running.session.forget_estimates(index)
            self._set_path(running, index, after)

    def _set_path(self, running: _RunningTunnel, index: int, state: PathState | None) -> None:
        """Set a path's state; None means that the path no longer exists."""
        before = running.states[index]
        if before is not None and (state is None or before.outside != state.outside):
            self._programs.remove_outside_ends(before.outside, (running.number, index))
        if state is not None:
            if before is None or before.outside != state.outside:
                self._latest_id = max(self._latest_id + 1, time.time_ns())
                running.starts[index] = self._latest_id, running.session.paths[index].counters
            self._programs.set_outside_ends({state.outside: (running.number, index)})
        running.states[index], running.updated_at = state, 0
        if not running.is_relay:
            self._changed_tunnels[running] = None

    def _read_counters(self, running: _RunningTunnel, now: int) -> None:
        running.session.process_counters(self._programs.counters(running.number), now)

    def _probe(self, running: _RunningTunnel, now: int) -> None:
        session = running.session
        probes = [(index, message, SIZE) for index, message in session.due_probes(now)]
        for index, message, size in (*probes, *session.size_probes(now)):
            state = running.states[index]
            if state is not None:
                interface, payload = running.tunnel.paths[index][1], pack(message, running.key, size)
                self._uplinks.send(interface, state.outside, payload, self._class_and_cap(running, index)[0])
        mtu = min((path.sizes.largest for path in session.paths if path.sizes.largest is not None), default=None)
        if mtu is not None and mtu != running.mtu:
            running.mtu = mtu
            log.log(
                logging.INFO if mtu >= MTU else logging.WARNING,
                "tunnel %s: its narrowest path carries packets of up to %s bytes; larger packets are lost there",
                running.tunnel.name,
                mtu,
            )

    def _read_messages(self, receiver: Receiver) -> None:
        try:
            received = receiver.read(_BATCH)
        except KernelError as error:
            log.warning("%s", error)
            return
        self._has_backlog = self._has_backlog or len(received) == _BATCH
        with_new_counters = set[_RunningTunnel]()
        for each in received:
            now = time.monotonic_ns()
            if now - each.received_at > _STALE_AGE:
                continue
            sender = sender_of(each.payload)
            running = None if sender is None else self._by_identifier.get(sender)
            message = None if running is None else parse(each.payload, running.key)
            if running is None or message is None or message.path >= MAX_PATHS:
                self.refused += 1
                continue
            if not running.is_relay:
                running.add_paths(message.path + 1)
                if running not in with_new_counters:
                    with_new_counters.add(running)
                    self._read_counters(running, now)
            answer, address_changed = running.session.receive(message, each.ends.remote, now, each.received_at)
            if answer is not None:
                payload = pack(answer, running.key, len(each.payload))
                class_id, _ = self._class_and_cap(running, message.path)
                self._uplinks.send(receiver.interface, each.ends, payload, class_id)
            if running.is_relay:
                continue  # the loop updates a relay's tunnels
            if address_changed:
                self._learn_address(running, message.path, each.ends, receiver.interface)
            if self._has_changed(running, message.path, now):
                self._changed_tunnels[running] = None

    def _has_changed(self, running: _RunningTunnel, index: int, now: int) -> bool:
        """Return whether a path's state differs enough from the state in the programs that they need an update."""
        state, estimator = running.states[index], running.session.paths[index].estimator
        if state is None:
            return False
        _, cap = self._class_and_cap(running, index)
        rate = min(estimator.rate, cap) if cap else estimator.rate
        minimum, before = estimator.delays.minimum(now), running.minimum_delays[index]
        return (
            not state.alive
            or not running.logged_alive[index]
            or minimum is None
            or before is None
            or abs(minimum - before) > _DELAY_CHANGE
            or abs(rate - state.rate) > _RATE_CHANGE * state.rate
            or abs(estimator.excess_queue - state.queue) > _QUEUE_CHANGE
        )

    def _learn_address(self, running: _RunningTunnel, index: int, ends: Ends, interface: str) -> None:
        """Process a path's new remote address, from which a relay's message came."""
        name = f"tunnel {running.tunnel.name}: path {index}"
        version = ends.local.address.version
        try:
            if running.inside is None or running.inside.local.address.version != version:
                self._set_inside_ends(running, version)
            uplink = index_of(interface)
            next_hop = self._routes.next_hop(ends.remote.address, ends.local.address, uplink)
            self._set_path(running, index, PathState(ends, uplink, next_hop))
            running.troubles.pop(index, None)
            log.info("%s: the relay's address is %s", name, ends.remote)
        except KernelError as error:
            if running.troubles.get(index) != str(error):  # log an error once, even if it occurs at each retry
                running.troubles[index] = str(error)
                log.warning("%s: %s", name, error)
            running.session.paths[index].remote = None  # the next probe tries again

    def _set_inside_ends(self, running: _RunningTunnel, version: int) -> None:
        """Set the inside ends of a proxy's tunnel, and route the tunnel program's packets to the device. All paths of a
        tunnel have the IP version of the newest path."""
        port = running.tunnel.port
        inside = Ends(near_end(port, version), far_end(running.number, port, version))
        if version not in self._routed_versions:
            self._network.route_far_ends(version)
            self._routed_versions.add(version)
        if running.inside is not None:
            log.warning("tunnel %s: its relay now uses IPv%d", running.tunnel.name, version)
            self._programs.remove_inside_ends(running.inside)
            for index, path in enumerate(running.session.paths):
                if path.remote is not None and path.remote.address.version != version:
                    self._set_path(running, index, None)
                    path.remote = None
        running.inside = inside
        running.hold_time = 0  # the resequencer does not know these ends yet

    def _update_programs(self, running: _RunningTunnel, now: int) -> None:
        """Pass the changes of a tunnel to the programs."""
        session, inside = running.session, running.inside
        if inside is None:
            return
        alive, costs = session.alive(now), session.costs(now)
        if alive != running.logged_alive:
            for index, (before, is_alive) in enumerate(zip(running.logged_alive, alive, strict=True)):
                if before is not is_alive and running.states[index] is not None:
                    word = "is alive" if is_alive else "is silent"
                    log.info("tunnel %s: path %s %s", running.tunnel.name, self._path_name(running, index), word)
            running.logged_alive = alive
        usable = session.usable(now, [each is not None for each in running.states])
        after: list[PathState | None] = [
            None if state is None else self._with_estimates(running, index, state, usable[index], costs[index])
            for index, state in enumerate(running.states)
        ]
        is_due = now - running.updated_at > _UPDATE_INTERVAL
        if is_due or any(map(_differ, running.states, after)):
            running.states, running.updated_at = after, now
            running.minimum_delays = [path.estimator.delays.minimum(now) for path in session.paths]
            hold_time = session.hold_time(now)
            if abs(hold_time - running.hold_time) > 1_000_000:
                running.hold_time = hold_time
                try:
                    self._resequencer.set_hold_time(inside.remote, hold_time)
                except KernelError as error:
                    log.warning("%s; packets pass in the order of arrival", error)
            split = running.tunnel.split
            # Before a path's rate is known, its queue may be shorter than estimated.
            rates_are_known = all(
                path.estimator.full_rate for path, is_usable in zip(session.paths, usable, strict=True) if is_usable
            )
            has_limit = rates_are_known and split.queue and split.mode is not Mode.WEIGHTS
            delay = max(session.delays(now))
            max_queue = split.queue + delay if has_limit else 0
            split = replace(split, spill=split.spill_limit(delay))
            self._programs.set_tunnel(running.number, inside, after, split, max_queue)

    def _class_and_cap(self, running: _RunningTunnel, index: int) -> tuple[int, int]:
        """Return the HTB class and the rate cap of a path's packets; 0 for each means none."""
        return self._classes.get(running.starts[index][0], (0, 0))

    def _with_estimates(
        self, running: _RunningTunnel, index: int, path: PathState, alive: bool, cost: int
    ) -> PathState:
        """Return *path* with its current estimates and cap."""
        class_id, cap = self._class_and_cap(running, index)
        estimator = running.session.paths[index].estimator
        rate = min(estimator.rate, cap) if cap else estimator.rate
        return path._replace(alive=alive, rate=rate, delay=cost, queue=estimator.excess_queue, class_id=class_id)

    def _path_name(self, running: _RunningTunnel, index: int) -> str:
        return running.tunnel.paths[index][0] if running.is_relay else str(index)

    def _status_of(self, running: _RunningTunnel, now: int) -> dict[str, Any]:
        paths, alive = [], running.session.alive(now)
        for index, (path, state) in enumerate(zip(running.session.paths, running.states, strict=True)):
            if state is None and not running.is_relay:
                continue
            estimator, (path_id, counters_at_start) = path.estimator, running.starts[index]
            counters = PathCounters(*(map(int.__sub__, path.counters, counters_at_start)))
            ends = None if state is None else state.outside
            last_message_at = estimator.last_message_at
            paths.append(
                {
                    "path": self._path_name(running, index),
                    "number": index,
                    "id": path_id,
                    "local": None if ends is None else str(ends.local.address),
                    "local_port": None if ends is None else ends.local.port,
                    "remote": None if ends is None else str(ends.remote.address),
                    "remote_port": None if ends is None else ends.remote.port,
                    "interface": None if state is None else _interface_name(state.interface),
                    "class": 0 if state is None else state.class_id,
                    "alive": state is not None and alive[index],
                    "silent_s": None if last_message_at is None else round((now - last_message_at) / 1e9, 3),
                    "trouble": running.troubles.get(index, ""),
                    "rate": round(estimator.rate),
                    "delay_ms": round((0 if state is None else state.delay) / 1e6, 1),
                    "queue_ms": round(estimator.queue / 1e6, 1),
                    "loss": None if estimator.loss is None else round(estimator.loss, 4),
                    "mtu": path.sizes.largest,
                    "packets_sent": counters.sent_packets,
                    "bytes_sent": counters.sent_bytes,
                    "packets_received": counters.received_packets,
                    "bytes_received": counters.received_bytes,
                }
            )
        return {"name": running.tunnel.name, "role": "relay" if running.is_relay else "proxy", "paths": paths}


def _route_of(state: PathState) -> tuple[object, ...]:
    return state.outside, state.interface, state.next_hop


def _interface_name(interface: int) -> str | None:
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
        or abs(after.rate - before.rate) > _RATE_CHANGE * before.rate
        or abs(after.delay - before.delay) > _DELAY_CHANGE
        or abs(after.queue - before.queue) > _QUEUE_CHANGE
    )


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError, and OSError and ValueError if a key cannot be read."""
    daemon = Daemon(settings)
    stop, stop_writer = socket.socketpair()
    with stop, stop_writer, single_daemon("mptcp-tunnel"), daemon.kernel_objects():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop_writer.send(b"."))
        gc.collect()
        gc.freeze()  # so that the garbage collector does not scan a thousand tunnels again
        notify(READY)
        daemon.run(stop)
