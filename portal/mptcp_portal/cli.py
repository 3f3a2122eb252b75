# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-portal``: run, check."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from mptcp_common import __version__, journal
from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.exit_status import DONE
from mptcp_common.listeners import missing_addresses
from mptcp_common.problems import DocumentError
from mptcp_common.unit_user import unreadable_by_unit
from mptcp_portal.settings import DEFAULT_SETTINGS, Settings, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); print errors to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status_of("mptcp-portal", lambda: int(options.command(options)), is_daemon=options.command is _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-portal",
        description="Serves pages for the proxy's clients: how they are connected, and how to use it.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("run", _run, "Serve until SIGTERM."),
        ("check", _check, "Check the settings and print all problems; serve nothing."),
    ):
        subparser = commands.add_parser(name, help=text, description=text)
        add_config(subparser, DEFAULT_SETTINGS)
        subparser.set_defaults(command=command)
    return parser


def _run(options: argparse.Namespace) -> int:
    from mptcp_portal.serving import serve

    settings = read_settings(options.config)
    _warn_of_missing_addresses(settings)
    asyncio.run(serve(settings))
    return DONE


def _check(options: argparse.Namespace) -> int:
    from mptcp_portal.serving import services
    from mptcp_portal.throttler_client import ThrottlerClient

    settings = read_settings(options.config)
    services(settings, ThrottlerClient(settings.status_socket))
    captive = settings.captive
    files = (captive.certificate, captive.key) if captive else ()
    needed = [options.config, *filter(None, files)]
    if problems := list(unreadable_by_unit(needed, "mptcp-portal.service")):
        raise DocumentError(problems)
    _warn_of_missing_addresses(settings)
    print(f"{options.config}: no errors")
    return DONE


def _warn_of_missing_addresses(settings: Settings) -> None:
    parts = {"onboarding.listen": settings.onboarding, "captive_portal.listen": settings.captive}
    addresses = {key: part.listen.address for key, part in parts.items() if part is not None}
    for warning in missing_addresses(settings.source, addresses):
        journal.say(warning, journal.WARNING)


if __name__ == "__main__":
    sys.exit(main())
