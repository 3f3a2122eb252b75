# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-throttler``.

The module of a command is imported when the command runs: loading libraries takes longer than the daemon's answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from mptcp_common import __version__
from mptcp_common.commands import add_config, outcome
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.cli.shared import Unanswered
from mptcp_throttler.config import DEFAULT_SETTINGS

_MODULES = {
    "run": "daemon",
    "cleanup": "daemon",
    "check": "files",
    "plan": "files",
    "quota": "budgets",
    "grant": "budgets",
    "explain": "asking",
    "events": "asking",
    "reload": "asking",
}
"""The module of each command; a command that is not listed has a module of its own name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); errors go to stderr."""
    options = _parser().parse_args(arguments)
    return outcome(
        "mptcp-throttler",
        lambda: _run(options),
        is_daemon=options.command == "run",
        refusals=lambda: (Unanswered, KernelError),
    )


def _run(options: argparse.Namespace) -> int:
    """Call the function named after the command, in the command's module."""
    module = import_module(f"mptcp_throttler.cli.{_MODULES.get(options.command, options.command)}")
    return int(getattr(module, options.command)(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-throttler", description="Throttle chosen subflows of Multipath TCP connections, by policy."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text, description=help_text)
        add_config(command, DEFAULT_SETTINGS)
        return command

    run = add("run", "Watch and throttle until SIGTERM; SIGHUP reloads the policy.")
    run.add_argument("--verbose", action="store_true", help="log every event")

    check = add("check", "Check settings and policy and print every problem; change nothing.")
    check.add_argument("--policy", type=Path, metavar="FILE", help="check only this policy file")

    add("reload", "Make the running daemon read its policy again, wait, and report the result.")

    plan = add(
        "plan", "Print the changes to the kernel, as commands of tc, ipset, iptables or nft, without making them."
    )
    plan.add_argument("--policy", type=Path, metavar="FILE", help="this policy instead of the one in the settings")
    source = plan.add_mutually_exclusive_group(required=True)
    source.add_argument("--subflows", type=Path, metavar="FILE", help="connections and their subflows, as YAML")
    source.add_argument("--live", action="store_true", help="the subflows that this host has now")
    help_text = 'evaluate at this time ("2026-11-20T18:30", in the policy\'s time zone) instead of now'
    plan.add_argument("--at", metavar="TIME", help=help_text)
    help_text = "evaluate as if this volume of a budget were used (lte-month=21GB); may be repeated"
    plan.add_argument("--used", metavar="BUDGET=VOLUME", action="append", default=[], help=help_text)

    status = add("status", "Show connections, subflows, verdicts and why, classes and bytes of the running daemon.")
    status.add_argument("--socket", type=Path, metavar="PATH", help="the status socket, instead of the settings'")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--brief", action="store_true", help="with --json: no connections, classes and counters")

    explain = add(
        "explain", "Show which rules were tried for a client or connection, which match, and what changes next."
    )
    explain.add_argument("which", metavar="CLIENT|CONNECTION", help="an address, a token, or ADDR:PORT of a client")
    explain.add_argument("--socket", type=Path, metavar="PATH", help="the status socket, instead of the settings'")
    explain.add_argument("--json", action="store_true", help="print JSON")

    events = add(
        "events", "Show recent events: what the daemon saw, decided and changed in the kernel, and by which rule."
    )
    events.add_argument("--follow", action="store_true", help="also show new events, until interrupted")
    events.add_argument("--client", metavar="ADDRESS", help="only events of this client")
    events.add_argument("--token", metavar="TOKEN", help="only events of this connection")
    events.add_argument("--rule", metavar="NAME", help="only events of this rule")
    help_text = "show at most this number of the latest events (default: 1000)"
    events.add_argument("--limit", type=int, default=1000, metavar="NUMBER", help=help_text)
    events.add_argument("--socket", type=Path, metavar="PATH", help="the status socket, instead of the settings'")
    events.add_argument("--json", action="store_true", help="print JSON, one object a line")

    top = add("top", "Show connections and their subflows live: rates, caps and why; --once prints one table.")
    top.add_argument("--once", action="store_true", help="print one table and end")
    help_text = "sort the connections by this value (default: rate)"
    top.add_argument("--sort", choices=("rate", "bytes", "age", "client"), default="rate", help=help_text)
    top.add_argument("--client", metavar="ADDRESS", help="only connections of this client")
    top.add_argument("--path", metavar="NAME", help="only connections with a subflow on this path")
    top.add_argument("--rule", metavar="NAME", help="only connections with a subflow capped by this rule")
    help_text = "with --once: show at most this number of connections (default: 50)"
    top.add_argument("--limit", type=int, default=50, metavar="NUMBER", help=help_text)
    top.add_argument("--socket", type=Path, metavar="PATH", help="the status socket, instead of the settings'")

    quota = add("quota", "Show or reset the volumes used of the policy's budgets, whether or not the daemon runs.")
    quota.add_argument(
        "action", choices=("show", "reset"), help="show the volumes, or set those of the present period to 0"
    )
    quota.add_argument("--rule", metavar="NAME", help="only this budget, or the budget of this rule")
    quota.add_argument("--client", metavar="ADDRESS", help="only this client's volume")
    quota.add_argument("--json", action="store_true", help="print JSON")

    text = "Lift a client's caps for a while (2h), or let it use more of its budgets (+5 GB); without CLIENT list them."
    granting = add("grant", text)
    help_text = 'an address or a prefix; "all" for budgets per path'
    granting.add_argument("client", nargs="?", metavar="CLIENT", help=help_text)
    granting.add_argument("what", nargs="*", metavar="TIME|+VOLUME|end", help='90m, 2h, 1d; "+5 GB"; or end')
    granting.add_argument("--budget", metavar="NAME", help="with a volume: only for this budget")
    granting.add_argument(
        "--why", metavar="TEXT", default="", help="a reason, stored with the grant and shown in events"
    )

    text = "Show what the throttler would have known and done, from a capture of the proxy's packets."
    replay = commands.add_parser("replay", help=text, description=text)
    replay.add_argument("capture", type=Path, metavar="CAPTURE", help="a pcap or pcapng file, or - for standard input")
    replay.add_argument("--policy", type=Path, metavar="FILE", help="this policy instead of the one in the settings")
    help_text = "take ports, interface and policy from this settings file; without it and with --policy none is read"
    replay.add_argument("--config", type=Path, metavar="FILE", help=help_text)
    help_text = "a port of the proxy (default: 3128)"
    replay.add_argument("--port", type=int, action="append", metavar="NUMBER", help=help_text)
    help_text = "the proxy's interface towards clients of PREFIX, or towards all; the first match counts"
    replay.add_argument("--interface", action="append", metavar="[PREFIX=]NAME", help=help_text)
    help_text = "the capture is from another host than the proxy's: ignore the packets' direction in it"
    replay.add_argument("--elsewhere", action="store_true", help=help_text)
    replay.add_argument("--json", action="store_true", help="print JSON, one object a line")

    add("cleanup", "Remove everything a killed daemon left in the kernel, and put back what it replaced.")
    return parser
