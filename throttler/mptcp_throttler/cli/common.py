"""What several commands have in common: complaints, the policy and its warnings, the socket that answers."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_common import journal
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.reasons import reason
from mptcp_throttler.config.status_socket import plain_status_socket

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.policy.model import Policy


def complain(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def policy_with_warnings(path: Path, settings: Settings | None) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, warnings = read_policy(path, settings)
    for warning in warnings:
        journal.say(warning, journal.WARNING)
    return policy


def time_of(text: str | None) -> float:
    if text is None:
        return time.time()
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise DocumentError(
            [Problem("--at", 0, 0, "", text, f'"{text}" is not a time; write e.g. "2026-11-20T18:30+02:00"')]
        ) from None


def status_socket(options: argparse.Namespace) -> Path:
    path = plain_status_socket(options.config)
    if path is None:
        from mptcp_throttler.config.files import read_settings

        path = read_settings(options.config).status_socket
    return path


def no_answer(path: Path, error: OSError) -> str:
    """Return in words why nobody answers at the status socket."""
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return f"no daemon answers at {path}; is it running?"
        case PermissionError():
            return f"you may not ask {path}: it answers root and the group {_group_of(path)}"
        case TimeoutError():
            return f"the daemon at {path} does not answer in time"
    return f"ask {path}: {reason(error)}"


def _group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "that owns it"
