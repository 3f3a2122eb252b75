"""The status socket of the daemon that a command asks, and why nobody answers there."""

from __future__ import annotations

import argparse
from pathlib import Path

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


def _group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "that owns it"
