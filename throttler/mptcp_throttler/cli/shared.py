"""What several commands need: the daemon that they ask, and what they say on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptcp_common import journal
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.reasons import reason
from mptcp_throttler.config.status_socket import plain_status_socket

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.policy.model import Policy


class Unanswered(Exception):
    """The daemon refused a question, or is too old for it: why, in one line."""


class Absent(Unanswered):
    """Nobody answers at the status socket."""


def complain(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def mistake(option: str, value: str, message: str) -> DocumentError:
    """Return the error of a command's option that is given a wrong *value*."""
    return DocumentError([Problem(option, 0, 0, "", value, message)])


def policy_with_warnings(path: Path, settings: Settings | None) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, warnings = read_policy(path, settings)
    for warning in warnings:
        journal.say(warning, journal.WARNING)
    return policy


def status_socket(options: argparse.Namespace) -> Path:
    path = plain_status_socket(options.config)
    if path is None:
        from mptcp_throttler.config.files import read_settings

        path = read_settings(options.config).status_socket
    return path


def ask_daemon(path: Path, request: Mapping[str, object], expected: str) -> dict[str, Any]:
    """Return the answer to *request*, which has the key *expected*. Raises Unanswered."""
    from mptcp_common.status_client import ask

    with answering(path):
        answer = ask(path, request)
    if "error" in answer:
        raise Unanswered(answer["error"])
    if "schema" not in answer or expected not in answer:
        raise Unanswered("the daemon is older than this command and answers no such request; restart it")
    return answer


@contextmanager
def answering(path: Path) -> Iterator[None]:
    """Raise, for an error of the system within, Absent with words why nobody answers at the status socket *path*."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Absent(f"no daemon answers at {path}; is it running?") from error
    except PermissionError as error:
        raise Absent(f"you may not ask {path}: it answers root and the group {_group_of(path)}") from error
    except TimeoutError as error:
        raise Absent(f"the daemon at {path} does not answer in time") from error
    except OSError as error:
        raise Absent(f"ask {path}: {reason(error)}") from error


def say_unknown_names(path: Path, wanted: Mapping[str, object]) -> None:
    """Nothing was found: say so where *wanted* has a ``rule`` or a ``path`` that the policy in force has not."""
    if wanted.keys().isdisjoint(("rule", "path")):
        return
    try:
        policy = ask_daemon(path, {"query": "summary"}, "policy")["policy"]
        names = {"rule": policy["rules"], "path": [each["path"] for each in policy["paths_in_words"]]}
    except (Unanswered, KeyError):
        return  # a daemon that is too old, or has just ended: what was asked for was answered
    for kind, known in names.items():
        if kind in wanted and wanted[kind] not in known:
            those = ", ".join(known) or "none"
            journal.say(f"note: the policy in force has no {kind} {wanted[kind]}; its {kind}s: {those}")


def _group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "that owns it"
