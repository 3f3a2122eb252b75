# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy run``: starts Squid with the preload libraries, and protects it from bad configurations.

Squid needs a supervisor because, on SIGHUP, it closes its listeners, reads its file, and exits if the file is bad. The
supervisor checks the file first, refuses a bad file, and keeps the old settings in force. Squid reads the checked copy,
so a worker that Squid restarts never reads a file that the operator is editing.

Signals: SIGTERM lets transfers finish (shutdown_lifetime), SIGINT does not wait, SIGHUP reloads.

The exit status is Squid's, with these exceptions. It is 0 if the stop signal arrived while Squid was starting or after
Squid had ended. It is never 0 if Squid ended without a stop signal. For a bad configuration,
``mptcp_common.exit_status`` defines the status; if the only problem is that no name server answers, the status makes
systemd try again.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from mptcp_common import library_counters
from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_common.journal import ERROR, WARNING
from mptcp_common.reasons import reason

from . import shim
from .addresses_watch import AddressesWatch
from .child_processes import adopt_orphans, end_all_children, raise_descriptor_limit, reap
from .configuration.check import CheckedConfiguration, check
from .configuration.squid_problems import waits_for_names
from .configuration.workers import reload_obstacle
from .installation import install, install_library, make_directories, remove_shared_files, write
from .listeners_watch import ListenersWatch
from .listening import conflicting_socket, listening_now
from .log_files import Logs
from .own_addresses import SYSTEM_ERRORS, Network, address_change_socket, local_prefixes
from .parents import ParentsFile
from .parents_alive import ParentsWatch
from .pending_signals import STOP, PendingSignals
from .places import Places, Role
from .problem import Problem
from .process import pid_in
from .recorded_signals import RecordedSignals, wakeup_socket
from .reporter import Reporter, say
from .squid import CheckCancelledError, Squid, find_squid
from .trial import Trial

_LOG_INTERVAL = 10.0
"""Seconds between two checks of the logs."""
_STOPPED_WHILE_STARTING = (1, *(128 + number for number in STOP))
"""Exit statuses of a Squid that was stopped while it or a worker was starting. They do not count as a failure."""
_PAUSE_BEFORE_EXIT = 15.0
"""Seconds to wait before the exit after Squid has failed. With this pause, five failed starts take longer than a
minute, the start limit interval of the project's units, so systemd does not give up."""
_READY_INTERVAL = 0.1
"""Seconds between two checks whether Squid is ready for a pending signal."""


def start_problems(places: Places, checked: CheckedConfiguration) -> Iterator[Problem]:
    """Yield the problems that prevent a start although the configuration is valid."""
    if pid := pid_in(places.pid_file, "squid"):
        yield Problem(
            f"a proxy of this name runs already (process {pid}, {places.pid_file});"
            f" stop it with: kill {pid}, or start the new proxy with another --service-name"
        )
        return
    sockets = listening_now()
    for listener in checked.listeners:
        if bound_socket := conflicting_socket(listener.host, listener.port, sockets):
            statement = listener.statement
            yield Problem(
                f"port {listener} is in use by {bound_socket}", statement.file, statement.number, "a free port"
            )


