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


class QueryError(Exception):
    """The daemon refused a request or does not support it; the text is the reason, in one line."""


class NoAnswerError(QueryError):
    """No daemon answers at the status socket."""


def print_error(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def option_error(option: str, message: str) -> DocumentError:
    """Return the error for a wrong value of a command's *option*."""
    return DocumentError([Problem(option, 0, 0, "", None, message)])


def policy_with_warnings(path: Path, settings: Settings | None, *, with_notes: bool = False) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, problems = read_policy(path, settings)
    print_problems(each for each in problems if with_notes or each.severity is Severity.WARNING)
    return policy


def print_problems(problems: Iterable[Problem]) -> None:
    """Print warnings and notes."""
    for each in problems:
        journal.say(each, journal.WARNING if each.severity is Severity.WARNING else journal.INFO)


def query_daemon(path: Path, request: Mapping[str, object], expected: str) -> dict[str, Any]:
    """Return the answer to *request*, which must have the key *expected*. Raises QueryError."""
    with translate_socket_errors(path):
        answer = status_client.ask(path, request)
    if "error" in answer:
        raise QueryError(answer["error"])
    if "schema" not in answer or expected not in answer:
        raise QueryError("the daemon is older than this command and does not support this request; restart it")
    return answer


@contextmanager
def translate_socket_errors(path: Path) -> Iterator[None]:
    """Raise NoAnswerError for an OSError, with the reason why no daemon answers at the status socket *path*."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoAnswerError(f"no daemon answers at {path}; is it running?") from error
    except PermissionError as error:
        try:
            group = grp.getgrgid(path.stat().st_gid).gr_name
        except (OSError, KeyError):
            group = "that owns it"
        raise NoAnswerError(f"permission denied: {path} accepts only root and the group {group}") from error
    except TimeoutError as error:
        raise NoAnswerError(f"the daemon at {path} does not answer in time") from error
    except OSError as error:
        raise NoAnswerError(f"query {path}: {reason(error)}") from error


def print_unknown_names(path: Path, request: Mapping[str, object]) -> None:
    """After an empty answer, report a ``rule`` or ``path`` of *request* that the policy in force lacks."""
    if request.keys().isdisjoint(("rule", "path")):
        return
    try:
        policy = query_daemon(path, {"query": "summary"}, "policy")["policy"]
        names = {"rule": policy["rules"], "path": [each["path"] for each in policy["paths_in_words"]]}
    except (QueryError, KeyError):
        return  # the daemon is too old or has just ended; the request itself was answered
    for kind, known in names.items():
        if kind in request and request[kind] not in known:
            known_text = ", ".join(known) or "none"
            journal.say(f"note: the policy in force has no {kind} {request[kind]}; its {kind}s: {known_text}")
