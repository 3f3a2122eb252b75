# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``replay``, which prints a capture of the proxy's packets as a timeline, in text or in JSON lines with
the keys of ``events --json``. It needs neither a running daemon nor the proxy's host."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import datetime, tzinfo
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from mptcp_common import journal
from mptcp_common.endpoints import PROXY_PORT
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_common.units import approximate_size, counted
from mptcp_throttler.cli.shared import option_error, policy_with_warnings, print_error
from mptcp_throttler.config import DEFAULT_SETTINGS
from mptcp_throttler.config.files import read_settings
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.values import Network
from mptcp_throttler.replay.capture import KNOWN_LINK_TYPES, CaptureError, CaptureFile
from mptcp_throttler.replay.replay import Entry, Replay
from mptcp_throttler.views.text import end_text

_TIMED_KINDS: Final = ("segment", "clock", "budget")  # kinds of entries whose time is shown; others are their effects
_NOTES: Final = {
    "version_0": ("SYN", " for MPTCP version 0 (RFC 6824), which is not tracked"),
    "misdirected": (
        "segment",
        " ignored: they came in with the proxy's address, or went out with a client's: forged, or not captured on "
        "the proxy (--elsewhere)",
    ),
    "malformed": ("MPTCP option", " that RFC 8684 does not define"),
    "unproven_joins": ("join", " whose HMAC could not be checked: keys are missing"),
    "overflows": ("subflow", " not tracked: there were too many"),
}
"""For each counter: the unit, and the rest of the note."""


def replay(options: argparse.Namespace) -> int:
    if any(not 0 < port < 65536 for port in options.port or ()):
        print_error("--port: a port is from 1 to 65535")
        return USAGE
    run = _create_replay(options)
    try:
        with sys.stdin.buffer if options.capture == Path("-") else options.capture.open("rb") as file:
            capture = CaptureFile(file, str(options.capture))
            entries = _entries(run, capture, options.elsewhere)
            for line in map(_json_line, entries) if options.json else _text_lines(entries, run.policy.time_zone):
                print(line)
    except CaptureError as error:
        print_error(error)
        return FAILED
    notes = list(_notes(run, capture))
    if options.json:
        rules = {rule: asdict(caps) for rule, caps in run.rules.items()}
        counts = {each: getattr(run, each) for each in ("connections", "subflows", "segments")}
        totals = {"time": run.now, "kind": "summary", **counts, "rules": rules, "budgets": run.accounts()}
        print(json.dumps(totals | {"notes": notes}))
    else:
        for line in _summary(run):
            print(line)
        sys.stdout.flush()
        for note in notes:
            journal.say(f"note: {note}")
    return FAILED if capture.packets and capture.truncated + capture.unsupported.total() == capture.packets else DONE


def _entries(run: Replay, capture: CaptureFile, is_elsewhere: bool) -> Iterator[Entry]:
    for captured in capture:
        segment = captured.segment
        if segment.source_port in run.ports or segment.destination_port in run.ports:
            undirected = captured._replace(segment=replace(segment, outgoing=None))
            yield from run.process(undirected if is_elsewhere else captured)
    yield from run.finish()


def _create_replay(options: argparse.Namespace) -> Replay:
    """Take policy, ports and interfaces from the options, otherwise from the settings, otherwise from the defaults."""
    settings = None
    if options.config is not None or options.policy is None:
        settings = read_settings(options.config or DEFAULT_SETTINGS)
    policy = policy_with_warnings(options.policy or settings.policy if settings else options.policy, None)
    ports = tuple(options.port or ()) or (settings.ownership.listen_ports if settings else (PROXY_PORT,))
    interfaces = tuple(_parse_interface(text) for text in options.interface or ())
    if not interfaces and settings is not None and len(settings.interfaces) == 1:
        interfaces = ((None, settings.interfaces[0]),)
    return Replay(policy, ports, interfaces)


