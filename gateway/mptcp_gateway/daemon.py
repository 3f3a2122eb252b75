# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon of one host: watches and tests the uplinks, and configures the kernel according to the plan.

kernel notifications ──▶ kernel state ──▶ health ──▶ plan ──▶ routes, rules, endpoints
                                           ▲ │
                                 outcomes ─┘ └─▶ trials, each in a thread, to the addresses from the resolver
"""

from __future__ import annotations

import json
import logging
import queue
import selectors
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify_or_warn, status
from mptcp_common.state_file import write_state
from mptcp_gateway.firewall import ruleset
from mptcp_gateway.health import Health, HealthWatch
from mptcp_gateway.kernel import firewall
from mptcp_gateway.kernel.network import Network, retransmitting_addresses
from mptcp_gateway.kernel.resolver import Resolver
from mptcp_gateway.kernel.saved_state import SavedState
from mptcp_gateway.kernel.trial import run_trial
from mptcp_gateway.model import Access, Lan, Outcome, ParentAddress, Verdict, Way
from mptcp_gateway.plan import TUNNEL_TABLE, Objects, abandoned_marks, best_way, make_plan, with_distinct_addresses
from mptcp_gateway.settings import Settings

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 0.25
"""Interval of the checks for retransmissions and for outcomes of trials."""
READ_SECONDS: Final = 10.0
"""Maximum interval of full reads of the kernel's state. A notification of the kernel also causes a read."""
STATUS_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 0.05
"""Delay after a notification, because a change of addresses and routes causes several notifications."""
_GROUPS: Final = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400
"""Links, addresses and routes of both versions, rules of IPv4 (linux/rtnetlink.h)."""
_RULES_OF_IPV6: Final = 19
"""RTNLGRP_IPV6_RULE, which has no bit in the mask of groups."""
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr (netlink(7)): length, type, flags, sequence number, port id of the requester."""


@dataclass(frozen=True, slots=True)
class _FinishedTrial:
    way: Way
    generation: int
    outcome: Outcome


class Daemon:
    """The daemon of one host."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """*directory*: the directory of the status file and the saved kernel state. Raises KernelError and OSError."""
        self._settings = settings
        self._order = tuple(settings.uplinks)
        self._directory = directory
        self._lan = settings.lan
        self._network = Network()
        self._saved = SavedState(directory / "before.json")
        self._health = HealthWatch()
        self._duplicates: dict[Way, str] = {}
        """Unused ways, each with the name of the earlier uplink that has the same address."""
        self._outcomes: queue.SimpleQueue[_FinishedTrial] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._notifications = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._notifications.bind((0, _GROUPS))
        with suppress(OSError):  # the kernel has no IPv6
            self._notifications.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _RULES_OF_IPV6)
        self._notifications.setblocking(False)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._resolver = Resolver(settings.parents, self.wake)
        self._targets: tuple[ParentAddress, ...] = ()
        self._answering_parents: dict[int, ParentAddress] = {}
        """For each IP version, the parent's address that answered last."""
        self._trial_ports: set[int] = set()
        """Local ports of the running trials."""
        self._last_errors: dict[str, set[str]] = {}
        """Errors of the last attempt, by operation. They are not logged again if they recur."""
        self._best_ways: dict[int, Way | None] = {}
        self._planned = Objects()
        self._status_time = 0.0
        self._tunnel: tuple[int, frozenset[int]] | None = None
        """The tunnel device's index, and the IP versions of its addresses; None if it is not up."""
        self._has_firewall = False
        """Whether this daemon has set up the firewall."""
        self.ending = False

    @contextmanager
    def kernel_setup(self) -> Iterator[None]:
        """Set sysctls and limits; restore everything at the end."""
        with ExitStack() as scope:
            for each in (self._network, self._notifications, self._wake_reader, self._wake_writer, self._selector):
                scope.callback(each.close)
            for each in (self._notifications, self._wake_reader):
                self._selector.register(each, selectors.EVENT_READ)
            # At the end, the firewall is removed only after forwarding has stopped. Without a home network, a table
            # from an earlier start with other settings is removed immediately.
            if self._lan is not None:
                scope.callback(lambda: self._attempt("firewall", firewall.remove))
            else:
                with suppress(KernelError):  # nft is not installed, so no table exists
                    firewall.remove()
            scope.callback(self._restore_kernel)
            self._attempt("prepare", self._saved.prepare)
            self._resolver.start()
            yield

    def wake(self, *, ending: bool = False) -> None:
        """Wake the loop immediately. Signal handlers and threads may call this."""
        self.ending = self.ending or ending
        with suppress(OSError):  # the loop is already awake, or has stopped
            self._wake_writer.send(b".")

    def run(self) -> None:
        """Watch the uplinks until :meth:`wake` is called with *ending*."""
        last_read = -READ_SECONDS
        while not self.ending:
            self._selector.select(CHECK_SECONDS)
            has_notifications = _read_notifications(self._notifications, self._network.port_id)
            if has_notifications:
                time.sleep(_SETTLE_SECONDS)
                _read_notifications(self._notifications, self._network.port_id)
            _drain(self._wake_reader)
            now = time.monotonic()
            if has_notifications or now - last_read >= READ_SECONDS:
                # After a failure, try again soon.
                last_read = (
                    now
                    if self._attempt("read", partial(self._read_state, now))
                    else now - READ_SECONDS + STATUS_SECONDS
                )
            self._attempt("trials", partial(self._process_trials, now))
            notify_or_warn("mptcp-gateway", WATCHDOG)

    def _attempt(self, name: str, action: Callable[[], Iterable[str] | None]) -> bool:
        """Call *action*, log the errors that its previous call did not have, and return whether it succeeded."""
        try:
            errors = set(action() or ())
        except (KernelError, OSError) as error:
            errors = {reason(error)}
        for text in errors - self._last_errors.get(name, set()):
            log.error("%s", text)
        self._last_errors[name] = errors
        return not errors

    def _read_state(self, now: float) -> None:
        """Read the current ways from the kernel. Raises KernelError."""
        before = self._health.access_by_way
        found, self._duplicates = with_distinct_addresses(
            self._order, self._network.read_access(self._settings.uplinks, before)
        )
        self._health.update_ways(found, now)
        after = self._health.access_by_way
        for way in before.keys() - after.keys():
            log.warning("uplink %s no longer has IPv%d", *way)
        for way in after.keys() - before.keys():
            log.info(
                "uplink %s has IPv%d: %s via %s", *way, after[way].address, after[way].gateway or after[way].device
            )
        if self._lan is not None:
            self._attempt("home", partial(self._set_up_gateway, self._lan))
        self._attempt(
            "rp_filter", lambda: self._saved.loosen_rp_filters((each.device, each.index) for each in after.values())
        )
        self._apply()

    def _set_up_gateway(self, lan: Lan) -> list[str]:
        """Set up sysctls and the firewall of a gateway. Raises KernelError."""
        self._tunnel = self._network.device(lan.tunnel) if lan.tunnel else None
        # Set the firewall up first: without it, no packet may be forwarded.
        if not self._has_firewall or not firewall.exists():
            firewall.apply(ruleset(lan, self._settings.uplinks))
            self._has_firewall = True
        return self._saved.enable_forwarding(lan.devices, self._settings.uplinks.values())

    def _process_trials(self, now: float) -> None:
        """Process the outcomes of trials, and start the trials that are due."""
        health = self._health
        addresses = [
            each.address for way, each in health.access_by_way.items() if health.verdicts[way] is not Verdict.DEAD
        ]
        if addresses:
            health.mark_suspects(
                retransmitting_addresses(addresses, (each.address for each in self._targets), self._trial_ports), now
            )
        has_changed = False
        while not self._outcomes.empty():
            each = self._outcomes.get()
            if each.outcome.target is not None:
                self._answering_parents[each.way.version] = each.outcome.target
            if health.record(each.way, each.generation, each.outcome, now):
                has_changed = True
                self._log_health(each.way, health.ways[each.way])
        for way in health.find_dead(now):
            has_changed = True
            self._log_health(way, health.ways[way])
        if self._targets != self._resolver.targets:
            self._targets, has_changed = self._resolver.targets, True
        if has_changed:
            self._apply()
        for way in health.begin_due_trials(now, {each.address.version for each in self._targets}):
            self._start_trial(way, health.ways[way])
        if has_changed or now - self._status_time >= STATUS_SECONDS:
            self._status_time = now
            self._attempt("status", lambda: self._write_status(now))

    @staticmethod
    def _log_health(way: Way, health: Health) -> None:
        level = logging.INFO if health.verdict is Verdict.GOOD else logging.WARNING
        log.log(
            level, "uplink %s, IPv%d: %s%s", *way, health.verdict.value, f": {health.reason}" if health.reason else ""
        )

    def _apply(self) -> None:
        """Change the kernel's state to the planned one; skip objects that it refuses."""
        verdicts, access_by_way = self._health.verdicts, self._health.access_by_way
        before, parents = self._planned, (each.address for each in self._targets)
        plan = self._planned = make_plan(self._order, access_by_way, verdicts, parents, self._lan, self._tunnel)
        addresses = {each.address for each in access_by_way.values()}
        self._attempt("routes", lambda: self._network.apply(plan))
        for mark in abandoned_marks(before, plan):
            self._attempt(f"forget {mark}", partial(firewall.forget_connections, mark))
        self._attempt("endpoints", lambda: self._saved.ensure_endpoints(plan.endpoints, addresses))
        best_ways = {version: best_way(self._order, verdicts, version) for version in (4, 6)}
        for version, chosen in best_ways.items():
            if chosen != self._best_ways.get(version):
                log.info("IPv%d: connections begin on %s", version, "no uplink" if chosen is None else chosen.uplink)
        self._best_ways = best_ways
        self._health.best_ways = {each for each in best_ways.values() if each is not None}

    def _start_trial(self, way: Way, health: Health) -> None:
        last_parent = self._answering_parents.get(way.version)
        targets = sorted(self._targets, key=lambda each: each != last_parent)
        generation, access, timeout = health.generation, health.access, health.timeout
        thorough = self._health.is_thorough(way, time.monotonic())

        def trial() -> None:
            self._outcomes.put(_FinishedTrial(way, generation, self._outcome(access, targets, timeout, thorough)))
            self.wake()

        try:
            # A daemon thread does not delay the exit.
            threading.Thread(target=trial, name="trial", daemon=True).start()
        except RuntimeError as error:  # no further thread can be started
            self._outcomes.put(_FinishedTrial(way, generation, Outcome(Verdict.DEAD, reason=reason(error))))

    def _outcome(self, access: Access, targets: Iterable[ParentAddress], timeout: float, thorough: bool) -> Outcome:
        try:
            return run_trial(access, targets, timeout, self._trial_ports, thorough=thorough)
        except Exception as error:  # on any error, the way is tried again
            return Outcome(Verdict.DEAD, reason=reason(error))

    def _restore_kernel(self) -> None:
        # Remove the endpoints first, so that the kernel can inform the other end while packets still have a route.
        self._attempt("restore", self._saved.restore)
        self._attempt("leave", lambda: self._network.apply(Objects()))
        self._attempt("status", lambda: write_state(self._directory / "status.json", None))

    def _write_status(self, now: float) -> None:
        """Write the status file. Raises KernelError."""
        endpoints = {each.address for each in self._planned.endpoints}
        versions = {each.address.version for each in self._targets}
        ways = []
        for uplink, device in self._settings.uplinks.items():
            for version in (4, 6):
                health = self._health.ways.get(Way(uplink, version))
                if health is not None:
                    no_parent = "" if version in versions else f"no parent has a known IPv{version} address"
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
                            "reason": health.reason or health.remark or no_parent,
                            "begins_here": self._best_ways.get(version) == Way(uplink, version),
                            "endpoint": health.access.address in endpoints,
                        }
                    )
        duplicates = [
            {"uplink": way.uplink, "version": way.version, "as": earlier} for way, earlier in self._duplicates.items()
        ]
        found: dict[str, Any] = {
            "uplinks": list(self._order),
            "ways": ways,
            "same_address": duplicates,
            "home": self._home_status(),
        }
        write_state(self._directory / "status.json", json.dumps(found, indent=1) + "\n", 0o644)

    def _home_status(self) -> dict[str, Any] | None:
        if self._lan is None:
            return None
        tunnel_is_used = any(each.table == TUNNEL_TABLE for each in self._planned.routes)
        return {
            "devices": list(self._lan.devices),
            "tunnel": self._lan.tunnel or None,
            "tunnel_is_used": tunnel_is_used,
            "fail": "open" if self._lan.fail_open else "closed",
        }


def _read_notifications(notifications: socket.socket, own_port_id: int) -> bool:
    """Read the pending notifications; return whether another program caused one of them. *own_port_id* is the netlink
    port id of this program."""
    has_notifications = False
    while True:
        try:
            data = notifications.recv(65536)
        except BlockingIOError:
            return has_notifications
        except OSError:  # ENOBUFS: some notifications were lost
            return True
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, *_, port_id = _HEADER.unpack_from(data, offset)
            has_notifications = has_notifications or port_id != own_port_id
            offset += max(_HEADER.size, length + 3 & ~3)


def _drain(source: socket.socket) -> None:
    with suppress(BlockingIOError):
        while source.recv(65536):
            pass


def serve(settings: Settings, directory: Path) -> None:
    """Run until SIGTERM or SIGINT. Raises KernelError and OSError."""
    daemon = Daemon(settings, directory)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.wake(ending=True))
    with daemon.kernel_setup():
        notify_or_warn("mptcp-gateway", READY, status(f"{len(settings.uplinks)} uplinks"))
        daemon.run()
