"""The command ``mptcp-console``: run, check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mptcp_common import __version__, journal
from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_common.problems import DocumentError
from mptcp_console.settings import DEFAULT_SETTINGS, Settings, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); why it failed is on stderr."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options.config)
    except DocumentError as error:
        journal.say(error, journal.ERROR)
        return CONFIGURATION if options.command == "run" else FAILED
    if options.command == "check":
        print(f"{options.config or DEFAULT_SETTINGS}: no errors; {_summary(settings)}")
        return DONE
    from mptcp_console.service import serve

    return serve(settings)


def _parser() -> argparse.ArgumentParser:
    """Return what reads the command line; the package's manual page and shell completion are made from it."""
    parser = argparse.ArgumentParser(
        prog="mptcp-console", description="Show what the throttler knows and does as a web page; change nothing."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "Serve the page in the foreground until SIGTERM."),
        ("check", "Check the settings and print every problem; nothing is started."),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help=f"the settings file (default: {DEFAULT_SETTINGS}; without it everything has its default)",
        )
    return parser


def _settings(file: Path | None) -> Settings:
    """Return the settings of *file*, or of the usual one, if there is one. Raises DocumentError."""
    if file is None and not DEFAULT_SETTINGS.exists():
        return Settings()
    return read_settings(file or DEFAULT_SETTINGS)


def _summary(settings: Settings) -> str:
    token = "with a token" if settings.token else "without a token: everybody on this host may see it"
    return f"{settings.url}, {token}"


if __name__ == "__main__":
    sys.exit(main())
