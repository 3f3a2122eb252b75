"""The commands that start the daemon, reload its policy, and clean up after it: run, reload, cleanup."""

from __future__ import annotations

import argparse
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.problems import DocumentError
from mptcp_throttler.cli.shared import Unanswered, ask_daemon, complain, policy_with_warnings, status_socket

if TYPE_CHECKING:
    from mptcp_throttler.policy.model import Policy

RELOAD_SECONDS = 60.0
"""Longest wait for a reload."""
_PAUSE_SECONDS = 0.1


def run(options: argparse.Namespace) -> int:
    import asyncio
    import logging

    from mptcp_throttler.config.files import news_of_settings, read_settings
    from mptcp_throttler.config.host import host_problems, stacked_interfaces
    from mptcp_throttler.config.settings import with_announced_ports
    from mptcp_throttler.kernel.mptcp_pm.family import announced_ports
    from mptcp_throttler.kernel.state_file import AlreadyRunning
    from mptcp_throttler.kernel.tc.link import stands_on
    from mptcp_throttler.runtime.daemon import Daemon
    from mptcp_throttler.runtime.event_loop import keep_large_objects_apart
    from mptcp_throttler.runtime.logs import log_to_stderr

    keep_large_objects_apart()
    from_file = read_settings(options.config)
    settings = with_announced_ports(from_file, announced_ports())
    policy = policy_with_warnings(settings.policy, settings)
    if problems := list(host_problems(settings, as_daemon=True)):
        raise DocumentError(problems)
    for warning in stacked_interfaces(settings, stands_on()):
        journal.say(warning, journal.WARNING)
    log_to_stderr(logging.DEBUG if options.verbose else getattr(logging, settings.log_level.upper()))

    def read_policy() -> Policy:
        return policy_with_warnings(settings.policy, settings)

    async def daemon() -> None:
        news = partial(news_of_settings, options.config, from_file)
        await Daemon(settings, policy, read_policy, read_settings=news).run()

    try:
        asyncio.run(daemon())
    except AlreadyRunning as error:
        complain(error)
        return FAILED
    return DONE


def reload(options: argparse.Namespace) -> int:
    path = status_socket(options)
    reloads = reload_outcome(path)
    errors = (reloads["last_refused"] or {}).get("errors", ())
    # In the journal the daemon has logged them already.
    for line in () if journal.is_journal() else (*reloads.get("settings", ()), *errors):
        journal.say(line, journal.ERROR if line in errors else journal.WARNING)
    if errors:
        complain("reload refused: the policy in force stays")
        return FAILED
    print("policy reloaded")
    return DONE


def reload_outcome(path: Path) -> dict[str, Any]:
    """Have the daemon at *path* reload its policy; return ``reloads`` of its status. Raises Unanswered."""
    before = ask_daemon(path, {"query": "head"}, "reloads")
    try:
        os.kill(before["pid"], signal.SIGHUP)
    except PermissionError as error:
        raise Unanswered("only root and the throttler's user may have it reload") from error
    except ProcessLookupError as error:
        raise Unanswered(f"the daemon at {path} has just ended") from error
    deadline = time.monotonic() + RELOAD_SECONDS
    while True:
        now: dict[str, Any] = ask_daemon(path, {"query": "head"}, "reloads")["reloads"]
        if any(now[each] > before["reloads"][each] for each in ("accepted", "refused")):
            return now
        if time.monotonic() > deadline:
            raise Unanswered(f"the reload takes longer than {RELOAD_SECONDS:.0f} seconds")
        time.sleep(_PAUSE_SECONDS)


def clean_up(options: argparse.Namespace) -> int:
    import asyncio

    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.settings import with_announced_ports
    from mptcp_throttler.kernel.mptcp_pm.family import announced_ports
    from mptcp_throttler.kernel.state_file import AlreadyRunning
    from mptcp_throttler.runtime.cleanup import cleanup

    settings = with_announced_ports(read_settings(options.config), announced_ports())
    try:
        for line in asyncio.run(cleanup(settings)):
            print(line)
    except AlreadyRunning as error:
        complain(f"{error}; stop it instead, it cleans up itself")
        return FAILED
    return DONE
