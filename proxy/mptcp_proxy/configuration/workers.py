# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides how many workers Squid has: the number in squid.conf, otherwise one per processor. Pure.

Squid's own default is one worker, which is one thread on one processor. Several workers listen on the same ports, but
each has its own instance of some state, such as a cache_dir. So with several workers, the meaning of some directives
changes. If squid.conf has such a directive, the default is one worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..places import Role
from ..problem import Problem
from .listeners import with_option
from .source import PhysicalLine, Statement, last_with_value

DIRECTIVE = "workers"
_QUEUES = "worker-queues"
_REVIVAL = "hopeless_kid_revival_delay 10 seconds"
"""Time after which Squid again restarts a worker that has ended five times, each time within ten seconds. Squid's
default is an hour."""
MAX_WORKERS = 128
"""Maximum number of workers. Each takes at least 20 MB, so a larger number is a mistake."""
MIN_SHARED_MEMORY = 8_000_000
"""Minimum shared memory for several workers, bytes. Two workers took 2 MB in a measurement. Squid exits without it."""
_DEFAULT_CACHE_MEM = 256 << 20
"""Squid's default of cache_mem, bytes (from its documentation)."""
_UNITS = {"bytes": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


@dataclass(frozen=True, slots=True)
class Workers:
    """The number of workers, with the reason for it."""

    count: int = 1
    reason: str = ""
    """Reason for the number; empty if squid.conf states the number."""
    separate_statement: Statement | None = None
    """The first statement whose state each of several workers would keep separately, if any."""

    @property
    def processes(self) -> int:
        """Number of Squid's child processes: the workers, and with several workers a coordinator."""
        return self.count + (self.count > 1)

    def __str__(self) -> str:
        text = f"{self.count} worker{'s' * (self.count > 1)}"
        return f"{text} ({self.reason})" if self.reason else text


def first_separate_statement(directives: Sequence[Statement]) -> Statement | None:
    """Return the first statement whose meaning changes with several workers (Squid's documentation, "SMP")."""
    exclusive = _exclusive_cache_dir(directives)
    if exclusive is not None:
        return exclusive
    for statement in directives:
        match statement.words:
            # A worker does not know the nonces in other workers' challenges.
            case ("auth_param", "digest", *_):
                return statement
            # The rates apply to each worker separately.
            case ("delay_pools" | "client_delay_pools", number, *_) if number != "0":
                return statement
    return None


def _exclusive_cache_dir(directives: Sequence[Statement], shared: bool = False) -> Statement | None:
    """Return the first cache_dir whose files only one process may use. *shared*: return only a cache_dir whose
    directory several workers would use."""
    for each in directives:
        match each.words:
            case ("cache_dir", kind, *rest) if kind != "rock":
                may_differ = each.conditional or any("${process_" in word for word in rest)
                if not (shared and may_differ):
                    return each
    return None


def requested_workers(directives: Sequence[Statement], role: Role, processors: int, shared_memory: int) -> Workers:
    """Return the workers that *directives* request on a host with this number of usable *processors*. *shared_memory*:
    free bytes of shared memory, 0 if it is not writable. An invalid number counts as 1 (``worker_problems`` reports
    it)."""
    stated = last_with_value(directives, DIRECTIVE)
    separate = first_separate_statement(directives)
    if stated is not None:
        return Workers(_number(stated) or 1, separate_statement=separate)
    if role is Role.RELAY:
        return Workers(1, "a relay has one by default", separate)
    if separate is not None:
        return Workers(1, f"{' '.join(separate.words[:2])} is separate in each worker", separate)
    if shared_memory < MIN_SHARED_MEMORY:
        return Workers(1, "/dev/shm has no space for the shared memory of several workers")
    if shared_memory < MIN_SHARED_MEMORY + shared_cache(directives):
        return Workers(1, "/dev/shm has no space for cache_mem, which several workers share")
    return Workers(min(max(processors, 1), MAX_WORKERS), "one for each processor")


def shared_cache(directives: Sequence[Statement]) -> int:
    """Return how many bytes of shared memory the memory cache may take with several workers. Its files have their full
    size from the start, but take memory only when answers are stored. With ``cache deny all`` they take none, and with
    ``shared_memory_locking on`` all at the start (Squid's documentation; measured with 5.7)."""
    if _value(directives, "memory_cache_shared") == "off":
        return 0
    takes_memory = _may_cache(directives) or _value(directives, "shared_memory_locking") == "on"
    return _cache_mem(directives) if takes_memory else 0


def _may_cache(directives: Sequence[Statement]) -> bool:
    """Return whether Squid may store any answer. The first matching rule decides, or if none matches, the opposite of
    the last rule."""
    for each in directives:
        match each.words:
            case ("cache", "allow", *_):
                return True
            case ("cache", "deny", "all") if not each.conditional:
                return False
    return True


def _cache_mem(directives: Sequence[Statement]) -> int:
    number, unit = ([*_words(directives, "cache_mem"), "", ""])[:2]
    try:
        return int(float(number) * _UNITS[unit.lower() or "bytes"])
    except (ValueError, KeyError, OverflowError):
        return _DEFAULT_CACHE_MEM  # cache_mem is not stated, or Squid will refuse it


def _value(directives: Sequence[Statement], directive: str) -> str:
    return next(iter(_words(directives, directive)), "")


def _words(directives: Sequence[Statement], directive: str) -> tuple[str, ...]:
    stated = last_with_value(directives, directive)
    return stated.words[1:] if stated else ()


def shared_memory_problems(directives: Sequence[Statement], shared_memory: int) -> Iterator[Problem]:
    """Yield a warning if *shared_memory*, in free bytes, does not suffice for a stated number of workers. When
    /dev/shm is full, SIGBUS ends all workers repeatedly, until Squid gives up."""
    statement, cache = last_with_value(directives, DIRECTIVE), shared_cache(directives)
    if statement is None or (_number(statement) or 1) < 2:
        return
    needed = MIN_SHARED_MEMORY + cache
    if shared_memory < needed:
        with_cache = " and cache_mem" if cache else ""
        smaller_cache = "memory_cache_shared off, less cache_mem, " if cache else ""
        yield Problem(
            f"{' '.join(statement.words)}: their shared memory{with_cache} may take {_megabytes(needed)} of"
            f" /dev/shm, which has {_megabytes(shared_memory)}; Squid ends when /dev/shm is full",
            statement.file,
            statement.number,
            allowed=f"{smaller_cache}workers 1, or more free space",
            warning=True,
        )


def _megabytes(octets: int) -> str:
    return f"{round(octets / 1e6)} MB"


def reload_obstacle(workers: Workers, running: int) -> Problem | None:
    """Return why a Squid with this number of *running* workers cannot reload a configuration with *workers*; None if it
    can."""
    if workers.separate_statement is None or workers.count > 1 or running == 1:
        return None
    statement = workers.separate_statement
    text = f"{' '.join(statement.words[:2])}: each of the {running} workers would have its own; restart the proxy"
    return Problem(text, statement.file, statement.number)


def worker_problems(directives: Sequence[Statement], processors: int) -> Iterator[Problem]:
    """Yield the problems of a stated number of workers. Squid's own check reports text that is not a number."""
    stated = last_with_value(directives, DIRECTIVE)
    count = _number(stated) or 1 if stated else 1
    if count > 1 and (shared := _exclusive_cache_dir(directives, shared=True)):
        # Squid 5.7 starts, and all workers write into the same files.
        yield Problem(
            f"{' '.join(shared.words[:2])}: {count} workers would overwrite each other's files",
            shared.file,
            shared.number,
            allowed="workers 1, rock, or ${process_number} in the directory's name",
        )
    for statement in directives:
        if statement.directive != DIRECTIVE or len(statement.words) < 2:
            continue
        text, number = f"{DIRECTIVE} {statement.words[1]}", _number(statement)
        useful = max(processors, 1)
        allowed = f"1 to {MAX_WORKERS}; without this line: one for each processor, here {useful}"
        if number is not None and not 1 <= number <= MAX_WORKERS:
            yield Problem(f"{text}: not a number of workers", statement.file, statement.number, allowed)
        elif number is not None and number > useful:
            yield Problem(
                f"{text}: Squid may use only {useful} processor{'s' * (useful > 1)}, so more workers are not faster",
                statement.file,
                statement.number,
                warning=True,
            )


def without_workers(lines: Sequence[PhysicalLine], directives: Sequence[Statement]) -> tuple[PhysicalLine, ...]:
    """Return *lines*, from which *directives* were read, without the directive about workers."""
    removed = {n for each in directives if each.directive == DIRECTIVE for n in range(each.first, each.last + 1)}
    return tuple(replace(line, text="") if number in removed else line for number, line in enumerate(lines))


def with_workers(lines: Sequence[PhysicalLine], count: int) -> tuple[PhysicalLine, ...]:
    """Return *lines* with *count* workers, each with its own listening socket (SO_REUSEPORT).

    Otherwise Squid's coordinator binds one socket for all workers and keeps it until it ends. After a reload, it would
    keep a removed port open although no process accepts connections, and would ignore changed options. If Squid stops
    restarting its only worker, it exits, and systemd restarts it. With several workers, the coordinator would continue
    without workers for an hour, so _REVIVAL sets a shorter time; *lines* come after it and may override it.
    """
    # Insert at the beginning, because the last line may end in a backslash.
    first = PhysicalLine("", 0, f"{DIRECTIVE} {count}")
    return (first, PhysicalLine("", 0, _REVIVAL), *with_option(lines, _QUEUES)) if count > 1 else (first, *lines)


def _number(statement: Statement) -> int | None:
    try:
        return int(statement.words[1])
    except (IndexError, ValueError):
        return None
