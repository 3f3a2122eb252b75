# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds all mistakes in a configuration at once, without starting Squid or changing any file."""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mptcp_common.reasons import reason

from ..own_addresses import SYSTEM_ERRORS, local_prefixes
from ..own_addresses import render as render_addresses
from ..places import SHARED_MEMORY, Places, Role, service_name_problem
from ..problem import Problem, errors
from ..process import pid_in
from ..squid import Squid
from .access import OVERRIDE, as_warnings, claimed_name_problems, open_proxy_problems, port_problems
from .by_version import adapt, removed_directive_problems
from .check_header import check_header_problems
from .doubts import doubts, nested_if_problems
from .exposure import exposure_problems
from .listeners import MPTCP, Listener, listener_problems, listeners, states_a_port, with_option
from .lists import CopiedConfiguration, CopiedList, copy_lists, replace_names, space_problems
from .parents import Parent, parent_problems, parents
from .sandbox import unit_problems
from .source import (
    ALLOWED_LENGTH,
    MAX_LINE,
    PhysicalLine,
    Statement,
    all_statements,
    is_command,
    last_with_value,
    read_with_includes,
    render,
    size,
    statements,
)
from .squid_problems import squid_problems
from .workers import Workers, requested_workers, shared_memory_problems, with_workers, without_workers, worker_problems

MAX_SEARCH_SECONDS = 20.0
"""Seconds after which Squid is not run again to find further mistakes. ``mptcp-proxy reload`` waits longer than this
and the maximum time of the last run (``squid.PARSE_SECONDS``) together."""
SERVICE_STOP_SECONDS = 45
"""Seconds after which systemd kills a stopping unit (TimeoutStopSec)."""
MAX_SHUTDOWN_SECONDS = 38
"""Maximum of shutdown_lifetime. A starting Squid may need five more seconds until it can handle the signal."""
_TIME_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
NO_SQUID = Problem("Squid is not installed: apt install squid")


@dataclass(frozen=True, slots=True)
class CheckedConfiguration:
    """A configuration that was read and checked."""

    lines: tuple[PhysicalLine, ...]
    """The lines without the directive about workers. They name the copies of lists instead of the lists."""
    listeners: tuple[Listener, ...]
    effective_user: str
    workers: Workers
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    """Directives that were left out because this version of Squid always behaves in this way."""
    parents: tuple[Parent, ...] = ()
    """The parents of a relay. Empty for a proxy, which uses plain TCP to its parents, as to origin servers."""
    lists: tuple[CopiedList, ...] = ()
    """The lists, with the content of the copies that *lines* name."""
    unit_warnings: tuple[Problem, ...] = ()
    """The warnings among *problems* that concern only the unit, not this process."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        return errors(self.problems)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({listener.port for listener in self.listeners}))

    def render(self, workers: int, mptcp_option: bool = False) -> bytes:
        """Return the content of the file that Squid reads. *workers*: the number of workers with which Squid was
        started. If it changed at a reload, a worker that Squid restarts would not find the other workers.
        *mptcp_option*: use Squid's own option mptcp."""
        lines = with_option(self.lines, MPTCP) if mptcp_option else self.lines
        return render(with_workers(lines, workers))


