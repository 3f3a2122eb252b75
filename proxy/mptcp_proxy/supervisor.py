# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy run``: starts Squid with the preload libraries, and protects it from bad configurations.

Squid needs a supervisor because, on SIGHUP, it closes its listeners, reads its file, and exits if the file is bad. The
supervisor checks the file first, refuses a bad file, and keeps the old settings in force. Squid reads the checked copy,
so a worker that Squid restarts never reads a file that the operator is editing.

Signals: SIGTERM lets transfers finish (shutdown_lifetime), SIGINT does not wait, SIGHUP reloads.

The exit status is Squid's, with two exceptions. It is 0 if the stop arrived while Squid was starting or after Squid had
ended. It is never 0 if Squid ended by itself. For a bad configuration, ``mptcp_common.exit_status`` defines the status;
if the only problem is that no name server answers, the status makes systemd try again.
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
from .configuration.check import Checked, check
from .configuration.complaints import waits_for_names
from .configuration.workers import not_by_reload
from .installation import install, install_library, make_directories, remove_shared_files, write
from .listeners_watch import ListenersWatch
from .listening import listening_now, taken_by
from .log_files import Logs
from .noted import NotedSignals, wakeup_socket
from .offspring import adopt_orphans, end_all_children, raise_descriptor_limit, reap
from .own_addresses import TROUBLE, Network, local_prefixes, watch
from .parents import Follower
from .parents_alive import ParentsWatch
from .pending_signals import STOP, PendingSignals
from .places import Places, Role
from .problem import Problem
from .process import pid_in
from .reported import Reported, say
from .squid import Squid, UnwantedError, installed
from .trial import Trial

_LOG_INTERVAL = 10.0
"""Seconds between two checks of the logs."""
_STOPPED_WHILE_STARTING = (1, *(128 + number for number in STOP))
"""Exit statuses of a Squid that was stopped while it or a worker was still starting. They do not count as a failure."""
_PAUSE_BEFORE_EXIT = 15.0
"""Seconds to wait before the exit after Squid has failed. So five failed starts take longer than a minute, which is the
start limit interval in the project's units."""
_READY_INTERVAL = 0.1
"""Seconds between two checks whether Squid is ready for a pending signal."""


def obstacles(places: Places, checked: Checked) -> Iterator[Problem]:
    """Yield the problems that prevent a start although the configuration is good."""
    if pid := pid_in(places.pid_file, "squid"):
        yield Problem(
            f"a proxy of this name runs already (process {pid}, {places.pid_file});"
            f" stop it with: kill {pid}, or give this one another --service-name"
        )
        return
    sockets = listening_now()
    for listener in checked.listeners:
        if owner := taken_by(listener.host, listener.port, sockets):
            statement = listener.statement
            yield Problem(f"port {listener} is in use by {owner}", statement.file, statement.number, "a free port")


