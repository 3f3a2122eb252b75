"""Answers requests of the status socket, in a child: from what the daemon has stored, and from what the kernel says.

A child is a copy of the daemon: what it changes is its own. The daemon's sockets it must not use: it would read what is
meant for the daemon. So it asks the kernel by sockets of its own.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mptcp_common import __version__
from mptcp_common.problems import DocumentError
from mptcp_throttler.config.files import accept_policy
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, SocketDetails
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.runtime.budgets import Budgets
from mptcp_throttler.runtime.closed_sockets import ClosedSockets
from mptcp_throttler.runtime.drift import DriftMonitor
from mptcp_throttler.runtime.engine import Engine, ahead_of_monotonic
from mptcp_throttler.runtime.event_loop import LoopGauge
from mptcp_throttler.runtime.observe import Observers
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.runtime.reloads import PolicyReloads
from mptcp_throttler.shaping.model import ClassCounters
from mptcp_throttler.views import snapshot
from mptcp_throttler.views.budgets import budget_rows, budgets_of
from mptcp_throttler.views.client_budgets import client_budgets
from mptcp_throttler.views.connections import connections
from mptcp_throttler.views.events import events
from mptcp_throttler.views.explain import explain
from mptcp_throttler.views.known import Known, Sockets
from mptcp_throttler.views.own_client import own_client
from mptcp_throttler.views.requests import SCHEMA, Request, RequestError, parse_request
from mptcp_throttler.views.rule_words import paths_in_words, rules_in_words
from mptcp_throttler.views.summary import Counted, summary
from mptcp_throttler.views.what_if import Decided, what_if

log = logging.getLogger(__name__)

WHAT_IF_SECONDS = 2.5
"""The console waits for 3."""
WHAT_IF_NICE = 0
"""The proxy's."""
MAX_BUDGETS = 100
"""Accounts in a summary; more where the policy has more budgets, one of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the daemon that are asked."""

    settings: Settings
    kernel: KernelAccess
    started: float
    pid: int
    engine: Engine
    budgets: Budgets
    closed_sockets: ClosedSockets
    path_manager: UserspacePathManager
    reloads: PolicyReloads
    drift: DriftMonitor
    gauge: LoopGauge
    observers: Observers


