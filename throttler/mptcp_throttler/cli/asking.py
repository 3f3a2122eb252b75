"""The commands that ask the running daemon: status, explain, events."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_throttler.cli.shared import Absent, answering, ask_daemon, complain, say_unknown_names, status_socket

FOLLOW_SECONDS = 1.0
"""Interval of requests for events."""
MOST_EVENTS = 10_000
"""Limit of one answer."""
_TOKEN = re.compile("[0-9a-fA-F]{1,8}")


def status(options: argparse.Namespace) -> int:
    if options.brief and not options.json:
        complain("--brief is for --json")
        return USAGE
    from mptcp_common.status_client import ask, ask_pieces

    path = options.socket or status_socket(options)
    if options.json and not options.brief:
        return _passed_on(path, ask_pieces(path, {"query": "status"}))
    with answering(path):
        found = ask(path, {"query": "head" if options.brief else "status"})
    if options.brief:
        print(json.dumps(found))
        return DONE
    from mptcp_throttler.views.status_table import print_status

    print_status(found)
    return DONE


def _passed_on(path: Path, pieces: Iterator[bytes]) -> int:
    """Print a JSON object as it arrives: parsing ten thousand connections would take longer than all other work.

    A final newline marks it as complete; a brace may belong to an inner object.
    """
    last = b""
    while True:
        with answering(path):
            piece = next(pieces, b"")
        if not piece:
            break
        last = piece
        sys.stdout.buffer.write(piece)
    if last.endswith(b"\n"):
        return DONE
    if last:
        sys.stdout.buffer.write(b"\n")
    complain(f"ask {path}: the answer ended too early, or the daemon is older than this command; then restart it")
    return FAILED


def explain(options: argparse.Namespace) -> int:
    from mptcp_throttler.views.explanation import explanation

    which = _which(options.which)
    if which is None:
        complain(
            f'"{options.which}" is neither an address (10.1.0.2), nor a token (4f037d87), nor a client\'s end of a '
            "subflow (10.1.0.2:40000, [fd00::2]:40000)"
        )
        return USAGE
    answer = ask_daemon(options.socket or status_socket(options), {"query": "explain", **which}, "time_zone")
    if options.json:
        print(json.dumps(answer))
    else:
        for line in explanation(answer):
            print(line)
    return DONE if answer["connections"] else FAILED


def _which(text: str) -> dict[str, str] | None:
    """Return the request argument for the address, token or endpoint in *text*; None if it is none of these."""
    try:
        return {"client": str(ip_address(text.removeprefix("[").removesuffix("]")))}
    except ValueError:
        pass
    if _TOKEN.fullmatch(text):
        return {"token": text}
    host, colon, port = text.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return {"endpoint": text} if colon and port.isascii() and port.isdigit() and int(port) < 65536 else None


def events(options: argparse.Namespace) -> int:
    path = options.socket or status_socket(options)
    request: dict[str, Any] = {"query": "events", "limit": options.limit}
    request |= {name: getattr(options, name) for name in ("client", "rule", "token") if getattr(options, name)}
    try:
        return _show_events(path, request, options.follow, options.json)
    except KeyboardInterrupt:
        if options.follow:
            return DONE  # the only way to end it
        raise


def _show_events(path: Path, request: dict[str, Any], follow: bool, as_json: bool) -> int:
    from mptcp_throttler.views.event_lines import EventLines, is_another, missed

    people = EventLines()
    pid: int | None = None
    away = False
    while True:
        try:
            answer = ask_daemon(path, request, "events")
        except Absent as error:
            if pid is None or not follow:
                raise
            # The daemon may be restarting: go on when it answers again.
            if not away:
                journal.say(f"note: {error} Waiting for it")
            away = True
            time.sleep(FOLLOW_SECONDS)
            continue
        away = False
        after, before, pid = request.get("after", 0), pid, answer["pid"]
        if (lost := missed(answer, after, before)) is not None:
            journal.say(f"note: {lost}")
        if is_another(answer, after, before):
            request["after"] = 0
            continue
        found = answer["events"]
        for event in found:
            for line in (json.dumps(event),) if as_json else people.lines(event):
                print(line)
        if not follow:
            if not found:
                say_unknown_names(path, request)
            return DONE
        sys.stdout.flush()
        # A full answer may leave out events: ask for the next ones. Otherwise ask only for new events.
        full = "after" in request and len(found) == request["limit"]
        request |= {"after": found[-1]["seq"] if full else answer["last"], "limit": MOST_EVENTS}
        time.sleep(FOLLOW_SECONDS)