def run(
    configuration: Path,
    places: Places,
    signals: NotedSignals,
    congestion_control: str | None,
    *,
    role: Role = Role.PROXY,
    allow_open: bool = False,
    turns: str = "fair",
    without: frozenset[str] = frozenset(),
) -> int:
    """Serve until a stop is requested. Return the exit status. *congestion_control*: None for the host's own.
    *allow_open*: do not judge which clients the configuration serves. *turns*: "fair" or "kernel" (shim/turns).
    *without*: a subset of ``shim.FEATURES``."""
    began = time.monotonic()
    squid = installed()
    if squid is not None and squid.has_whole_uploads:
        without |= {"zero-read"}
    # Handle SIGTERM: by default it would leave a check's temporary files behind.
    signals.note((signal.SIGTERM,))

    def check_file(is_unwanted: Callable[[], bool]) -> Checked:
        return check(
            configuration, places.service_name, squid, role=role, allow_open=allow_open, is_unwanted=is_unwanted
        )

    try:
        checked = check_file(partial(signals.has, STOP))
        problems = checked.problems if checked.errors else (*checked.problems, *obstacles(places, checked))
    except UnwantedError:
        say("a stop was requested: Squid is not started")
        return DONE
    except TROUBLE as error:
        say(f"cannot check {configuration}: {reason(error)}", ERROR)
        return FAILED
    for problem in problems:
        say(problem, WARNING if problem.warning else ERROR)
    if checked.errors:
        return _refused(checked, signals, began)
    for note in checked.notes:
        say(note)
    if squid is None or any(not problem.warning for problem in problems):
        return FAILED
    try:
        make_directories(places, checked)
        # Files of these names would keep Squid from starting, even if another user created them.
        remove_shared_files(places)
        names = shim.needed(shim.left_out(turns, without))
        libraries = [install_library(places, shim.library(name)) for name in names]
        prefixes = local_prefixes()
        option = by_option(squid, role)
        install(places, checked, prefixes, checked.workers.count, option)
        # Create a new file at each start, because a process of an earlier Squid may still count in the old file.
        write(places.counters, library_counters.NONE, 0o644)
    except shim.ShimError as error:
        say(error, ERROR)
        return FAILED
    except TROUBLE as error:
        denied = isinstance(error, PermissionError) and os.geteuid() != 0
        hint = "; the proxy must be started by root" if denied else ""
        say(f"cannot start: {reason(error)}{hint}", ERROR)
        return FAILED
    if congestion_control is not None:
        load_congestion_control(congestion_control)
    # Free the lists, which may be long: Squid has its copies now.
    checked = replace(checked, lists=())
    environment = _environment(libraries, places, role, congestion_control, turns, without)
    supervisor = _Supervisor(configuration, places, squid, check_file, checked, prefixes, signals, role, option)
    return supervisor.serve(environment)


def _refused(checked: Checked, signals: NotedSignals, began: float) -> int:
    """Return the exit status of a refused start that began at *began*. Wait first if a later start may succeed."""
    if not all(map(waits_for_names, checked.errors)):
        return CONFIGURATION
    signals.note(STOP)
    rest = max(0.0, began + _PAUSE_BEFORE_EXIT - time.monotonic())
    say(f"no name server answers: this program ends in {rest:.0f} s, and a restart may find a name server")
    with wakeup_socket() as wakeup:
        signals.wait(rest, wakeup, STOP)
    return 0 if signals.has(STOP) else FAILED


def by_option(squid: Squid, role: Role) -> bool:
    """Return whether Squid itself opens its listeners for Multipath TCP. If so, the preload library does not replace
    the listeners, but still sets their congestion control and has all its other effects. A relay's listeners use plain
    TCP."""
    return squid.multipath and role is Role.PROXY


