"""Counts what the subflows of rules with a budget carry, and gives their verdicts the cap of the step reached.

Payload is counted, as TCP acknowledged and received it: from the sockets that are there, once a second, and from those
that closed in between (``kernel.socket_meter``), each byte once, whatever happens to this daemon (``ledger``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path

from .kernel.ports import KernelError
from .kernel.socket_meter import ClosedSocket, SocketMeter, open_socket_meter
from .ledger import BOOT_ID, Account, Counters, Ledger, LedgerError
from .mptcp.model import FourTuple, KernelSubflow
from .policy.budget import period, step_of
from .policy.model import Direction, Policy, Rule, ScopeKey, Share, Verdict
from .policy.units import approximate_size

log = logging.getLogger(__name__)

COUNT_SECONDS = 1.0
KEPT_SECONDS = 400 * 86_400
"""How long what was used is kept: longer than a year of months."""
FORGET_SECONDS = 120.0
"""How long the four-tuple of a subflow that is gone is remembered, for the counters of its socket."""
KEEP_COUNTERS_SECONDS = 600.0
"""Longer: a socket that reports its end later counts for nothing, and so never twice."""


_Step = tuple[int, int | None]
"""Begin of the period, and the volume of the step reached."""


@dataclass(slots=True)
class _Metered:
    """A subflow whose bytes count."""

    rule: Rule
    token: int
    seen: float
    """When a verdict or a dump last named it, monotonic."""


class Budgets:
    """One daemon's budgets. *changed* hears whose verdicts are to be made anew."""

    def __init__(
        self,
        path: Path,
        listen_ports: Iterable[int],
        subflows: Callable[[], Iterable[KernelSubflow]],
        changed: Callable[[Iterable[int]], None],
    ) -> None:
        self._path = path
        self._ports = tuple(listen_ports)
        self._subflows = subflows
        self._changed = changed
        self._policy: Policy | None = None
        self._ledger: Ledger | None = None
        self._meter: SocketMeter | None = None
        self._boot = ""
        self._used: dict[Account, int] = {}
        self._counters: dict[int, Counters] = {}
        """Of each socket, what the totals know of it."""
        self._ends: dict[tuple[bytes, int, int], FourTuple] = {}
        """The four-tuple of a client's address and port and our port: all that a closed socket tells."""
        self._metered: dict[FourTuple, _Metered] = {}
        self._gone: dict[int, float] = {}
        """When each of those was first missed, monotonic: a socket that is closing is in no dump, and yet to report."""
        self._closed: list[ClosedSocket] = []
        """Not yet in the ledger."""
        self._judged: dict[int, list[tuple[FourTuple, _Step]]] = {}
        """Of each connection, the steps that its verdicts were made with."""

    def prepare(self, policy: Policy) -> None:
        """Open what *policy* needs, before it comes into force. Raises KernelError where the ledger cannot be used."""
        if self._ledger is not None or all(rule.budget is None for rule in policy.rules):
            return
        try:
            self._ledger = Ledger(self._path)
            self._boot = BOOT_ID.read_text().strip()
            self._counters = self._ledger.counters(self._boot)
            self._ledger.prune(int(time.time() - KEPT_SECONDS))
            self._used = self._ledger.used()
        except LedgerError as error:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None
            raise KernelError(str(error)) from error
        self._meter = open_socket_meter(self._ports)

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Verdicts must follow for every connection."""
        self._policy = policy
        self._judged.clear()

    def close(self) -> None:
        """Count for the last time."""
        if self._ledger is not None:
            self._count(time.time())
            self._ledger.close()
            self._ledger = None
        if self._meter is not None:
            self._meter.close()

    def judge(self, token: int, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps of the budgets that are used up."""
        if self._policy is None or not any(each.rule is not None and each.rule.budget for each in verdicts):
            self._judged.pop(token, None)
            return verdicts
        result: list[Verdict] = []
        basis: list[tuple[FourTuple, _Step]] = []
        for verdict in verdicts:
            rule = verdict.rule
            if rule is None or rule.budget is None:
                result.append(verdict)
                continue
            self._meter_subflow(verdict.four_tuple, rule, token)
            judged, step = self._judge(verdict, rule, token, now)
            basis.append((verdict.four_tuple, step))
            result.append(judged)
        self._judged[token] = basis
        return tuple(result)

    def forget(self, token: int) -> None:
        """Connection *token* has ended. What its sockets carried last is still to come."""
        self._judged.pop(token, None)

    async def run(self) -> None:
        """Count, forever."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            if self._ledger is not None:
                self._count(time.time())

    def _meter_subflow(self, four_tuple: FourTuple, rule: Rule, token: int) -> None:
        self._metered[four_tuple] = _Metered(rule, token, time.monotonic())
        self._ends[four_tuple.remote, four_tuple.remote_port, four_tuple.local_port] = four_tuple

    def _account(self, rule: Rule, four_tuple: FourTuple, now: float) -> Account:
        assert rule.budget is not None
        assert self._policy is not None
        client = str(ip_address(four_tuple.remote)) if rule.budget.per_client else ""
        return Account(rule.name, client, period(rule.budget, self._policy.time_zone, now)[0])

    def _judge(self, verdict: Verdict, rule: Rule, token: int, now: float) -> tuple[Verdict, _Step]:
        assert rule.budget is not None
        assert self._policy is not None
        account = self._account(rule, verdict.four_tuple, now)
        used = self._used.get(account, 0)
        step = step_of(rule.budget, used)
        end = datetime.fromtimestamp(period(rule.budget, self._policy.time_zone, now)[1], self._policy.time_zone)
        until = f"until {end:%Y-%m-%d %H:%M %Z}"
        before = "upload: " if verdict.direction is Direction.UP else ""
        reached: _Step = account.start, None if step is None else step.after
        if step is None:
            first = approximate_size(rule.budget.steps[0].after)
            state = f"budget of rule {rule.name}: {approximate_size(used)} of {first} used {until}"
            return replace(verdict, reason=before + state), reached
        if step.throttle is None:
            state = f"budget of rule {rule.name}: no cap beyond {approximate_size(step.after)} {until}"
            return replace(verdict, reason=before + state), reached
        throttle = step.throttle
        member: bytes | int | None = None
        if throttle.share is Share.CLIENT:
            member = verdict.four_tuple.remote
        elif throttle.share is Share.CONNECTION:
            member = token
        verb = "would cap" if self._policy.dry_run else "caps"
        state = f"rule {rule.name} {verb} what exceeds {approximate_size(step.after)} {until}"
        scope = ScopeKey(rule.name, throttle.share, member, verdict.direction)
        return replace(verdict, scope=scope, throttle=throttle, reason=before + state), reached

    def _count(self, now: float) -> None:
        assert self._ledger is not None
        try:
            added, counters, closed = self._read(now)
        except KernelError as error:
            log.error("%s; budgets are counted later", error)
            return
        try:
            self._ledger.write(self._boot, added, counters, closed)
            self._used = self._ledger.used()
        except LedgerError as error:
            log.error("%s; budgets are counted later", error)
            return
        self._counters |= counters
        for cookie in closed:
            self._counters.pop(cookie, None)
        self._closed.clear()
        self._forget_old()
        self._decide_anew(now)

    def _read(self, now: float) -> tuple[dict[Account, int], dict[int, Counters], list[int]]:
        """Return what came to each account, the counters of the sockets, and which have closed."""
        added: dict[Account, int] = {}
        counters: dict[int, Counters] = {}
        live = set()
        for socket in self._subflows():
            live.add(socket.cookie)
            metered = self._metered.get(socket.four_tuple)
            if metered is not None:
                metered.seen = time.monotonic()
                read = Counters(socket.bytes_sent, socket.bytes_received)
                self._add(added, metered.rule, socket.four_tuple, socket.cookie, read, counters, now)
                counters[socket.cookie] = read
        if self._meter is not None:
            self._closed += self._meter.closed()
        for each in self._closed:
            four_tuple = self._ends.get((each.remote, each.remote_port, each.local_port))
            metered = None if four_tuple is None else self._metered.get(four_tuple)
            if four_tuple is not None and metered is not None:
                last = Counters(each.acked, each.received)
                self._add(added, metered.rule, four_tuple, each.cookie, last, counters, now)
                counters.pop(each.cookie, None)
        closed = [each.cookie for each in self._closed] + self._long_gone(live)
        return added, {cookie: read for cookie, read in counters.items() if self._counters.get(cookie) != read}, closed

    def _long_gone(self, live: set[int]) -> list[int]:
        now = time.monotonic()
        self._gone = {cookie: self._gone.get(cookie, now) for cookie in self._counters.keys() - live}
        return [cookie for cookie, since in self._gone.items() if now - since > KEEP_COUNTERS_SECONDS]

    def _add(
        self,
        added: dict[Account, int],
        rule: Rule,
        four_tuple: FourTuple,
        cookie: int,
        read: Counters,
        counters: dict[int, Counters],
        now: float,
    ) -> None:
        """Add to *added* what *read* has more than *counters*, those of this look, or the ones before."""
        assert rule.budget is not None
        known = counters.get(cookie) or self._counters.get(cookie, Counters())
        octets = 0
        if Direction.DOWN in rule.budget.counted:
            octets += max(0, read.acked - known.acked)
        if Direction.UP in rule.budget.counted:
            octets += max(0, read.received - known.received)
        if octets:
            account = self._account(rule, four_tuple, now)
            added[account] = added.get(account, 0) + octets

    def _forget_old(self) -> None:
        limit = time.monotonic() - FORGET_SECONDS
        for four_tuple in [each for each, metered in self._metered.items() if metered.seen < limit]:
            del self._metered[four_tuple]
            self._ends.pop((four_tuple.remote, four_tuple.remote_port, four_tuple.local_port), None)

    def _decide_anew(self, now: float) -> None:
        """Have verdicts made anew where a step was reached or a period began."""
        stale = []
        for token, basis in self._judged.items():
            for four_tuple, before in basis:
                metered = self._metered.get(four_tuple)
                if metered is None or metered.rule.budget is None:
                    continue
                account = self._account(metered.rule, four_tuple, now)
                step = step_of(metered.rule.budget, self._used.get(account, 0))
                if (account.start, None if step is None else step.after) != before:
                    stale.append(token)
                    break
        if stale:
            self._changed(stale)