def run(
    configuration: Path,
    places: Places,
    signals: RecordedSignals,
    congestion_control: str | None,
    *,
    role: Role = Role.PROXY,
    allow_open: bool = False,
    turns: str = "fair",
    without: frozenset[str] = frozenset(),
) -> int:
    """Run Squid until a stop signal arrives or Squid ends. Return the exit status. *congestion_control*: None means the
    host's own. *allow_open*: only warn if the configuration serves strangers. *turns*: "fair" or "kernel" (shim/turns).
    *without*: the features to switch off, a subset of ``shim.FEATURES``."""
    start_time = time.monotonic()
    squid = find_squid()
    if squid is not None and squid.continues_uploads:
        without |= {"zero-read"}
    # Record SIGTERM: by default it would end this process before a check removes its temporary files.
    signals.record((signal.SIGTERM,))

    def check_file(is_cancelled: Callable[[], bool]) -> CheckedConfiguration:
        return check(
            configuration, places.service_name, squid, role=role, allow_open=allow_open, is_cancelled=is_cancelled
        )

    try:
        checked = check_file(partial(signals.has, STOP))
        problems = checked.problems if checked.errors else (*checked.problems, *start_problems(places, checked))
    except CheckCancelledError:
        say("a stop was requested: Squid is not started")
        return DONE
    except SYSTEM_ERRORS as error:
        say(f"cannot check {configuration}: {reason(error)}", ERROR)
        return FAILED
    for problem in problems:
        say(problem, WARNING if problem.warning else ERROR)
    if checked.errors:
        return _status_of_refusal(checked, signals, start_time)
    for note in checked.notes:
        say(note)
    if squid is None or any(not problem.warning for problem in problems):
        return FAILED
    try:
        make_directories(places, checked)
        # Files with these names, even of another user, would keep Squid from starting.
        remove_shared_files(places)
        library_names = shim.needed_libraries(shim.switched_off(turns, without))
        libraries = [install_library(places, shim.library(name)) for name in library_names]
        prefixes = local_prefixes()
        mptcp_option = squid_opens_mptcp(squid, role)
        install(places, checked, prefixes, checked.workers.count, mptcp_option)
        # Create a new file at each start, because a process of an earlier Squid may still count in the old one.
        write(places.counters, library_counters.NONE, 0o644)
    except shim.ShimError as error:
        say(error, ERROR)
        return FAILED
    except SYSTEM_ERRORS as error:
        denied = isinstance(error, PermissionError) and os.geteuid() != 0
        hint = "; only root can start the proxy" if denied else ""
        say(f"cannot start: {reason(error)}{hint}", ERROR)
        return FAILED
    if congestion_control is not None:
        load_congestion_control(congestion_control)
    # Free the memory of the lists, which may be long. Squid reads its own copies.
    checked = replace(checked, lists=())
    environment = _environment(libraries, places, role, congestion_control, turns, without)
    supervisor = _Supervisor(configuration, places, squid, check_file, checked, prefixes, signals, role, mptcp_option)
    return supervisor.serve(environment)


def _status_of_refusal(checked: CheckedConfiguration, signals: RecordedSignals, start_time: float) -> int:
    """Return the exit status for a refused configuration. If a later start may succeed, first wait until
    _PAUSE_BEFORE_EXIT seconds after *start_time*."""
    if not all(map(waits_for_names, checked.errors)):
        return CONFIGURATION
    signals.record(STOP)
    remaining = max(0.0, start_time + _PAUSE_BEFORE_EXIT - time.monotonic())
    say(f"no name server answers: this program ends in {remaining:.0f} s; after a restart, a name server may answer")
    with wakeup_socket() as wakeup:
        signals.wait(remaining, wakeup, STOP)
    return 0 if signals.has(STOP) else FAILED


def squid_opens_mptcp(squid: Squid, role: Role) -> bool:
    """Return whether Squid's own option ``mptcp`` makes its listeners MPTCP sockets. If so, the preload library does
    not replace the listeners, but still sets their congestion control and has its other effects. A relay's listeners
    use plain TCP."""
    return squid.has_mptcp_option and role is Role.PROXY


