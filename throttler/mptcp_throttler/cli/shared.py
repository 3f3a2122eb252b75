# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions for several commands: requests to the daemon, and messages on standard error."""

from __future__ import annotations

import grp
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptcp_common import journal, status_client
from mptcp_common.problems import DocumentError, Problem, Severity
from mptcp_common.reasons import reason

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.policy.model import Policy


class Unanswered(Exception):
    """The daemon refused a request or is too old for it; ``str()`` gives the reason in one line."""


class Absent(Unanswered):
    """No daemon answers at the status socket."""


def complain(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def mistake(option: str, message: str) -> DocumentError:
    """Return the error for a wrong value of a command's *option*."""
    return DocumentError([Problem(option, 0, 0, "", None, message)])


def policy_with_warnings(path: Path, settings: Settings | None, *, with_notes: bool = False) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, problems = read_policy(path, settings)
    say_problems(each for each in problems if with_notes or each.severity is Severity.WARNING)
    return policy


def say_problems(problems: Iterable[Problem]) -> None:
    """Print warnings and notes."""
    for each in problems:
        journal.say(each, journal.WARNING if each.severity is Severity.WARNING else journal.INFO)


def ask_daemon(path: Path, request: Mapping[str, object], expected: str) -> dict[str, Any]:
    """Return the answer to *request*, which must have the key *expected*. Raises Unanswered."""
    with answering(path):
        answer = status_client.ask(path, request)
    if "error" in answer:
        raise Unanswered(answer["error"])
    if "schema" not in answer or expected not in answer:
        raise Unanswered("the daemon is older than this command and answers no such request; restart it")
    return answer


@contextmanager
def answering(path: Path) -> Iterator[None]:
    """Turn an OSError within into Absent, whose text explains why no daemon answers at the status socket *path*."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Absent(f"no daemon answers at {path}; is it running?") from error
    except PermissionError as error:
        try:
            group = grp.getgrgid(path.stat().st_gid).gr_name
        except (OSError, KeyError):
            group = "that owns it"
        raise Absent(f"you may not ask {path}: it answers root and the group {group}") from error
    except TimeoutError as error:
        raise Absent(f"the daemon at {path} does not answer in time") from error
    except OSError as error:
        raise Absent(f"ask {path}: {reason(error)}") from error


def say_unknown_names(path: Path, wanted: Mapping[str, object]) -> None:
    """After an empty answer, report a ``rule`` or ``path`` of *wanted* that the policy in force lacks."""
    if wanted.keys().isdisjoint(("rule", "path")):
        return
    try:
        policy = ask_daemon(path, {"query": "summary"}, "policy")["policy"]
        names = {"rule": policy["rules"], "path": [each["path"] for each in policy["paths_in_words"]]}
    except (Unanswered, KeyError):
        return  # the daemon is too old or has just ended; the request itself was answered
    for kind, known in names.items():
        if kind in wanted and wanted[kind] not in known:
            those = ", ".join(known) or "none"
            journal.say(f"note: the policy in force has no {kind} {wanted[kind]}; its {kind}s: {those}")
