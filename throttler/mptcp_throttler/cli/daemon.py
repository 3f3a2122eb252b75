"""The commands that start the daemon, have it reload, and clean up after it: run, reload, cleanup."""

from __future__ import annotations

import argparse

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.problems import DocumentError
from mptcp_throttler.cli.shared import answering, complain, policy_with_warnings, status_socket


def run(options: argparse.Namespace) -> int:
    import asyncio
    import logging

    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.host import host_problems, stacked_interfaces
    from mptcp_throttler.config.settings import with_announced_ports
    from mptcp_throttler.kernel.mptcp_pm.commands import announced_ports
    from mptcp_throttler.kernel.state_file import AlreadyRunning
    from mptcp_throttler.kernel.tc.link import stands_on
    from mptcp_throttler.runtime.daemon import Daemon
    from mptcp_throttler.runtime.garbage import keep_large_objects_apart
    from mptcp_throttler.runtime.logs import log_to_stderr

    keep_large_objects_apart()
    settings = with_announced_ports(read_settings(options.config), announced_ports())
    policy = policy_with_warnings(settings.policy, settings)
    if problems := list(host_problems(settings, as_daemon=True)):
        raise DocumentError(problems)
    for warning in stacked_interfaces(settings, stands_on()):
        journal.say(warning, journal.WARNING)
    log_to_stderr(logging.DEBUG if options.verbose else getattr(logging, settings.log_level.upper()))

    async def daemon() -> None:
        await Daemon(settings, policy, lambda: policy_with_warnings(settings.policy, settings)).run()

    try:
        asyncio.run(daemon())
    except AlreadyRunning as error:
        complain(error)
        return FAILED
    return DONE


def reload(options: argparse.Namespace) -> int:
    from mptcp_throttler.views.ask import reload_outcome

    path = status_socket(options)
    with answering(path):
        errors = reload_outcome(path)
    for line in errors:
        journal.say(line, journal.ERROR)
    if errors:
        complain("reload refused: the policy in force stays")
        return FAILED
    print("policy reloaded")
    return DONE


def clean_up(options: argparse.Namespace) -> int:
    import asyncio

    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.settings import with_announced_ports
    from mptcp_throttler.kernel.mptcp_pm.commands import announced_ports
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