def load_congestion_control(name: str) -> None:
    """Make the kernel load the module of congestion control *name*. This needs CAP_NET_ADMIN, which Squid may have
    dropped when it opens connections. If the kernel has no such module, the preload library reports this."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def _environment(
    libraries: Sequence[Path],
    places: Places,
    role: Role,
    congestion_control: str | None,
    turns: str,
    without: Collection[str] = (),
) -> dict[str, str]:
    inherited = os.environ.get("LD_PRELOAD")
    variables = {**os.environ, "LD_PRELOAD": ":".join([*map(str, libraries), *([inherited] if inherited else [])])}
    own_names = ("LISTEN_PORTS", "PARENTS", "CONGESTION", "TURNS", "WITHOUT", "COUNTERS")
    # Hide systemd's variables from Squid: Debian's Squid would report readiness before it listens.
    for name in (*(f"MPTCP_{each}" for each in own_names), "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        variables.pop(name, None)
    if role is Role.PROXY:
        variables["MPTCP_LISTEN_PORTS"] = str(places.listen_ports)
    else:
        variables["MPTCP_PARENTS"] = str(places.parents)
    if congestion_control is not None:
        variables["MPTCP_CONGESTION"] = congestion_control
    variables["MPTCP_TURNS"] = turns
    variables["MPTCP_COUNTERS"] = str(places.counters)
    if without:
        variables["MPTCP_WITHOUT"] = ",".join(sorted(without))
    return variables


class _Supervisor:
    """Supervises one run of Squid. Each run needs a new object."""

    def __init__(
        self,
        configuration: Path,
        places: Places,
        squid: Squid,
        check_file: Callable[[Callable[[], bool]], CheckedConfiguration],
        checked: CheckedConfiguration,
        prefixes: frozenset[Network],
        signals: RecordedSignals,
        role: Role,
        mptcp_option: bool,
    ) -> None:
        self._configuration = configuration
        self._places = places
        self._squid = squid
        self._check = check_file
        self._parents = checked.parents
        self._configured_listeners = checked.listeners
        """The listeners in the configuration that Squid has read or will read at its next reload."""
        self._workers = checked.workers
        self._mptcp_option = mptcp_option
        self._parents_file = ParentsFile(places) if role is Role.RELAY else None
        self._parents_watch = ParentsWatch() if role is Role.RELAY else None
        self._signals = signals
        self._reporter = Reporter(places, role)
        self._listeners = ListenersWatch(
            places, role, self._reporter, checked.workers.processes, checked.listeners, checked.workers.count
        )
        trial = Trial(squid.parse_command(places.configuration_in_force, places.service_name))
        self._addresses = AddressesWatch(places, self._reporter, prefixes, trial)
        self._reload_unconfirmed = False
        """Whether a reload was accepted, and it is not yet known whether Squid listens after it."""
        self._pending = PendingSignals(checked.workers.processes, all_listen=self._listeners.all_listen)
        self._must_restart = False
        self._logs = Logs(places.logs)
        self._next_log_check = time.monotonic() + _LOG_INTERVAL

    def serve(self, environment: dict[str, str]) -> int:
        with selectors.DefaultSelector() as selector, address_change_socket() as addresses, wakeup_socket() as wakeup:
            self._signals.record((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            raise_descriptor_limit()
            adopt_orphans()
            if self._parents_file is not None:
                self._parents_file.start(self._parents)
            if self._parents_watch is not None:
                self._parents_watch.start(self._configured_listeners)
            # Start a new session: otherwise a terminal would send Ctrl-C also to Squid, which must get the signal only
            # once, from this process.
            process = subprocess.Popen(
                self._command(), env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                protocol = ", Multipath TCP with its own option mptcp" if self._mptcp_option else ""
                say(
                    f"started Squid {self._squid.version} (process {process.pid}) with {self._configuration},"
                    f" {self._workers}{protocol}"
                )
                squid_end = os.pidfd_open(process.pid)
                for each in (wakeup, addresses, squid_end):
                    selector.register(each, selectors.EVENT_READ)
                while process.poll() is None and not self._must_restart:
                    ready = {key.fileobj for key, _ in selector.select(self._max_wait())}
                    if wakeup in ready:
                        wakeup.recv(4096)
                    if addresses in ready:
                        _drain(addresses)
                        self._addresses.schedule_check()
                    self._reporter.ping_watchdog()
                    self._handle_signals(process)
                    self._run_due_checks(process)
                    self._send_pending_signals(process)
                os.close(squid_end)
            finally:
                # Also end Squid, which would otherwise keep the ports without a supervisor.
                self._addresses.end()
                end_all_children()
                self._remove_shared_files()
            return FAILED if self._must_restart else self._exit_status(process.returncode, wakeup)

    def _remove_shared_files(self) -> None:
        try:
            remove_shared_files(self._places)
        except OSError as error:
            say(f"cannot remove the files that Squid's workers shared: {reason(error)}", WARNING)

    def _command(self) -> list[str]:
        # With -d0, Squid also prints fatal messages to stderr, and keeps stderr open for the preload libraries.
        command = [self._squid.path, "--foreground", "-d0"]
        return [*command, "-n", self._places.service_name, "-f", str(self._places.configuration_in_force)]

    def _max_wait(self) -> float:
        """Return how many seconds the main loop may wait for events."""
        if self._signals:
            return 0.0
        if self._pending:
            return _READY_INTERVAL
        # Do not check listeners while Squid stops, because it closes them first.
        while_serving = [] if self._pending.stopping else [self._addresses.next_check, self._listeners.next_check]
        due_times = [self._next_log_check, self._reporter.next_ping, *while_serving]
        return max(0.0, min(each for each in due_times if each is not None) - time.monotonic())

    def _handle_signals(self, process: subprocess.Popen[bytes]) -> None:
        arrived = set()
        while self._signals:
            arrived.add(self._signals.pop())
        for number in STOP:
            if number in arrived:
                self._pending.stop(number, time.monotonic())
        # Several SIGHUPs may arrive during a long check. Reload only once for all of them.
        if signal.SIGHUP in arrived and not self._pending.stopping:
            self._reload(process)

    def _is_check_cancelled(self, process: subprocess.Popen[bytes]) -> bool:
        self._reporter.ping_watchdog()
        return self._signals.has(STOP) or process.poll() is not None

    def _reload(self, process: subprocess.Popen[bytes]) -> None:
        self._reporter.reload_begins()
        try:
            checked = self._check(partial(self._is_check_cancelled, process))
            if checked.errors:
                others = len(checked.errors) - 1
                hint = f" (and {others} more, see: mptcp-proxy check --config {self._configuration})" if others else ""
                self._refuse_reload(f"{checked.errors[0]}{hint}")
                return
            if problem := reload_obstacle(checked.workers, self._workers.count):
                self._refuse_reload(str(problem))
                return
            prefixes = local_prefixes()
            make_directories(self._places, checked)
            install(self._places, checked, prefixes, self._workers.count, self._mptcp_option)
        except CheckCancelledError:
            why = "Squid is stopping, or has ended"
            say(f"reload aborted: {why}")
            self._reporter.reload_ends(why)
            return
        except SYSTEM_ERRORS as error:
            self._refuse_reload(reason(error))
            return
        self._addresses.record_list(prefixes)
        self._configured_listeners = checked.listeners
        self._reload_unconfirmed = True
        if self._parents_file is not None:
            self._parents_file.set_parents(checked.parents)
        if self._parents_watch is not None:
            self._parents_watch.set_listeners(checked.listeners)
        self._pending.add(signal.SIGHUP)
        for note in checked.notes:
            say(note)
        if checked.workers.count != self._workers.count:
            workers = checked.workers
            why = f" ({workers.reason})" if workers.reason else ""
            say(f"workers {workers.count}{why}: from the next start on; until then {self._workers.count}", WARNING)
        # _send_pending_signals sends SIGHUP when Squid is ready for it.
        say(f"reload accepted: {self._configuration}")

    def _refuse_reload(self, why: str) -> None:
        say(f"reload refused, the old settings stay in force: {why}", ERROR)
        # The outcome of an earlier reload may still be unknown. It must not be reported for this reload.
        self._reload_unconfirmed = False
        self._reporter.reload_ends(why)

    def _run_due_checks(self, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if self._pending.stopping:
            self._addresses.end()
        else:
            if self._addresses.check():
                self._pending.add(signal.SIGHUP)
            self._check_listeners(process.pid)
        if self._parents_watch is not None:
            self._reporter.report_parents(self._parents_watch.summary)
        if now >= self._next_log_check:
            self._next_log_check = now + _LOG_INTERVAL
            reap(process.pid)
            if self._logs.rotate_and_report():
                self._pending.add(signal.SIGUSR1)
            self._reporter.set_problem("logs", f"the disk of {self._places.logs} is full" if self._logs.full else "")

    def _check_listeners(self, squid: int) -> None:
        unconfirmed = self._listeners.check(squid)
        # The check takes some time. If another reload was requested during it, do not report the earlier outcome.
        is_outdated = self._signals.has((signal.SIGHUP,)) or signal.SIGHUP in self._pending
        if unconfirmed is not None and self._reload_unconfirmed and not is_outdated:
            self._reload_unconfirmed = False
            self._reporter.reload_ends(unconfirmed=unconfirmed)
        if self._listeners.must_restart(squid):
            self._must_restart = True
            say(
                "Squid runs, and has not listened on any port for long: it is ended, so that systemd restarts it", ERROR
            )

    def _send_pending_signals(self, process: subprocess.Popen[bytes]) -> None:
        """Send Squid the pending signals for which its first process and all workers are ready."""
        now = time.monotonic()
        for number in self._pending.ready_signals(process.pid, now):
            process.send_signal(number)
            if number == signal.SIGHUP:
                self._listeners.expect_change(self._configured_listeners)

    def _exit_status(self, status: int, wakeup: socket.socket) -> int:
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        status = 128 - status if status < 0 else status
        if self._pending.stopping:
            say(f"Squid has ended ({cause})")
            return 0 if status in _STOPPED_WHILE_STARTING else status
        say(f"Squid ended by itself ({cause}); the reason is above or in {self._places.logs / 'cache.log'}", ERROR)
        if status == FAILED and self._listeners.ever_listened:
            self._pause_before_exit(wakeup)
        if self._signals.has(STOP):
            say("a stop was requested: Squid is not restarted")
            return 0
        return status or FAILED

    def _pause_before_exit(self, wakeup: socket.socket) -> None:
        """Wait before the exit, unless a stop is requested. Squid ends if its only worker has ended repeatedly. After
        an immediate restart of the unit, the same would happen within seconds, and systemd would soon mark the unit as
        failed."""
        self._listeners.report_end()
        say(f"this program ends in {_PAUSE_BEFORE_EXIT:g} s, so that systemd does not restart it too often")
        self._reporter.ping_watchdog()
        self._signals.wait(_PAUSE_BEFORE_EXIT, wakeup, STOP)


def _drain(events: socket.socket) -> None:
    while True:
        try:
            if not events.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            # ENOBUFS: the kernel dropped messages, so addresses have changed.
            return
