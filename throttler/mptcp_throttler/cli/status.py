# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``status``, which prints the running daemon's status as a table for the terminal or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from mptcp_common import status_client
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_throttler.cli.shared import print_error, translate_socket_errors
from mptcp_throttler.config import status_socket


def status(options: argparse.Namespace) -> int:
    if options.brief and not options.json:
        print_error("--brief requires --json")
        return USAGE
    path = options.socket or status_socket(options.config)
    with translate_socket_errors(path):
        text = status_client.ask_text(path, {"query": "head" if options.brief else "status"})
    if options.json:
        # Do not parse the answer: for ten thousand connections, that would take longer than all other work.
        sys.stdout.buffer.write(text.removesuffix(b"\n") + b"\n" if text else b"")
    if not text.endswith(b"\n"):  # do not look for the last brace: a truncated answer may end with an inner object's
        reason = "the answer ended too early, or the daemon is older than this command; then restart it"
        print_error(f"query {path}: {reason}")
        return FAILED
    if not options.json:
        print_status(json.loads(text))
    return DONE


def print_status(status: dict[str, Any]) -> None:
    """Print the answer to ``status`` as a table."""
    from rich.console import Console  # loading rich takes longer than the daemon's answer, and JSON does not need it
    from rich.table import Table

    from mptcp_common.units import approximate_size, counted, format_rate

    # No markup, no emoji: rich would take "[fd77:1::2]" for a style, and ":a:" within an address for an emoji.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False, highlight=False)
    policy, counters = status["policy"], status["counters"]
    console.print(
        f"policy {policy['source']}{' (dry run)' if policy['dry_run'] else ''}, rules: {', '.join(policy['rules'])}; "
        f"{status['netfilter']} on {', '.join(status['interfaces'])}; up {status['now'] - status['started']:.0f} s"
    )
    if (refused := status["reloads"]["last_refused"]) is not None:
        when = datetime.fromtimestamp(refused["time"]).astimezone().isoformat(" ", "seconds")
        console.print(f"RELOAD REFUSED at {when}, the previous policy is in force:")
        for line in refused["errors"]:
            console.print(f"  {line}")
    if status.get("ledger_error") is not None:  # an older daemon lacks this key
        console.print(f"BUDGETS NOT WRITTEN: {status['ledger_error']}; caps stay in force, and a retry follows")
    table = Table()
    for title in ("connection", "client", "kind", "path", "cap", "class", "sent", "why"):
        table.add_column(title, overflow="fold", no_wrap=title not in ("why", "kind"))
    capped = 0
    for connection in status["connections"]:
        for index, subflow in enumerate(connection["subflows"]):
            capped += any(each["ceil"] for each in (subflow, subflow["upload"]) if each is not None)
            table.add_row(
                connection.get("tunnel", connection["token"]) if index == 0 else "",
                subflow["remote"],
                _kind(subflow),
                subflow["path"] or "-",
                _by_direction(subflow, "ceil", lambda ceil: format_rate(ceil) if ceil else "-"),
                "landing" if subflow["landing"] else _by_direction(subflow, "classid", lambda classid: classid or "-"),
                "-" if subflow["bytes_sent"] is None else approximate_size(subflow["bytes_sent"]),
                _by_direction(subflow, "reason", str),
            )
    console.print(table)
    console.print(
        f"{counted(len(status['connections']), 'connection')}, "
        f"{counted(0 if policy['dry_run'] else capped, 'capped subflow')}, "
        f"{counters['observers']['segments']} segments read, {counters['observers']['segments_dropped']} dropped, "
        f"{counters['tracker']['disagreements']} disagreements, {counters['reconciler']['failures']} kernel refusals"
        + ("" if status["in_step"] else "; the kernel's state is not up to date yet")
    )


def _kind(subflow: dict[str, Any]) -> str:
    if "tunnel_path" in subflow:
        return f"UDP path {subflow['tunnel_path']}"
    return ("initial" if subflow["initial"] else "joined") + (" backup" if subflow["backup"] else "")


def _by_direction(subflow: dict[str, Any], key: str, text: Callable[[Any], str]) -> str:
    """Return the text for the download and, if a rule is for uploads, a second line for the upload."""
    return "\n".join(text(each[key]) for each in (subflow, subflow["upload"]) if each is not None)
