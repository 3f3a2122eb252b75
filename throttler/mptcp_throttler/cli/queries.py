# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands ``explain``, ``events`` and ``reload``, which send requests to the running daemon."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, tzinfo
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from mptcp_common import journal
from mptcp_common.endpoints import address_and_port
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_common.units import counted, format_rate
from mptcp_throttler.cli.shared import NoAnswerError, QueryError, print_error, print_unknown_names, query_daemon
from mptcp_throttler.config import status_socket
from mptcp_throttler.policy.schedule import moment_text

FOLLOW_SECONDS = 1.0  # interval of requests for events
MAX_EVENTS = 10_000  # limit of one answer
RELOAD_SECONDS = 60.0  # maximum wait for a reload
_KINDS: Final = {"throttle": "rule", "budget": "budget of rule", "steer": "steering of rule"}


def explain(options: argparse.Namespace) -> int:
    selection = _parse_selection(options.selection)
    if selection is None:
        kinds = "an address (10.1.0.2), a token (4f037d87) or a client's endpoint (10.1.0.2:40000, [fd00::2]:40000)"
        print_error(f'"{options.selection}" is not {kinds}')
        return USAGE
    path = options.socket or status_socket(options.config)
    answer = query_daemon(path, {"query": "explain", **selection}, "time_zone")
    for line in (json.dumps(answer),) if options.json else explanation(answer):
        print(line)
    return DONE if answer["connections"] else FAILED


def _parse_selection(text: str) -> dict[str, str] | None:
    """Return the request argument for the address, token or endpoint in *text*; None if *text* is none of these."""
    with suppress(ValueError):
        return {"client": str(ip_address(text.removeprefix("[").removesuffix("]")))}
    if re.fullmatch("[0-9a-fA-F]{1,8}", text):
        return {"token": text}
    with suppress(ValueError):
        address_and_port(text)
        return {"endpoint": text}
    return None