def check(
    path: Path,
    service_name: str,
    squid: Squid | None,
    *,
    role: Role = Role.PROXY,
    allow_open: bool = False,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> CheckedConfiguration:
    """Read *path* with its includes and find all mistakes in it for *role*. *allow_open*: only warn if the
    configuration serves strangers, or if this is uncertain. *is_cancelled* is called repeatedly while Squid reads the
    file, which may take a minute. Raises CheckCancelledError when it returns True."""
    if problem := service_name_problem(service_name):
        return CheckedConfiguration((), (), "", Workers(), (problem,))
    lines, unreadable, includes = read_with_includes(path, service_name)
    places = Places(service_name)
    if not lines:
        return CheckedConfiguration(
            (), (), "", Workers(), unreadable or (Problem("the configuration is empty", str(path)),)
        )
    with_lists = copy_lists(lines, service_name, places.lists, (str(places.own_addresses),))
    all_directives = list(all_statements(with_lists.lines, service_name))
    directives = list(statements(with_lists.lines, service_name))
    found = tuple(listeners(directives))
    stated_user = last_with_value(directives, "cache_effective_user")
    user = stated_user.words[1] if stated_user else squid.default_user if squid else ""
    workers = requested_workers(directives, role, processors(), _usable_shared_memory(places, user))
    unit_warnings = tuple(unit_problems(path, lines, includes, service_name, role))
    adapted = adapt(with_lists.lines, all_directives, squid.version if squid else "")
    with tempfile.TemporaryDirectory(prefix="mptcp-proxy-check-") as directory:
        trial_paths = with_lists.write_copies(Path(directory))
        directives_with_trial_paths = [replace(each, text=replace_names(each.text, trial_paths)) for each in directives]
        problems = [
            *unreadable,
            *unit_warnings,
            *with_lists.problems,
            *space_problems(with_lists.lists, places.lists),
            *_problems_without_squid(
                directives_with_trial_paths, found, str(path), places, user, workers, role, allow_open
            ),
            *nested_if_problems(all_directives),
            *_line_length_problems(with_workers(with_option(adapted.lines, MPTCP), 2)),
            *adapted.problems,
            *removed_directive_problems(directives, squid.version if squid else ""),
        ]
        if squid is None:
            problems.append(NO_SQUID)
        else:
            parse = _parser(squid, places, Path(directory), trial_paths, is_cancelled)
            lines_without_commands = _without_commands(adapted.lines, all_directives)
            in_time = _before_deadline(MAX_SEARCH_SECONDS)
            problems.extend(
                squid_problems(lines_without_commands, service_name, parse, allow_open=allow_open, in_time=in_time)
            )
    problems = _with_original_names(problems, with_lists, trial_paths)
    relay_parents = tuple(parents(directives)) if role is Role.RELAY else ()
    checked_lines = without_workers(adapted.lines, all_directives)
    return CheckedConfiguration(
        checked_lines, found, user, workers, _in_order(problems, lines), adapted.notes, relay_parents,
        with_lists.lists, unit_warnings,
    )  # fmt: skip


def check_or_problem(
    path: Path, service_name: str, squid: Squid | None, *, role: Role = Role.PROXY, allow_open: bool = False
) -> CheckedConfiguration:
    """Return the result of :func:`check`. An error during the check becomes a problem of the result."""
    try:
        return check(path, service_name, squid, role=role, allow_open=allow_open)
    except SYSTEM_ERRORS as error:
        return CheckedConfiguration((), (), "", Workers(), (Problem(f"cannot be checked: {reason(error)}", str(path)),))


def _with_original_names(
    problems: Iterable[Problem], with_lists: CopiedConfiguration, trial_paths: Mapping[str, str]
) -> list[Problem]:
    """Return *problems* with the names of the operator's lists instead of the temporary files and the copies."""
    copies = {trial_path: copy for copy, trial_path in trial_paths.items()}
    return [
        with_lists.with_original_names(
            replace(each, text=replace_names(each.text, copies), file=replace_names(each.file, copies))
        )
        for each in problems
    ]


def _before_deadline(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def processors() -> int:
    """Return how many processors this process, and therefore Squid, may use (sched_getaffinity(2))."""
    return len(os.sched_getaffinity(0))


def shared_directory(places: Places) -> Path:
    """Return the directory of the shared memory of an instance's processes. A running service has a private one."""
    running = pid_in(places.pid_file, "squid")
    private_directory = Path(f"/proc/{running}/root{SHARED_MEMORY}")
    return private_directory if running and os.access(private_directory, os.R_OK) else SHARED_MEMORY


def shared_memory(service_name: str, directory: Path = SHARED_MEMORY, user: str = "") -> int:
    """Return how many bytes the instance *service_name* may use in *directory*: the free bytes, and those that its
    running Squid (as *user*) already uses. The result is 0 if the directory is missing or read-only (shm_overview(7)),
    and very large for a file system without a limit (tmpfs(5), ``size=0``)."""
    try:
        file_system = os.statvfs(directory)
    except OSError:
        return 0
    if file_system.f_flag & os.ST_RDONLY:
        return 0
    if not file_system.f_blocks:
        return sys.maxsize
    own_bytes = 0
    owners = {0, os.geteuid()}
    with suppress(KeyError):
        owners.add(pwd.getpwnam(user).pw_uid)
    for path in directory.glob(f"{service_name}-*.shm"):
        with suppress(OSError):
            found = path.lstat()
            # Other users may create files with such a name, or symbolic links to large files.
            if stat.S_ISREG(found.st_mode) and found.st_uid in owners:
                own_bytes += 512 * found.st_blocks
    return file_system.f_bavail * file_system.f_frsize + own_bytes


def _usable_shared_memory(places: Places, user: str) -> int:
    return shared_memory(places.service_name, shared_directory(places), user)


def _parser(
    squid: Squid, places: Places, directory: Path, trial_paths: Mapping[str, str], is_cancelled: Callable[[], bool]
) -> Callable[[Sequence[PhysicalLine]], str]:
    """Return a function that lets Squid parse lines, with temporary files instead of the list of this host's addresses
    and the directory of error pages. *trial_paths*: temporary paths of the copies of
    lists, by their names in the lines."""
    stand_ins = {each: directory / each.name for each in (places.own_addresses, places.error_pages)}
    stand_ins[places.own_addresses].write_text(render_addresses(local_prefixes()))
    stand_ins[places.error_pages].mkdir()
    # The lines may name each of these files with the service name or with the macro.
    spellings = {str(place): place for place in stand_ins}
    spellings |= {name.replace(places.service_name, "${service_name}"): place for name, place in spellings.items()}
    configuration = directory / "squid.conf"

    def parse(lines: Sequence[PhysicalLine]) -> str:
        with_stand_ins = []
        for line in lines:
            text = line.text
            for name, place in spellings.items():
                text = text.replace(name, str(stand_ins[place]))
            text = replace_names(text, trial_paths)
            with_stand_ins.append(replace(line, text=text))
        configuration.write_bytes(render(with_stand_ins))
        output = squid.parse(configuration, places.service_name, is_cancelled)
        # Squid repeats the statements in its output. Restore the names that the operator wrote.
        for place, stand_in in stand_ins.items():
            output = output.replace(str(stand_in), str(place))
        return replace_names(output, {trial_path: copy for copy, trial_path in trial_paths.items()})

    return parse


def _problems_without_squid(
    directives: Sequence[Statement],
    found: Sequence[Listener],
    file: str,
    places: Places,
    user: str,
    workers: Workers,
    role: Role,
    allow_open: bool,
) -> Iterator[Problem]:
    with_mptcp = role is Role.PROXY
    yield from listener_problems(
        found, file, states_a_port(directives), with_mptcp=with_mptcp, several_workers=workers.count > 1
    )
    if role is Role.RELAY:
        yield from parent_problems(directives, file)
    access = [*_command_problems(directives), *doubts(directives), *open_proxy_problems(directives)]
    yield from as_warnings(access) if allow_open else access
    yield from claimed_name_problems(directives)
    yield from port_problems(directives)
    yield from exposure_problems(directives, str(places.own_addresses), connects=role is Role.PROXY)
    yield from check_header_problems(directives)
    yield from _half_closed_problems(directives)
    yield from _full_disk_problems(directives)
    yield from _stop_problems(directives)
    yield from worker_problems(directives, processors())
    yield from shared_memory_problems(directives, _usable_shared_memory(places, user))
    yield from _user_problems(directives, user)
    yield from _directory_problems(directives, places)


def _without_commands(lines: Sequence[PhysicalLine], directives: Sequence[Statement]) -> list[PhysicalLine]:
    left_out = {number for each in directives if is_command(each) for number in range(each.first, each.last + 1)}
    return [replace(line, text="") if number in left_out else line for number, line in enumerate(lines)]


def _command_problems(directives: Sequence[Statement]) -> Iterator[Problem]:
    for statement in directives:
        if is_command(statement):
            yield Problem(
                f"{' '.join(statement.words)}: the output of a program cannot be checked, so the"
                " clients that it allows are unknown",
                statement.file,
                statement.number,
                allowed=f"names of files; to accept this: {OVERRIDE}",
            )


def _line_length_problems(lines: Sequence[PhysicalLine]) -> Iterator[Problem]:
    for line in lines:
        if (length := size(line.text)) > MAX_LINE:
            text = f"{line.text[:40]}...: with mptcp-proxy's additions, the line has {length} bytes; Squid splits it"
            yield Problem(text, line.file, line.number, allowed=ALLOWED_LENGTH)


def _half_closed_problems(directives: Sequence[Statement]) -> Iterator[Problem]:
    for statement in directives:
        if statement.words[:2] == ("half_closed_clients", "on"):
            yield Problem(
                "half_closed_clients on: a client can crash Squid by closing one half of its connection",
                statement.file,
                statement.number,
                allowed="off",
                warning=True,
            )


def _stop_problems(directives: Sequence[Statement]) -> Iterator[Problem]:
    statement = last_with_value(directives, "shutdown_lifetime")
    if statement is None:
        return
    value = re.fullmatch(r"([0-9]{1,9})(?: ([a-z]+?)s?)?", " ".join(statement.words[1:]).lower())
    if value and int(value[1]) * _TIME_UNITS.get(value[2] or "second", 0) > MAX_SHUTDOWN_SECONDS:
        yield Problem(
            f"{' '.join(statement.words)}: systemd kills the service after {SERVICE_STOP_SECONDS} s, and its transfers"
            " with it",
            statement.file,
            statement.number,
            allowed=f"at most {MAX_SHUTDOWN_SECONDS} seconds, or also a longer TimeoutStopSec= (systemctl edit)",
            warning=True,
        )


def _full_disk_problems(directives: Sequence[Statement]) -> Iterator[Problem]:
    for statement in directives:
        words = statement.words
        if words[:1] != ("access_log",) or len(words) < 2:
            continue
        # The log module "daemon" ignores on-error: an error of its pipe always ends the worker.
        by_daemon = words[1].startswith("daemon:")
        if by_daemon or (words[1].startswith(("/", "stdio:")) and "on-error=drop" not in words[2:]):
            yield Problem(
                f"{' '.join(words)}: if the disk is full, Squid ends the workers, and all transfers with them",
                statement.file,
                statement.number,
                allowed="access_log stdio:PATH on-error=drop"
                if by_daemon
                else f"on-error=drop right after {words[1]}, the rest after it (a format as logformat=NAME)",
                warning=True,
            )


def _user_problems(directives: Sequence[Statement], user: str) -> Iterator[Problem]:
    statement = last_with_value(directives, "cache_effective_user")
    file, line = (statement.file, statement.number) if statement else ("", None)
    mistake = ""
    try:
        if pwd.getpwnam(user).pw_uid == 0:
            mistake = "Squid refuses to serve as root"
    except KeyError:
        mistake = "there is no such user"
    if mistake and user:
        text = f"cache_effective_user {user}: {mistake}"
        yield Problem(text, file, line, allowed="an unprivileged user of this host")


def _directory_problems(directives: Sequence[Statement], places: Places) -> Iterator[Problem]:
    """Yield a problem for each log or pid file whose directory is missing. At its start, Squid would exit, but -k parse
    does not check this."""
    created = {places.runtime, places.logs}
    for statement in directives:
        if statement.directive not in ("access_log", "cache_log", "pid_filename") or len(statement.words) < 2:
            continue
        name = statement.words[1].removeprefix("stdio:").removeprefix("daemon:")
        directory = Path(name).parent
        if name.startswith("/") and directory not in created and not directory.is_dir():
            yield Problem(
                f"{' '.join(statement.words)}: there is no directory {directory}",
                statement.file,
                statement.number,
                allowed=f"a directory that exists; {places.runtime} and {places.logs} are created at the start",
            )


def _in_order(problems: Sequence[Problem], lines: Sequence[PhysicalLine]) -> tuple[Problem, ...]:
    positions = {(line.file, line.number): index for index, line in enumerate(lines)}
    return tuple(sorted(dict.fromkeys(problems), key=lambda p: positions.get((p.file, p.line or 0), -1)))
