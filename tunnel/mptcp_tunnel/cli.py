# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-tunnel``: run, check, doctor, status."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence

from mptcp_common import __version__, journal
from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.findings import print_findings
from mptcp_common.kernel_error import KernelError
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.status_client import ask
from mptcp_tunnel.settings import DEFAULT_SETTINGS, Settings, read_key, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); print errors to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status_of(
        "mptcp-tunnel",
        lambda: int(options.command(options)),
        is_daemon=options.command is _run,
        operator_errors=lambda: (KernelError,),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-tunnel", description="Multipath UDP: sends a tunnel's UDP packets over several paths."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("run", _run, "Split and join the packets of the tunnels until SIGTERM."),
        ("check", _check, "Check the settings and print all problems; change nothing."),
        ("doctor", _doctor, "Find the problems that keep this host's tunnels from working; change nothing."),
        ("status", _status, "Print the state of the tunnels and their paths."),
    ):
        subparser = commands.add_parser(name, help=text, description=text)
        add_config(subparser, DEFAULT_SETTINGS)
        subparser.set_defaults(command=command)
        if command in (_doctor, _status):
            subparser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _checked_settings(options: argparse.Namespace) -> Settings:
    settings = read_settings(options.config)
    problems, names = list[Problem](), dict[bytes, str]()
    for each in settings.tunnels:
        try:
            other = names.setdefault(read_key(each.key), each.name)
            if other != each.name:
                raise ValueError(f"tunnel {other} has the same key, so their messages cannot be distinguished")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            problems.append(Problem(settings.source, 0, 0, f"tunnels.{each.name}.key", str(each.key), why))
    if problems:
        raise DocumentError(problems)
    return settings


def _run(options: argparse.Namespace) -> int:
    from mptcp_tunnel.daemon import serve

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    serve(_checked_settings(options))
    return DONE


def _check(options: argparse.Namespace) -> int:
    from mptcp_tunnel.kernel.trial import find_missing_features

    _checked_settings(options)
    if os.geteuid() == 0 and (missing_features := find_missing_features()):
        for need, reason in missing_features.items():
            journal.say(f"mptcp-tunnel: {need.what}: {reason}; {need.why}; {need.remedy}", journal.ERROR)
        return FAILED
    print(f"{options.config}: no errors")
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    from mptcp_tunnel.doctor import examine

    settings = _checked_settings(options)
    try:
        status = ask(settings.status_socket, {})
    except OSError:
        status = None
    return print_findings(tuple(examine(settings, status)), as_json=options.json)


def _status(options: argparse.Namespace) -> int:
    status = ask(read_settings(options.config).status_socket, {})
    if options.json:
        print(json.dumps(status, indent=1))
        return DONE
    for tunnel in status["tunnels"]:
        print(f"{tunnel['name']} ({tunnel['role']})")
        for path in tunnel["paths"]:
            if path["trouble"]:
                print(f"  {path['path']:<10} unavailable: {path['trouble']}")
                continue
            print(
                f"  {path['path']:<10} {'alive ' if path['alive'] else 'silent'} {path['rate'] / 1e6:8.2f} Mbit/s "
                f"delay +{path['delay_ms']:.1f} ms, queue {path['queue_ms']:.1f} ms, "
                f"{path['packets_sent']} packets sent, {path['packets_received']} received"
                + (f", loss {100 * path['loss']:.1f} %" if path["loss"] is not None else "")
                + (f", MTU {path['mtu']}" if path["mtu"] else "")
            )
    return DONE


if __name__ == "__main__":
    sys.exit(main())