def explanation(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the answer to ``explain`` as lines. Past times are in this host's zone, future times in the policy's."""
    clock = _Clock(answer["time"], ZoneInfo(answer["time_zone"]))
    if not answer["connections"]:
        yield "no such Multipath TCP connection is open; connections of plain TCP are not tracked"
    for connection in answer["connections"]:
        subflows = connection["subflows"]
        title = f"tunnel {connection['tunnel']}," if "tunnel" in connection else "connection"
        ends = {each["remote"] for each in subflows}
        yield (
            f"{title} {connection['token']} from {connection['client'] or 'an unknown address'}, "
            f"{counted(len(ends), 'active subflow')}, since {clock.past_text(connection['since'])}"
        )
        for subflow in subflows:
            yield from _subflow_lines(subflow, clock)
    if (omitted := answer.get("total", 0) - len(answer["connections"])) > 0:
        yield f"and {counted(omitted, 'older connection')}"


class _Clock(NamedTuple):
    now: float
    policy_zone: tzinfo

    def past_text(self, time: float) -> str:
        """Return the time of day, with the date if not today, and the zone if not the policy's."""
        local, today = (datetime.fromtimestamp(each).astimezone() for each in (time, self.now))
        text = local.strftime("%H:%M:%S")
        if local.utcoffset() != datetime.fromtimestamp(time, self.policy_zone).utcoffset():
            text += f" {local.tzname()}"
        return text if local.date() == today.date() else f"{local.strftime('%a %Y-%m-%d')} {text}"

    def future_text(self, time: float) -> str:
        """Return a future time in the policy's zone: ``18:00 (Europe/Athens)``."""
        return f"{moment_text(time, self.now, self.policy_zone)} ({self.policy_zone})"


def _subflow_lines(subflow: Mapping[str, Any], clock: _Clock) -> Iterator[str]:
    path = f"path {subflow['path']}" if subflow["path"] else "on no path"
    interface = f" through {subflow['interface']}" if subflow["interface"] else ""
    direction = "upload" if subflow["direction"] == "up" else "download"
    yield f"  {subflow['remote']}, {path}{interface}, {direction}: {_verdict_text(subflow, clock)}"
    for rule in subflow["tried"]:
        yield f"    {_rule_text(rule, clock)}"
    if not subflow["tried"]:
        yield "    no rule applies to this direction"
    for stage in subflow["stages"]:
        since = "" if stage["since"] is None else f", since {clock.past_text(stage['since'])}"
        yield f"    then {stage['stage']}: {stage['what']}{since}"


def _verdict_text(subflow: Mapping[str, Any], clock: _Clock) -> str:
    parts = [subflow["verdict"]]
    if subflow["rate"] is not None and subflow["ceil"] not in (None, subflow["rate"]):
        parts.append(f"{format_rate(subflow['rate'])} of it guaranteed")
    if subflow["rule"] is not None:
        parts.append(f"rule {subflow['rule']}")
    if subflow["since"] is not None:
        parts.append(f"since {clock.past_text(subflow['since'])}")
    state = subflow["cap_state"]
    if state != "none":
        parts.append("coming into force" if state == "coming" else state)
    elif subflow["rate"] is not None and not subflow["verdict"].endswith("(dry run)"):
        parts.append("not in the kernel yet")
    return ", ".join(parts)


def _rule_text(rule: Mapping[str, Any], clock: _Clock) -> str:
    """Return ``rule night: does not match: outside its hours, 22:00-06:00; begins 22:00 (Europe/Athens)``."""
    name = f"{_KINDS[rule.get('kind', 'throttle')]} {rule['rule']}"
    if rule["matched"]:
        until = None if rule["until"] is None else f"until {clock.future_text(rule['until'])}"
        return "; ".join(filter(None, (f"{name}: matches", rule["failed"], until)))
    return f"{name}: does not match: {rule['failed']}"


def events(options: argparse.Namespace) -> int:
    path = options.socket or status_socket(options.config)
    request: dict[str, Any] = {"query": "events", "limit": options.limit}
    request |= {name: getattr(options, name) for name in ("client", "rule", "token") if getattr(options, name)}
    selected = _follow(path, request) if options.follow else query_daemon(path, request, "events")["events"]
    try:
        for line in map(json.dumps, selected) if options.json else event_lines(selected):
            print(line, flush=options.follow)
    except KeyboardInterrupt:
        if not options.follow:  # with --follow, this is the only way to end the command
            raise
    if not selected:
        print_unknown_names(path, request)
    return DONE


def _follow(path: Path, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of *request*, and then new events, forever. Missing events are reported on stderr."""
    pid: int | None = None
    is_waiting = False
    while True:
        try:
            answer = query_daemon(path, request, "events")
        except NoAnswerError as error:
            if pid is None:
                raise
            # The daemon may be restarting: continue when it answers again.
            if not is_waiting:
                journal.say(f"note: {error} Waiting for the daemon")
            is_waiting = True
            time.sleep(FOLLOW_SECONDS)
            continue
        after, previous_pid, pid, is_waiting = request.get("after", 0), pid, answer["pid"], False
        if answer["last"] < after or previous_pid not in (None, pid):
            journal.say("note: the daemon was restarted; its events begin here")
            request["after"] = 0
            continue
        missing = answer["first"] - after - 1
        if after and missing > 0:
            journal.say(f"note: {missing} events are missing: the daemon keeps only the latest events")
        events = answer["events"]
        yield from events
        # A full answer may omit events: request the next events. Otherwise request only new events.
        is_full = "after" in request and len(events) == request["limit"]
        request |= {"after": events[-1]["seq"] if is_full else answer["last"], "limit": MAX_EVENTS}
        time.sleep(FOLLOW_SECONDS)


def event_lines(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each of *events*, after a line with the date if the day changed, in this host's time zone."""
    day = ""
    for event in events:
        local = datetime.fromtimestamp(event["time"])
        if (date := local.strftime("%A, %Y-%m-%d")) != day:
            yield (day := date)
        rule = f" ({event['rule']})" if event["rule"] and event["rule"] not in event["text"] else ""
        clock = local.strftime("%H:%M:%S.%f")[:-3]
        yield f"{clock}  {event['kind']:<10}  {event['token'] or '-':<8}  {event['text']}{rule}"


def reload(options: argparse.Namespace) -> int:
    reloads = reload_outcome(status_socket(options.config))
    errors = (reloads["last_refused"] or {}).get("errors", ())
    # If stderr is the journal, the daemon has already logged these lines there.
    for line in () if journal.is_journal() else (*reloads.get("settings", ()), *errors):
        journal.say(line, journal.ERROR if line in errors else journal.WARNING)
    if errors:
        print_error("reload refused: the previous policy stays in force")
        return FAILED
    print("policy reloaded")
    return DONE


def reload_outcome(path: Path) -> dict[str, Any]:
    """Make the daemon at *path* reload its policy; return the field ``reloads`` of its status. Raises QueryError."""
    before = query_daemon(path, {"query": "head"}, "reloads")
    try:
        os.kill(before["pid"], signal.SIGHUP)
    except PermissionError as error:
        raise QueryError("only root and the throttler's user may make it reload") from error
    except ProcessLookupError as error:
        raise QueryError(f"the daemon at {path} has just ended") from error
    deadline = time.monotonic() + RELOAD_SECONDS
    while True:
        reloads: dict[str, Any] = query_daemon(path, {"query": "head"}, "reloads")["reloads"]
        if any(reloads[each] > before["reloads"][each] for each in ("accepted", "refused")):
            return reloads
        if time.monotonic() > deadline:
            raise QueryError(f"the reload takes longer than {RELOAD_SECONDS:.0f} seconds")
        time.sleep(0.1)