class Queries:
    """Answers for one moment."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._engine = parts, parts.engine
        engine = parts.engine
        self._events = engine.events.ring
        self._now = time.time()
        self._known = Known(
            self._now,
            ahead_of_monotonic(),
            engine.decisions.policy,
            engine.tracker.connections,
            engine.decisions.verdicts,
            engine.downloads.planner,
            engine.uploads.planner,
            engine.guard.reason,
            engine.traffic,
            Sockets(self._look_up, self._class_counters),
        )
        self._answers: Mapping[str, Callable[[Request], Iterator[str]]] = {
            "status": lambda _: self._status(),
            "head": lambda _: self._object(self._head()),
            "summary": lambda _: self._object(self._summary()),
            "connections": lambda request: self._with_head(connections(self._known, request)),
            "explain": lambda request: self._object(self._explain(request)),
            "policy": lambda _: self._object(self._policy() | {"text": engine.decisions.policy.text}),
            "what_if": lambda request: self._object(self._what_if(request.arguments["policy"])),
            "events": lambda request: self._with_head(events(self._events, engine.tracker.connections, request)),
            "client": lambda request: self._object(own_client(self._known, self._budgets_of, request)),
            "budgets": lambda request: self._object(
                {"budgets": client_budgets(self._known, engine.budget_stage.accounts(), request.arguments["client"])}
            ),
        }

    def answer(self, line: bytes) -> Iterator[str]:
        """Yield the text of the answer to *line* in pieces; of the whole status where it says nothing.

        It is one line: what has no end of line broke off, wherever that was.
        """
        try:
            request = parse_request(line)
            yield from self._answers[request.query](request)
        except RequestError as error:  # before anything of an answer
            yield json.dumps({"schema": SCHEMA, "error": str(error)})
        yield "\n"

    # Answers

    def _object(self, keys: dict[str, Any]) -> Iterator[str]:
        yield json.dumps({"schema": SCHEMA, "time": self._now, "version": __version__, "pid": self._parts.pid} | keys)

    def _with_head(self, text: Iterator[str]) -> Iterator[str]:
        """Yield an object of which *text* are the keys after those that all answers have."""
        yield next(self._object({}))[:-1] + ", "
        yield from text
        yield "}"

    def _head(self) -> dict[str, Any]:
        parts, engine = self._parts, self._engine
        policy = engine.decisions.policy
        planners = engine.downloads.planner, engine.uploads.planner
        return {
            "version": __version__,
            "pid": parts.pid,
            "started": self._known.wall(parts.started),
            "now": self._now,
            "interfaces": list(parts.settings.interfaces),
            "listen_ports": list(parts.settings.ownership.listen_ports),
            "netfilter": engine.downloads.backend,
            "paced": engine.paced.possible,
            "policy": {
                "source": str(parts.settings.policy),
                "dry_run": policy.dry_run,
                "rules": [rule.name for rule in policy.rules],
            },
            "reloads": parts.reloads.as_json(),
            "ledger_error": parts.budgets.trouble,
            "path_manager": "user space" if parts.path_manager.in_force else "kernel",
            "uploads_shaped": engine.uploads.in_force,
            "in_step": all(each.classes.settled and each.entries.settled for each in planners),
        }

    def _counters(self) -> dict[str, Any]:
        parts, engine = self._parts, self._engine
        download, upload = engine.downloads, engine.uploads
        return {
            "observers": asdict(parts.observers.counters),
            "tracker": asdict(engine.tracker.counters),
            "reconciler": asdict(download.reconciler.counters),
            "upload_reconciler": None if upload.reconciler is None else asdict(upload.reconciler.counters),
            "changes": asdict(parts.drift.counters),
            "guard": {name: round(count) for name, count in asdict(engine.guard.counters).items()},
            "sampler": engine.sampler.as_json(),
            "loop": parts.gauge.as_json(),
            "entries": len(download.planner.entries.actual),
            "upload_entries": len(upload.planner.entries.actual),
            "tables": dict(engine.tracker.table_sizes),
        }

    def _status(self) -> Iterator[str]:
        engine = self._engine
        download, upload = engine.downloads.planner, engine.uploads.planner
        tail = {"classes": snapshot.classes((download, upload)), "counters": self._counters()}
        head = {"schema": SCHEMA, "time": self._now} | self._head()
        return snapshot.document(self._known, head, tail, self._latest_samples)

    def _summary(self) -> dict[str, Any]:
        parts, engine = self._parts, self._engine
        counted = Counted(
            engine.tracker.states(),
            len(engine.traffic.clients),
            engine.guard.relaxed(),
        )
        policy = engine.decisions.policy
        totals, accounts = budget_rows(policy, engine.budget_stage.accounts(), self._now, MAX_BUDGETS)
        return {
            "started": self._known.wall(parts.started),
            **summary(self._known, counted, parts.settings.policy.stem),
            "counted": self._known.wall(engine.traffic.counted),
            "budget_totals": totals,
            "budgets": accounts,
            "guard": {"relaxed": counted.relaxed, "interventions": engine.guard.counters.relaxations},
            "counters": self._counters(),
            "loop": parts.gauge.as_json(),
            "reaction": engine.join_latency.as_json(),
            "effect": engine.cap_latency.as_json(),
            "reloads": parts.reloads.as_json(),
            "ledger_error": parts.budgets.trouble,
            "captures": parts.observers.capturing(),
            "bpf": {"pacing": engine.paced.possible, "counting": parts.closed_sockets.are_counted},
            "policy": self._policy()
            | {
                "rules": [rule.name for rule in policy.rules],
                "paths_in_words": paths_in_words(policy),
                "rules_in_words": rules_in_words(policy),
            },
            "last_event": self._events.last,
        }

    def _policy(self) -> dict[str, Any]:
        parts, engine = self._parts, self._engine
        return {
            "file": str(parts.settings.policy),
            "since": self._known.wall(parts.reloads.since or parts.started),
            "dry_run": engine.decisions.policy.dry_run,
        }

    def _explain(self, request: Request) -> dict[str, Any]:
        decisions, taken = self._engine.decisions, self._policy()["since"]
        return explain(self._known, self._events, taken, decisions.steps, decisions.expected, request)

    def _what_if(self, text: str) -> dict[str, Any]:
        """Decide about everything under another policy: in this child, whose copy of the daemon nobody needs.

        It is the longest question, and whoever may look may ask it: it does not come before the proxy, and has an end.
        Raises RequestError where it was not done by then.
        """
        end = time.monotonic() + WHAT_IF_SECONDS
        # A daemon that was started behind others stays there: to come before them takes a capability.
        os.setpriority(os.PRIO_PROCESS, 0, max(WHAT_IF_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        decisions = self._engine.decisions
        try:
            policy, _ = accept_policy(text, "policy", self._parts.settings)
        except DocumentError as error:
            return {"errors": [str(problem) for problem in error.problems]}
        dry_run_now = decisions.policy.dry_run
        decisions.set_policy(policy)

        def decided() -> Iterator[Decided]:
            for number, (token, connection) in enumerate(self._known.connections.items()):
                if time.monotonic() > end:
                    done = f"{number:,} of {len(self._known.connections):,} connections in {WHAT_IF_SECONDS:g} s"
                    raise RequestError(f"to decide by this policy takes too long: {done}")
                *_, verdicts = decisions.steps(connection)
                yield connection, self._known.verdicts.get(token, ()), verdicts

        return {"errors": []} | what_if(
            decided(),
            dry_run_now=dry_run_now,
            dry_run_then=policy.dry_run,
            flags_can_be_set=self._parts.path_manager.in_force,
        )

    def _budgets_of(self, clients: Collection[str]) -> list[dict[str, Any]]:
        return budgets_of(self._engine.decisions.policy, self._engine.budget_stage.accounts(), self._now, clients)

    # Of the kernel

    def _latest_samples(self) -> Mapping[FourTuple, KernelSubflow]:
        """Return the samples of the last sweep, or where that is old, new ones."""
        parts, engine = self._parts, self._engine
        if not engine.sampler.is_current():
            try:
                sockets = parts.kernel.sockets(parts.settings)
                return {each.four_tuple: each for piece in sockets.pieces() for each in piece}
            except (KernelError, OSError) as error:
                log.error("%s; the status shows older byte counts", error)
        return engine.sampler.latest

    def _look_up(
        self, four_tuples: Sequence[FourTuple]
    ) -> tuple[Mapping[FourTuple, KernelSubflow], Mapping[FourTuple, SocketDetails]]:
        try:
            sockets = self._parts.kernel.sockets(self._parts.settings)
            return sockets.look_up(four_tuples), sockets.details(four_tuples)
        except (KernelError, OSError) as error:
            log.error("%s; an answer shows nothing of sockets", error)
            return {}, {}

    def _class_counters(self, direction: Direction) -> Mapping[int, ClassCounters]:
        try:
            return self._parts.kernel.class_counters(self._parts.settings, direction)
        except (KernelError, OSError) as error:
            log.error("%s; an answer shows classes without their counters", error)
            return {}
