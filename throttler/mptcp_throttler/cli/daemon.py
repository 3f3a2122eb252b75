# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands that act on the kernel: ``run``, the daemon, and ``cleanup`` after a daemon that was killed."""

from __future__ import annotations

import argparse
import asyncio
import logging
from functools import partial

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.problems import DocumentError
from mptcp_common.single_daemon import AlreadyRunning
from mptcp_throttler.cli.shared import policy_with_warnings, print_error, print_problems
from mptcp_throttler.config.files import changed_settings, read_settings
from mptcp_throttler.config.host import host_problems, stacked_interfaces
from mptcp_throttler.config.settings import add_announced_ports
from mptcp_throttler.kernel.mptcp_pm.family import read_announced_ports
from mptcp_throttler.kernel.tc.link import read_lower_interfaces
from mptcp_throttler.runtime.cleanup import cleanup as clean_up
from mptcp_throttler.runtime.daemon import Daemon
from mptcp_throttler.runtime.event_loop import map_large_objects_separately
from mptcp_throttler.runtime.logs import log_to_stderr


def run(options: argparse.Namespace) -> int:
    map_large_objects_separately()
    from_file = read_settings(options.config)
    settings = add_announced_ports(from_file, read_announced_ports())
    read_policy = partial(policy_with_warnings, settings.policy, settings)
    policy = read_policy()
    if problems := list(host_problems(settings, as_daemon=True)):
        raise DocumentError(problems)
    print_problems(stacked_interfaces(settings, read_lower_interfaces()))
    log_to_stderr(logging.DEBUG if options.verbose else getattr(logging, settings.log_level.upper()))
    changes = partial(changed_settings, options.config, from_file)

    async def run_daemon() -> None:
        await Daemon(settings, policy, read_policy, read_settings=changes).run()

    asyncio.run(run_daemon())
    return DONE


def cleanup(options: argparse.Namespace) -> int:
    settings = add_announced_ports(read_settings(options.config), read_announced_ports())
    try:
        for line in asyncio.run(clean_up(settings)):
            print(line)
    except AlreadyRunning as error:
        print_error(f"{error}; stop the daemon instead; it removes its objects itself")
        return FAILED
    return DONE
