# SPDX-License-Identifier: GPL-2.0-or-later
"""Creates the components of one daemon, and runs them from start to stop.

The :mod:`~mptcp_throttler.runtime.engine` has the parts that process a change. A part with state in the kernel
or on disk is a component (``component``): all are prepared for a policy, then committed. Everything runs on one event
loop, and nothing blocks it for long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from mptcp_common import service_manager
from mptcp_common.kernel_error import KernelError
from mptcp_common.problems import DocumentError
from mptcp_common.single_daemon import single_daemon
from mptcp_common.units import counted
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL, KernelAccess
from mptcp_throttler.kernel.scheduling import prefer_worker, rest_when_busy
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.runtime.budgets import Budgets, ClosedSockets, Grants
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.directions import PlainTcpCaps
from mptcp_throttler.runtime.drift import DriftMonitor
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.event_loop import LoopDelayMeter, collect_garbage, freeze_startup_objects, skip_collection
from mptcp_throttler.runtime.logs import ALREADY_AN_EVENT, forward_faults
from mptcp_throttler.runtime.observe import Observers
from mptcp_throttler.runtime.status import StatusServer, answer
from mptcp_throttler.stages.resting import RATIO, RATIO_WITHOUT_BUFFERS
from mptcp_throttler.telemetry.events import FAULT, RELOAD
from mptcp_throttler.views.answers import ReloadCounts

log = logging.getLogger(__name__)
_notify = partial(service_manager.notify_or_warn, "mptcp-throttler")

STATUS_SECONDS = 5.0  # interval of the checks whether the status line for the service manager has changed
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Daemon:
    """One throttler on one network namespace."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        read_policy: Callable[[], Policy],
        kernel: KernelAccess = REAL,
        read_settings: Callable[[], Sequence[str]] = list,
    ) -> None:
        """*read_settings* returns notes on changes of the settings file. Needs a running loop. Raises KernelError."""
        self._settings = settings
        self._kernel = kernel
        self._pid = os.getpid()
        self.stop = asyncio.Event()
        """Set it to make :meth:`serve` end."""
        self._reload_requested = asyncio.Event()
        self._loop_delay = LoopDelayMeter()
        self._engine = engine = Engine(settings, kernel, policy)
        self._plain_tcp = PlainTcpCaps(settings, kernel, engine.downloads.planner)
        self._budgets = Budgets(engine)
        self._closed_sockets = ClosedSockets(partial(kernel.meter, settings), self._budgets, engine.traffic)
        # This is the order of preparation; components close in reverse. The ledger comes first: if it cannot be used,
        # the start must not change the kernel, but a component that had adopted objects of a killed daemon would remove
        # them when it closes. Limits on sockets come last, but before the observers: a connection that is accepted
        # before the limits are installed is never paced.
        self._components: tuple[Component, ...] = (
            self._budgets,
            Grants(engine),
            engine.tunnels,
            engine.downloads,
            engine.uploads,
            self._plain_tcp,
            engine.path_manager,
            self._closed_sockets,
            engine.socket_limiter,
        )
        self._read_policy, self._read_settings = read_policy, read_settings
        self._reloads: ReloadCounts = {"accepted": 0, "refused": 0, "last_refused": None, "settings": []}
        self._status = StatusServer(settings.status_socket, self._answer, settings.status_group)
        self._drift = DriftMonitor((*self._components, self._status), settings.verify_interval)
        self._observers = Observers(engine, self._drift.verify)

    def reload(self) -> None:
        self._reload_requested.set()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then restore the kernel. Raises KernelError, AlreadyRunning."""
        loop = asyncio.get_running_loop()
        with single_daemon("mptcp-throttler", self._settings.state_directory):
            # From the first change of the kernel to the last, no signal must end the daemon.
            for number in STOP_SIGNALS:
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.stop.set))
            loop.add_signal_handler(signal.SIGHUP, self.reload)
            try:
                await self.serve()
            finally:
                # When a loop closes, it restores the default actions of its signals; a mask is for one thread only.
                for number in STOP_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)

    async def serve(self) -> None:
        """Run until :attr:`stop`, then leave the kernel as it was. Raises KernelError."""
        engine = self._engine
        policy = engine.decisions.applied
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(initializer=prefer_worker))
        async with AsyncExitStack() as stack:
            stack.enter_context(forward_faults(lambda now, text: engine.events.record(now, FAULT, text)))
            stack.callback(engine.sockets.close)
            for component in self._components:
                stack.push_async_callback(component.close)
                await component.prepare(policy)
            engine.rest.can_rest = engine.socket_limiter.can_rest
            engine.rest.ratio = RATIO if engine.socket_limiter.has_buffers else RATIO_WITHOUT_BUFFERS
            engine.decisions.set_policy(engine.decisions.policy)
            stack.callback(lambda: engine.action_runner.perform(engine.steering.flags.release_actions()))
            stack.callback(self._observers.close)
            await self._observers.open()
            await self._adopt()
            engine.traffic.begin(engine.sampler.latest)
            for component in self._components:
                await component.commit(policy)
            await engine.uploads.remove_leftovers()
            if not policy.caps_plain_tcp:
                await self._plain_tcp.remove_leftovers()
            await self._kernel.remove_other_backends(engine.downloads.backend, self._settings)
            stack.push_async_callback(self._status.close)
            await self._status.open()
            stack.push_async_callback(self._take_last_sample)
            stack.callback(self._drift.close)
            self._drift.open(self._kernel.notices(self._settings))
            self._kernel.prefer_event_loop()
            freeze_startup_objects()
            log.info("throttling on %s with %s", ", ".join(self._settings.interfaces), engine.downloads.backend)
            summary = self._summary()
            _notify(service_manager.READY, service_manager.status(summary))
            await self._run_until_stopped(
                *(component.run() for component in self._components),
                engine.decisions.run(),
                engine.cap_log.run(),
                engine.sampler.run(),
                self._observers.supervise(),
                self._loop_delay.run(),
                rest_when_busy(),
                self._notify_service_manager(summary),
                collect_garbage(),
                engine.run(),
                self._drift.run(),
                engine.enforce_by_clock(),
                self._reload_on_request(),
            )

    async def _adopt(self) -> None:
        engine = self._engine
        sockets = list(engine.sampler.latest.values())
        # Take over the backup flags that a killed daemon set; flags of another program are not changed.
        if engine.path_manager.flags_note.take_over():
            engine.steering.adopt(sockets)
        await engine.enforce()
        if engine.socket_limiter.can_pace:
            await engine.socket_limiter.adopt(sockets)
            # Subflows capped by an earlier daemon stay capped; subflows that send little are capped from the start.
            await engine.sampler.sweep()
            await engine.socket_limiter.wake_sockets()
        await engine.downloads.reconciler.apply()

    async def _run_until_stopped(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        """Run *coroutines*, which never end, until :attr:`stop`. The first failure of a coroutine ends the daemon."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(coroutine) for coroutine in coroutines]
        tasks.append(asyncio.create_task(self.stop.wait()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_last_sample(self) -> None:
        if self._engine.budget_stage.watched():
            try:
                await self._engine.sampler.sweep()
            except KernelError as error:
                log.error("%s; the last bytes are not counted in budgets", error)

    async def _reload_on_request(self) -> None:
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            await self._reload()

    async def _reload(self) -> None:
        _notify(*service_manager.reloading())
        try:
            await self._load_policy()
        finally:
            _notify(service_manager.READY, service_manager.status(self._summary()))

    async def _load_policy(self) -> None:
        """Read the policy file again; if it has an error, refuse it as a whole and keep the policy in force."""
        engine, counts = self._engine, self._reloads
        counts["settings"] = list(await asyncio.to_thread(self._read_settings))
        for line in counts["settings"]:
            log.warning("%s", line)
        try:
            async with skip_collection():
                policy = await asyncio.to_thread(self._read_policy)
            await self._prepare(policy.applied)
        except (DocumentError, KernelError) as error:
            lines = str(error).splitlines()
            for line in lines:
                log.error("%s", line, extra=ALREADY_AN_EVENT)
            log.error("policy not reloaded: the previous policy stays in force", extra=ALREADY_AN_EVENT)
            engine.events.record(time.monotonic(), RELOAD, f"policy not reloaded: {lines[0]}")
            counts["refused"] += 1
            counts["last_refused"] = {"time": time.time(), "errors": lines}
            return
        await engine.set_policy(policy)
        for component in self._components:
            try:
                await component.commit(engine.decisions.applied)
            except KernelError as error:
                log.error("%s", error)
        counts["accepted"] += 1
        counts["last_refused"] = None
        text = f"policy reloaded: {counted(len(policy.rules), 'rule')}"
        log.info("%s", text)
        engine.events.record(time.monotonic(), RELOAD, text)

    async def _prepare(self, policy: Policy) -> None:
        """Prepare all components for *policy*. If one refuses, roll all back and raise KernelError."""
        try:
            for component in self._components:
                await component.prepare(policy)
        except KernelError:
            for component in reversed(self._components):
                try:
                    await component.roll_back(self._engine.decisions.applied)
                except KernelError as error:
                    log.error("%s", error)
            raise

    async def _notify_service_manager(self, sent: str) -> None:
        """Send watchdog pings forever, and the status line when it differs from *sent*, the last line. The service
        manager restarts a daemon whose loop hangs."""
        watchdog = service_manager.watchdog_seconds(os.environ)
        while True:
            text = self._summary() if service_manager.is_managed() else sent
            if watchdog is not None:
                _notify(service_manager.WATCHDOG)
            if text != sent:
                _notify(service_manager.status(text))
            sent = text
            # Half the period, as sd_watchdog_enabled(3) advises.
            await asyncio.sleep(STATUS_SECONDS if watchdog is None else min(STATUS_SECONDS, watchdog / 2))

    def _summary(self) -> str:
        """Return one line about the daemon's work, for ``systemctl status``."""
        engine, refused, connections = self._engine, self._reloads["last_refused"], self._engine.tracker.connections
        text = (
            f"{counted(len(connections), 'connection')}, {counted(engine.capped_count, 'capped subflow')} on "
            f"{', '.join(self._settings.interfaces)} ({engine.downloads.backend}); "
            f"{counted(len(engine.decisions.policy.rules), 'rule')}{', dry run' if engine.decisions.is_dry else ''}"
        )
        if engine.downloads.left_out:
            text += f"; NOT SHAPED: {', '.join(engine.downloads.left_out)}"
        if self._budgets.write_error is not None:
            text += f"; BUDGETS NOT WRITTEN: {self._budgets.write_error}"
        return text if refused is None else f"{text}; RELOAD REFUSED: {'; '.join(refused['errors'])}"

    def _answer(self, line: bytes) -> Iterator[bytes]:
        """Yield the answer to a request in pieces; called in a child."""
        parts = self._budgets, self._closed_sockets, self._reloads, self._drift, self._loop_delay, self._observers
        return answer(Snapshot(self._pid, self._engine, *parts), line)
