"""Wiring: observers, tracker, policy, planner and reconciler of one daemon, and its life from start to stop."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from .budgets import Budgets
from .guard import CapGuard
from .kernel.netfilter import Backend, open_netfilter, remove_other_backends
from .kernel.ports import KernelError, Netfilter
from .kernel.socket_pacing import open_socket_pacing
from .kernel.tc import HtbTrafficControl
from .landing import Lander
from .mptcp.model import Connection, Event, EventKind, FourTuple, KernelSubflow
from .mptcp.tracker import Tracker, TrackerLimits
from .observe import Observers
from .policy.evaluate import evaluate
from .policy.model import Policy, Verdict
from .policy.problems import DocumentError
from .policy.schedule import next_change, open_rules
from .reconcile import Reconciler
from .settings import Settings
from .shaping.plan import PlanError, Planner, gso_limit
from .status import StatusServer, snapshot
from .steer import Steerer
from .upload import UploadLane

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
_PRIORITY = -10
"""Nice value: little work, but at once."""
_STOP = (signal.SIGTERM, signal.SIGINT)
_LONGEST_SLEEP = 60.0
"""The wall clock may be set while we wait for a window of the policy."""


class AlreadyRunning(Exception):
    """Another daemon holds the lock of the state directory."""


class Daemon:
    """One throttler on one network namespace."""

    def __init__(self, settings: Settings, policy: Policy, read_policy: Callable[[], Policy]) -> None:
        self._settings = settings
        self._policy = policy
        self._read_policy = read_policy
        self._started = time.time()
        self._stop = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._reloaded = asyncio.Event()
        self._open_rules: tuple[bool, ...] = ()
        """Which rules' windows were open when the policy was last enforced."""
        self._tracker = Tracker(settings.ownership.listen_ports, TrackerLimits(settings.max_connections))
        self._planner = Planner(settings.ownership)
        self._tc = HtbTrafficControl(settings.interfaces, settings.ownership, settings.state_directory)
        self._upload = UploadLane(settings, self._subflow)
        self._guard = CapGuard(policy, self._subflows, self._decide_anew)
        self._budgets = Budgets(settings.ledger, settings.ownership.listen_ports, self._subflows, self._decide_anew)
        self._steerer = Steerer(settings.state_directory, self._subflows, self._decide_anew)
        self._observers: Observers
        self._reconciler: Reconciler
        self._backend: Backend
        self._lander: Lander | None = None
        """None where sockets cannot be paced: caps then fall at once."""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then leave the kernel as it was.

        Raises :class:`KernelError` when the start fails, :class:`AlreadyRunning` when another daemon is there.
        """
        loop = asyncio.get_running_loop()
        with locked(self._settings.state_directory):
            # From the first change to the last: a signal in between must not end us half-way.
            for number in _STOP:
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, self._reload_wanted.set)
            async with self._tc.opened(), self._opened_netfilter() as netfilter, self._upload.opened():
                self._reconciler = Reconciler(self._planner, self._tc, netfilter)
                try:
                    await self._serve()
                finally:
                    # A start that was refused before it took an interface leaves a killed predecessor's caps alone.
                    if self._tc.prepared:
                        await self._reconciler.close()
                    _ignore_further_stops(loop)

    async def _serve(self) -> None:
        await self._reconciler.prepare()
        await self._upload.prepare(self._policy)
        try:
            self._steerer.prepare(self._policy)
            self._budgets.prepare(self._policy)
        except KernelError:
            self._steerer.close()
            raise
        self._observers = Observers(
            self._settings.interfaces,
            self._settings.ownership.listen_ports,
            self._tracker,
            self._changed,
            self._verify,
        )
        self._set_policy(self._policy)
        status = StatusServer(self._settings.status_socket, self._snapshot)
        try:
            # First of all: a connection that is accepted before can never be paced.
            self._open_lander()
            await self._observers.open()
            self._steerer.adopt(self._observers.subflows())
            await self._enforce()
            if self._lander is not None:
                self._lander.step(time.monotonic())
            await self._reconciler.apply()
            await self._upload.leave(self._policy)
            await remove_other_backends(self._backend, self._settings.ownership)
            await status.open()
            _keep_pauses_short()
            log.info("throttling on %s with %s", ", ".join(self._settings.interfaces), self._backend)
            await self._until_stopped(
                self._reconciler.run(),
                self._upload.run(),
                self._budgets.run(),
                self._guard.run(),
                self._steerer.run(),
                self._observers.supervise(),
                self._every(TICK_SECONDS, self._tick),
                self._every(self._settings.verify_interval, self._verify_and_resync),
                self._follow_the_clock(),
                self._reload_when_wanted(),
                *([self._lander.run()] if self._lander is not None else []),
            )
        finally:
            await status.close()
            if self._lander is not None:
                await self._lander.close()
            self._budgets.close()
            try:
                self._steerer.close()
            finally:
                self._observers.close()

    def _open_lander(self) -> None:
        pacing = open_socket_pacing(self._settings.ownership.listen_ports)
        if pacing is not None:
            self._lander = Lander(self._planner, pacing, self._observers.subflow, self._reconciler.wake)
            self._lander.adopt(self._observers.subflows())

    async def _until_stopped(self, *duties: Coroutine[Any, Any, None]) -> None:
        """Run *duties*, none of which ends by itself, until told to stop; the first that fails ends the daemon."""
        tasks = [asyncio.create_task(duty) for duty in duties]
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [stop, *tasks]:
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)

    def _changed(self, events: Iterable[Event]) -> None:
        """Decide anew about every connection that *events* name."""
        tokens = set()
        for event in events:
            tokens.add(event.token)
            if event.kind in (EventKind.JOIN_REFUSED, EventKind.DISAGREEMENT):
                log.info("%s: token %08x, %s %s", event.kind.value, event.token, event.four_tuple, event.detail)
            elif log.isEnabledFor(logging.DEBUG):
                log.debug("%s: token %08x, %s %s", event.kind.value, event.token, event.four_tuple, event.detail)
        self._decide(tokens)
        self._plan_changed()

    def _plan_changed(self) -> None:
        if self._lander is not None:
            self._lander.wake()
        self._reconciler.wake()
        self._upload.wake()

    @property
    def _planners(self) -> tuple[Planner, Planner]:
        return self._planner, self._upload.planner

    def _set_policy(self, policy: Policy) -> None:
        self._policy = policy
        self._budgets.set_policy(policy)
        self._guard.set_policy(policy)
        self._steerer.set_policy()
        for planner in self._planners:
            planner.set_policy(policy)

    def _expire_classes(self, now: float) -> None:
        for planner in self._planners:
            planner.expire(now)

    def _decide(self, tokens: Iterable[int]) -> None:
        now = time.time()
        for token in tokens:
            connection = self._tracker.connections.get(token)
            verdicts = self._verdicts(token, connection, now)
            try:
                for planner in self._planners:
                    planner.set_verdicts(token, verdicts, now)
            except PlanError as error:
                log.error("connection %08x stays uncapped: %s", token, error)

    def _verdicts(self, token: int, connection: Connection | None, now: float) -> tuple[Verdict, ...]:
        """Return what holds for each active subflow.

        That is the policy's word, with the caps of budgets that are used up, less what does harm, and what steers.
        """
        if connection is None:
            self._budgets.forget(token)
            self._guard.forget(token)
            self._steerer.forget(token)
            return ()
        verdicts = self._budgets.judge(token, evaluate(self._policy, connection, now), now)
        verdicts = self._guard.relax(token, verdicts)
        return self._steerer.steer(token, verdicts, self._policy.dry_run)

    def _subflow(self, four_tuple: FourTuple) -> KernelSubflow | None:
        return self._observers.subflow(four_tuple)

    def _subflows(self) -> list[KernelSubflow]:
        return self._observers.subflows()

    def _decide_anew(self, tokens: Iterable[int]) -> None:
        self._decide(tokens)
        self._plan_changed()

    async def _enforce(self) -> None:
        """Bring the plan in line with the policy: at start, after a reload, when a window opens or closes."""
        now = time.time()
        self._open_rules = open_rules(self._policy, now)
        self._decide(list(self._tracker.connections))
        for planner in self._planners:
            planner.prepare_path_classes(now)
        self._expire_classes(now)
        try:
            await self._tc.limit_gso(await self._gso_limit())
        except KernelError as error:
            log.error("%s", error)
        self._plan_changed()

    async def _gso_limit(self) -> int | None:
        wanted = self._settings.gso_max_size
        if wanted == "keep" or self._policy.dry_run:
            return None
        return gso_limit(self._policy, await self._tc.gso_before()) if wanted == "auto" else int(wanted)

    async def _tick(self) -> None:
        now = time.time()
        events = self._tracker.expire(now)
        if events:
            self._changed(events)
        self._expire_classes(now)
        self._plan_changed()

    async def _verify(self) -> None:
        try:
            await self._reconciler.verify()
            await self._upload.verify()
        except KernelError as error:
            log.error("verify: %s", error)

    async def _verify_and_resync(self) -> None:
        """Compare both sides with the kernel: what we put there, and the subflows that packets told of.

        The latter keeps long-lived subflows from expiring and gives back a cap that a forged RST took away.
        """
        await self._verify()
        await self._observers.resync_quietly()

    async def _follow_the_clock(self) -> None:
        while True:
            now = time.time()
            if open_rules(self._policy, now) != self._open_rules:
                await self._enforce()
            change = next_change(self._policy, now)
            pause = _LONGEST_SLEEP if change is None else min(_LONGEST_SLEEP, max(0.05, change - now))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reloaded.wait(), pause)
            self._reloaded.clear()

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Take the policy file anew; refuse a bad one and keep what is in force."""
        try:
            policy = self._read_policy()
        except DocumentError as error:
            for line in str(error).splitlines():
                log.error("%s", line)
            log.error("policy not reloaded: the one in force stays")
            return
        try:
            await self._prepare(policy)
        except KernelError as error:
            log.error("%s; policy not reloaded: the one in force stays", error)
            return
        self._set_policy(policy)
        await self._enforce()
        await self._upload.leave(policy)
        self._reloaded.set()
        log.info("policy reloaded: %d rules", len(policy.rules))

    async def _prepare(self, policy: Policy) -> None:
        """Put into the kernel what *policy* needs. Raises KernelError where it cannot be; then nothing has changed."""
        try:
            await self._upload.prepare(policy)
            self._steerer.prepare(policy)
            self._budgets.prepare(policy)
        except KernelError:
            await self._upload.leave(self._policy)
            self._steerer.prepare(self._policy)
            raise

    def _snapshot(self) -> dict[str, Any]:
        return snapshot(
            settings=self._settings,
            policy=self._policy,
            backend=self._backend,
            started=self._started,
            tracker=self._tracker,
            planner=self._planner,
            upload=self._upload,
            guard=self._guard,
            observers=self._observers,
            reconciler=self._reconciler,
            paced=self._lander is not None,
            decide=lambda connection: self._verdicts(connection.token, connection, time.time()),
        )

    @asynccontextmanager
    async def _opened_netfilter(self) -> AsyncIterator[Netfilter]:
        self._backend, netfilter = open_netfilter(self._settings.netfilter, self._settings.ownership)
        try:
            yield netfilter
        finally:
            netfilter.close()

    @staticmethod
    async def _every(seconds: float, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await call()


def _ignore_further_stops(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever asks once more is asking for what is being done.

    The loop leaves each signal to its default action, which would end us: none must come in that moment.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    for number in _STOP:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)


def _keep_pauses_short() -> None:
    """A new subflow must not wait behind the transfers of the proxy beside us, nor behind a walk through all the
    objects that the imported libraries made."""
    gc.collect()
    gc.freeze()
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


@contextmanager
def locked(state_directory: Path) -> Iterator[None]:
    """Hold the state directory for one daemon. Raises :class:`AlreadyRunning`."""
    state_directory.mkdir(parents=True, exist_ok=True)
    with open(state_directory / "lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"a throttler is running already: it holds {state_directory}/lock") from error
        yield
