"""The status socket of the daemon that a command asks, why nobody answers there, and why nothing may be found."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_throttler.config.status_socket import plain_status_socket


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


def say_unknown_names(path: Path, wanted: Mapping[str, object]) -> None:
    """Nothing was found: say so where *wanted* has a ``rule`` or a ``path`` that the policy in force has not."""
    if wanted.keys().isdisjoint(("rule", "path")):
        return
    from mptcp_common.status_client import ask

    try:
        policy = ask(path, {"query": "summary"})["policy"]
        names = {"rule": policy["rules"], "path": [each["path"] for each in policy["paths_in_words"]]}
    except (OSError, KeyError):
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
