# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-throttler``.

A command's module is imported only when the command runs: loading all libraries takes longer than a query.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from mptcp_common import __version__
from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.cli.shared import QueryError
from mptcp_throttler.config import DEFAULT_SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); errors go to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status_of(
        "mptcp-throttler",
        # The function is named after the command.
        lambda: int(getattr(import_module(f"mptcp_throttler.cli.{options.module}"), options.command)(options)),
        is_daemon=options.command == "run",
        operator_errors=lambda: (QueryError, KernelError),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-throttler", description="Throttle chosen subflows of Multipath TCP connections, by policy."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, module: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(module=module)
        add_config(command, DEFAULT_SETTINGS)
        return command

    def add_output(command: argparse.ArgumentParser, json_help: str = "print JSON") -> None:
        command.add_argument("--socket", type=Path, metavar="PATH", help="status socket (default: from the settings)")
        if json_help:
            command.add_argument("--json", action="store_true", help=json_help)

    run = add("run", "daemon", "Track and throttle connections until SIGTERM; SIGHUP reloads the policy.")
    run.add_argument("--verbose", action="store_true", help="log every event")

    check = add("check", "files", "Check settings and policy and print every problem; change nothing.")
    check.add_argument("--policy", type=Path, metavar="FILE", help="check only this policy file")

    add("reload", "queries", "Make the running daemon read its policy again, wait, and report the result.")

    text = "Print the planned changes to the kernel, as commands of tc, ipset, iptables or nft."
    plan = add("plan", "files", text)
    plan.add_argument("--policy", type=Path, metavar="FILE", help="use this policy, not that of the settings")
    source = plan.add_mutually_exclusive_group(required=True)
    source.add_argument("--subflows", type=Path, metavar="FILE", help="connections and their subflows, as YAML")
    source.add_argument("--live", action="store_true", help="the current subflows of this host")
    text = 'evaluate at this time ("2026-11-20T18:30", in the policy\'s time zone) instead of now'
    plan.add_argument("--at", metavar="TIME", help=text)
    text = "evaluate as if this volume of a budget were used (lte-month=21GB); may be repeated"
    plan.add_argument("--used", metavar="BUDGET=VOLUME", action="append", default=[], help=text)

    status = add(
        "status", "status", "Show the running daemon's connections, subflows, verdicts with reasons, and classes."
    )
    add_output(status)
    status.add_argument("--brief", action="store_true", help="with --json: omit connections, classes and counters")

    text = "Show the rules that were evaluated for a client or connection, which of them match, and the next change."
    explain = add("explain", "queries", text)
    explain.add_argument("selection", metavar="CLIENT|CONNECTION", help="an address, a token, or ADDR:PORT of a client")
    add_output(explain)

    text = "Show recent events: observations, decisions and changes in the kernel, with their rules."
    events = add("events", "queries", text)
    events.add_argument("--follow", action="store_true", help="also show new events, until interrupted")
    events.add_argument("--client", metavar="ADDRESS", help="only events of this client")
    events.add_argument("--token", metavar="TOKEN", help="only events of this connection")
    events.add_argument("--rule", metavar="NAME", help="only events of this rule")
    text = "show at most this number of the latest events (default: 1000)"
    events.add_argument("--limit", type=int, default=1000, metavar="NUMBER", help=text)
    add_output(events, "print JSON, one object per line")

    top = add("top", "top", "Show connections and subflows live: rates, caps and reasons; --once prints one table.")
    top.add_argument("--once", action="store_true", help="print one table and exit")
    text = "value by which the connections are sorted (default: rate)"
    top.add_argument("--sort", choices=("rate", "bytes", "age", "client"), default="rate", help=text)
    top.add_argument("--client", metavar="ADDRESS", help="only connections of this client")
    top.add_argument("--path", metavar="NAME", help="only connections with a subflow on this path")
    top.add_argument("--rule", metavar="NAME", help="only connections with a subflow capped by this rule")
    text = "with --once: show at most this number of connections (default: 50)"
    top.add_argument("--limit", type=int, default=50, metavar="NUMBER", help=text)
    add_output(top, json_help="")

    text = "Show or reset the used volumes of the policy's budgets, whether or not the daemon runs."
    quota = add("quota", "budgets", text)
    text = "show the volumes, or set those of the current period to 0"
    quota.add_argument("action", choices=("show", "reset"), help=text)
    quota.add_argument("--rule", metavar="NAME", help="only this budget, or the budget of this rule")
    quota.add_argument("--client", metavar="ADDRESS", help="only this client's volume")
    quota.add_argument("--json", action="store_true", help="print JSON")

    text = "Lift a client's caps for a time (2h), or add volume to its budgets (+5 GB); without CLIENT, list grants."
    grant = add("grant", "budgets", text)
    text = 'an address or a prefix; "all" for budgets per path'
    grant.add_argument("client", nargs="?", metavar="CLIENT", help=text)
    grant.add_argument("amount", nargs="*", metavar="TIME|+VOLUME|end", help='90m, 2h, 1d; "+5 GB"; or end')
    grant.add_argument("--budget", metavar="NAME", help="with a volume: only for this budget")
    text = "a reason, stored with the grant and shown in events"
    grant.add_argument("--why", metavar="TEXT", default="", help=text)

    text = "Show the connections and decisions that the throttler would derive from a capture of the proxy's packets."
    replay = commands.add_parser("replay", help=text, description=text)
    replay.set_defaults(module="replay")
    replay.add_argument("capture", type=Path, metavar="CAPTURE", help="a pcap or pcapng file, or - for standard input")
    replay.add_argument("--policy", type=Path, metavar="FILE", help="use this policy, not that of the settings")
    text = "settings file with ports, interface and policy; with only --policy, no settings are read"
    replay.add_argument("--config", type=Path, metavar="FILE", help=text)
    text = "a port of the proxy (default: 3128)"
    replay.add_argument("--port", type=int, action="append", metavar="NUMBER", help=text)
    text = "the proxy's interface towards clients of PREFIX, or towards all clients; the first match counts"
    replay.add_argument("--interface", action="append", metavar="[PREFIX=]NAME", help=text)
    text = "the capture was not made on the proxy's host: ignore the directions of its packets"
    replay.add_argument("--elsewhere", action="store_true", help=text)
    replay.add_argument("--json", action="store_true", help="print JSON, one object per line")

    add("cleanup", "daemon", "Remove the objects that a killed daemon left in the kernel; restore what it replaced.")
    return parser
