# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-console``: run, check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mptcp_common import __version__, journal
from mptcp_common.certificates import certificate_problem
from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.exit_status import DONE
from mptcp_common.listeners import missing_addresses
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.unit_user import unreadable_by_unit
from mptcp_console.first_token import make_first_token
from mptcp_console.settings import DEFAULT_SETTINGS, Settings, read_settings, settings_without_a_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); print errors to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status_of("mptcp-console", lambda: int(options.command(options)), is_daemon=options.command is _run)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the package's manual page and shell completion are generated from it."""
    parser = argparse.ArgumentParser(
        prog="mptcp-console", description="Show the throttler's state as a web page; change nothing."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("run", _run, "Serve the page in the foreground until SIGTERM."),
        ("check", _check, "Check the settings and print all problems; start nothing."),
        ("make-token", _make_token, "Write the settings' default token file, if it is missing."),
    ):
        subparser = commands.add_parser(name, help=text, description=text)
        add_config(subparser, DEFAULT_SETTINGS, is_required=False)
        subparser.set_defaults(command=command)
    return parser


def _run(options: argparse.Namespace) -> int:
    settings = _settings(options.config)
    from mptcp_console.service import serve

    _warn_if_address_is_missing(options.config, settings)
    return serve(settings)


def _check(options: argparse.Namespace) -> int:
    settings = _settings(options.config)
    file: Path = options.config or DEFAULT_SETTINGS
    files = (file, settings.token_file, settings.certificate, settings.key, settings.names)
    needed = [each for each in files if each is not None and each.exists()]
    if problems := list(unreadable_by_unit(needed, "mptcp-console.service")):
        raise DocumentError(problems)
    _warn_if_address_is_missing(file, settings)
    print(f"{file}: no errors; {_summary(settings)}")
    return DONE


def _make_token(options: argparse.Namespace) -> int:
    path = make_first_token(options.config)
    if path is not None:
        print(f"{path}: written; the console requires this token, also on this host")
    return DONE


def _settings(file: Path | None) -> Settings:
    """Return the settings of *file*, or of the default one if it exists. Raises DocumentError."""
    if file is None and not DEFAULT_SETTINGS.exists():
        return settings_without_a_file()
    file = file or DEFAULT_SETTINGS
    settings = read_settings(file)
    if settings.certificate and (message := certificate_problem(str(settings.certificate), str(settings.key))):
        raise DocumentError([Problem(str(file), 0, 0, "certificate", str(settings.certificate), message)])
    return settings


def _warn_if_address_is_missing(file: Path | None, settings: Settings) -> None:
    for warning in missing_addresses(str(file or DEFAULT_SETTINGS), {"listen": settings.address}):
        journal.say(warning, journal.WARNING)


def _summary(settings: Settings) -> str:
    token = "with a token" if settings.token else "without a token: every user of this host may see it"
    return f"{settings.url}, {token}"


if __name__ == "__main__":
    sys.exit(main())