def _parse_interface(text: str) -> tuple[Network | None, str]:
    prefix, equals, name = text.rpartition("=")
    try:
        return (ip_network(prefix) if equals else None), name
    except ValueError as error:
        message = f'{error}; write NAME or PREFIX=NAME (e.g. "10.77.1.0/24=wan0")'
        raise option_error("--interface", message) from None


def _text_lines(entries: Iterable[Entry], zone: tzinfo) -> Iterator[str]:
    """Yield the line of each entry, in the time of *zone*, and a line with the date when the day changes."""
    last_day = ""
    for entry in entries:
        local = datetime.fromtimestamp(entry.time, zone)
        day = local.strftime("%Y-%m-%d %Z").strip()
        if day != last_day:
            last_day = day
            yield day
        clock = local.strftime("%H:%M:%S.%f") if entry.kind in _TIMED_KINDS else " " * len("00:00:00.000000")
        end = "" if entry.four_tuple is None or entry.kind == "connection" else f"{_remote_end(entry.four_tuple)} "
        arrow = {"client": "> ", "proxy": "< "}.get(str(entry.details.get("from")), "")
        yield f"{clock}  {end}{arrow}{entry.text}"


def _json_line(entry: Entry) -> str:
    """Return *entry* as one line of JSON. Times are seconds since the epoch, rates bits/s."""
    fields: dict[str, Any] = {"time": entry.time, "kind": entry.kind}
    if entry.token is not None:
        fields["token"] = f"{entry.token:08x}"
    if entry.four_tuple is not None:
        fields["remote"] = _remote_end(entry.four_tuple)
        fields["local"] = end_text(entry.four_tuple.local, entry.four_tuple.local_port)
    fields |= {key: value for key, value in entry.details.items() if value is not None}
    return json.dumps(fields | {"text": entry.text})


def _remote_end(four_tuple: FourTuple) -> str:
    return end_text(four_tuple.remote, four_tuple.remote_port)


def _summary(run: Replay) -> Iterator[str]:
    seconds = run.now - (run.start_time or 0.0)
    yield (
        f"{counted(run.connections, 'connection')}, {counted(run.subflows, 'subflow')} and "
        f"{counted(run.segments, 'segment')} of the proxy in {seconds:.1f} s"
    )
    for rule, caps in run.rules.items():
        sizes = f"{caps.seconds:.1f} s and {approximate_size(caps.bytes)} in all"
        yield f"rule {rule}: {counted(caps.caps, 'cap')}, {sizes}"
    for each in run.accounts():
        client = f" of client {each['client']}" if each["client"] else ""
        used = f"{approximate_size(each['used'])} of {approximate_size(each['volume'])} used"
        yield f"budget {each['name']}{client}: {used}"


def _notes(run: Replay, capture: CaptureFile) -> Iterator[str]:
    """Yield notes on data that are missing in the timeline, with the reasons."""
    if capture.damage is not None:
        yield capture.damage
    if unsupported := capture.unsupported.total():
        kinds = ", ".join(map(str, sorted(capture.unsupported)))
        yield f"{counted(unsupported, 'packet')} of link type {kinds} not read; supported are {KNOWN_LINK_TYPES}"
    if truncated := capture.truncated:
        yield f"{counted(truncated, 'packet')} without a whole TCP header; capture 160 bytes (tcpdump -s 160)"
    if run.older_subflows:
        older = f"{counted(run.older_subflows, 'subflow')} began before the capture"
        yield f"{older}: not tracked; a daemon reads them from the kernel"
    for name, (unit, meaning) in _NOTES.items():
        if count := run.counters[name]:
            yield f"{counted(count, unit)}{meaning}"
    if not run.segments:
        yield f"no segment to or from port {' or '.join(map(str, run.ports))} was read; set another port with --port"
    paths = [name for name, path in run.policy.paths.items() if path.interfaces is not None]
    if paths and not run.interface_is_known:
        yield (
            f"the capture names no interface, so no subflow is on path {' or '.join(paths)}; "
            "--interface [PREFIX=]NAME sets the interface of the subflows"
        )