def load_congestion_control(name: str) -> None:
    """Make the kernel load congestion control *name*. This needs CAP_NET_ADMIN, which Squid may lack later; a relay
    opens connections when it is no longer root. If the kernel has no such module, the preload library reports it."""
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
    before = os.environ.get("LD_PRELOAD")
    variables = {**os.environ, "LD_PRELOAD": ":".join([*map(str, libraries), *([before] if before else [])])}
    # Debian's Squid reports readiness to systemd before it listens.
    ours = ("LISTEN_PORTS", "PARENTS", "CONGESTION", "TURNS", "WITHOUT", "COUNTERS")
    for name in (*(f"MPTCP_{each}" for each in ours), "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
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
    """Supervises one run of Squid. An object cannot be used again for another run."""

    def __init__(
        self,
        configuration: Path,
        places: Places,
        squid: Squid,
        check_file: Callable[[Callable[[], bool]], Checked],
        checked: Checked,
        prefixes: frozenset[Network],
        signals: NotedSignals,
        role: Role,
        option: bool,
    ) -> None:
        self._configuration = configuration
        self._places = places
        self._squid = squid
        self._check = check_file
        self._parents = checked.parents
        self._listening_on = checked.listeners
        """The listeners of the configuration that Squid has read or will read next."""
        self._workers = checked.workers
        self._option = option
        self._follower = Follower(places) if role is Role.RELAY else None
        self._parents_watch = ParentsWatch() if role is Role.RELAY else None
        self._signals = signals
        self._reported = Reported(places, role)
        self._listeners = ListenersWatch(
            places, role, self._reported, checked.workers.processes, checked.listeners, checked.workers.count
        )
        trial = Trial(squid.parse_command(places.configuration_in_force, places.service_name))
        self._addresses = AddressesWatch(places, self._reported, prefixes, trial)
        self._reloads = False
        """Whether a reload was accepted after which Squid has not been seen to listen yet."""
        self._pending = PendingSignals(checked.workers.processes, all_listen=self._listeners.all_listen)
        self._deserted = False
        self._logs = Logs(places.logs)
        self._logs_due = time.monotonic() + _LOG_INTERVAL

    def serve(self, environment: dict[str, str]) -> int:
        with selectors.DefaultSelector() as selector, watch() as addresses, wakeup_socket() as wakeup:
            self._signals.note((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            raise_descriptor_limit()
            adopt_orphans()
            if self._follower is not None:
                self._follower.start(self._parents)
            if self._parents_watch is not None:
                self._parents_watch.start(self._listening_on)
            # Start a new session: a terminal sends Ctrl-C to all processes of a session, but Squid must get the signal
            # only once, from this process.
            process = subprocess.Popen(
                self._command(), env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                what = f"{self._configuration}, {self._workers}"
                how = ", Multipath TCP by its own option mptcp" if self._option else ""
                say(f"started Squid {self._squid.version} (process {process.pid}) with {what}{how}")
                ended = os.pidfd_open(process.pid)
                for each in (wakeup, addresses, ended):
                    selector.register(each, selectors.EVENT_READ)
                while process.poll() is None and not self._deserted:
                    ready = {key.fileobj for key, _ in selector.select(self._patience())}
                    if wakeup in ready:
                        wakeup.recv(4096)
                    if addresses in ready:
                        _drain(addresses)
                        self._addresses.changed()
                    self._reported.give_sign_of_life()
                    self._act_on_signals(process)
                    self._act_on_time(process)
                    self._deliver(process)
                os.close(ended)
            finally:
                # End Squid as well: without this process it would hold the ports without a supervisor.
                self._addresses.end()
                end_all_children()
                self._tidy()
            return FAILED if self._deserted else self._exit_status(process.returncode, wakeup)

    def _tidy(self) -> None:
        try:
            remove_shared_files(self._places)
        except OSError as error:
            say(f"cannot remove the files that Squid's workers shared: {reason(error)}", WARNING)

    def _command(self) -> list[str]:
        # -d0: Squid also prints fatal messages to stderr, and keeps stderr open for the preload libraries.
        command = [self._squid.path, "--foreground", "-d0"]
        return [*command, "-n", self._places.service_name, "-f", str(self._places.configuration_in_force)]

    def _patience(self) -> float:
        if self._signals:
            return 0.0
        if self._pending:
            return _READY_INTERVAL
        # Do not check listeners while Squid stops, because it closes them first.
        serving = [] if self._pending.stopping else [self._addresses.due, self._listeners.due]
        due = [self._logs_due, self._reported.due, *serving]
        return max(0.0, min(each for each in due if each is not None) - time.monotonic())

    def _act_on_signals(self, process: subprocess.Popen[bytes]) -> None:
        arrived = set()
        while self._signals:
            arrived.add(self._signals.pop())
        for number in STOP:
            if number in arrived:
                self._pending.stop(number, time.monotonic())
        # Reload once for all SIGHUPs that arrived, because a check may take long.
        if signal.SIGHUP in arrived and not self._pending.stopping:
            self._reload(process)

    def _is_unwanted(self, process: subprocess.Popen[bytes]) -> bool:
        self._reported.give_sign_of_life()
        return self._signals.has(STOP) or process.poll() is not None

    def _reload(self, process: subprocess.Popen[bytes]) -> None:
        self._reported.reload_begins()
        try:
            checked = self._check(partial(self._is_unwanted, process))
            if checked.errors:
                more = len(checked.errors) - 1
                rest = f" (and {more} more, see: mptcp-proxy check --config {self._configuration})" if more else ""
                self._refuse_reload(f"{checked.errors[0]}{rest}")
                return
            if problem := not_by_reload(checked.workers, self._workers.count):
                self._refuse_reload(str(problem))
                return
            prefixes = local_prefixes()
            make_directories(self._places, checked)
            install(self._places, checked, prefixes, self._workers.count, self._option)
        except UnwantedError:
            why = "Squid is stopping, or has ended"
            say(f"reload aborted: {why}")
            self._reported.reload_ends(why)
            return
        except TROUBLE as error:
            self._refuse_reload(reason(error))
            return
        self._addresses.installed(prefixes)
        self._listening_on = checked.listeners
        self._reloads = True
        if self._follower is not None:
            self._follower.follow(checked.parents)
        if self._parents_watch is not None:
            self._parents_watch.follow(checked.listeners)
        self._pending.add(signal.SIGHUP)
        for note in checked.notes:
            say(note)
        if checked.workers.count != self._workers.count:
            workers = checked.workers
            why = f" ({workers.reason})" if workers.reason else ""
            say(f"workers {workers.count}{why}: not before the next start; until then {self._workers.count}", WARNING)
        # Squid gets SIGHUP when it is ready for it (see _deliver).
        say(f"reload accepted: {self._configuration}")

    def _refuse_reload(self, why: str) -> None:
        say(f"reload refused, the old settings stay in force: {why}", ERROR)
        # The listeners may still show the outcome of an earlier reload. It must not be reported for this one.
        self._reloads = False
        self._reported.reload_ends(why)

    def _act_on_time(self, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if self._pending.stopping:
            self._addresses.end()
        else:
            if self._addresses.look():
                self._pending.add(signal.SIGHUP)
            self._check_listeners(process.pid)
        if self._parents_watch is not None:
            self._reported.parents(self._parents_watch.summary)
        if now >= self._logs_due:
            self._logs_due = now + _LOG_INTERVAL
            reap(process.pid)
            if self._logs.look():
                self._pending.add(signal.SIGUSR1)
            self._reported.trouble("logs", f"the disk of {self._places.logs} is full" if self._logs.full else "")

    def _check_listeners(self, squid: int) -> None:
        absent = self._listeners.look(squid)
        # The check takes some time. If another reload was requested during it, do not report the earlier outcome.
        is_outdated = self._signals.has((signal.SIGHUP,)) or signal.SIGHUP in self._pending
        if absent is not None and self._reloads and not is_outdated:
            self._reloads = False
            self._reported.reload_ends(in_doubt=absent)
        if self._listeners.deserted(squid):
            self._deserted = True
            say("Squid runs, and has not listened on any port for long: it is ended, so systemd restarts it", ERROR)

    def _deliver(self, process: subprocess.Popen[bytes]) -> None:
        """Send Squid the pending signals for which its first process and all workers are ready."""
        now = time.monotonic()
        for number in self._pending.due(process.pid, now):
            process.send_signal(number)
            if number == signal.SIGHUP:
                self._listeners.expect_change(self._listening_on)

    def _exit_status(self, status: int, wakeup: socket.socket) -> int:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        status = 128 - status if status < 0 else status
        if self._pending.stopping:
            say(f"Squid has ended ({how})")
            return 0 if status in _STOPPED_WHILE_STARTING else status
        say(f"Squid ended by itself ({how}); the reason is above or in {self._places.logs / 'cache.log'}", ERROR)
        if status == FAILED and self._listeners.ever_served:
            self._pause_before_exit(wakeup)
        if self._signals.has(STOP):
            say("a stop was requested: Squid is not restarted")
            return 0
        return status or FAILED

    def _pause_before_exit(self, wakeup: socket.socket) -> None:
        """Wait before the exit, unless a stop is requested. Squid has stopped restarting its only worker, because the
        worker ended repeatedly. After an immediate restart of the unit, the same would happen within seconds, and
        systemd would soon mark the unit as failed."""
        self._listeners.gone()
        say(f"this program ends in {_PAUSE_BEFORE_EXIT:g} s, so that systemd does not restart it too often")
        self._reported.give_sign_of_life()
        self._signals.wait(_PAUSE_BEFORE_EXIT, wakeup, STOP)


def _drain(events: socket.socket) -> None:
    while True:
        try:
            if not events.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            # ENOBUFS: messages were lost. This also means that something changed.
            return
