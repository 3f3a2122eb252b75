"""The command replay, which needs neither a daemon nor its host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import BinaryIO

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_common.units import counted
from mptcp_throttler.cli.shared import complain, mistake, policy_with_warnings
from mptcp_throttler.config import DEFAULT_SETTINGS
from mptcp_throttler.config.files import read_settings
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.values import Network
from mptcp_throttler.replay import timeline
from mptcp_throttler.replay.capture import KNOWN_LINK_TYPES, CaptureError, CaptureFile
from mptcp_throttler.replay.replay import Entry, Replay

DEFAULT_PORT = 3128


def replay(options: argparse.Namespace) -> int:
    if any(not 0 < port < 65536 for port in options.port or ()):
        complain("--port: a port is from 1 to 65535")
        return USAGE
    policy, ports, interfaces = _given(options)
    run = Replay(policy, ports, interfaces)
    people = timeline.Timeline(policy.time_zone)
    named = bool(interfaces)

    def show(entries: Iterable[Entry]) -> None:
        for entry in entries:
            for line in (timeline.as_json(entry),) if options.json else people.lines(entry):
                print(line)

    try:
        with _opened(options.capture) as file:
            capture = CaptureFile(file, str(options.capture))
            for found in capture:
                segment = replace(found.segment, outgoing=None) if options.elsewhere else found.segment
                if segment.source_port in ports or segment.destination_port in ports:
                    named = named or bool(segment.interface)
                    show(run.take(found._replace(segment=segment)))
    except CaptureError as error:
        complain(error)
        return FAILED
    show(run.finish())
    notes = [*_unread(capture), *timeline.notes(run), *_unseen(policy, run, ports, named)]
    if options.json:
        print(timeline.summary_json(run, notes))
    else:
        for line in timeline.summary(run):
            print(line)
        sys.stdout.flush()
        for note in notes:
            journal.say(f"note: {note}")
    return FAILED if capture.packets and capture.cut + capture.foreign.total() == capture.packets else DONE


def _opened(path: Path) -> BinaryIO:
    try:
        return sys.stdin.buffer if path == Path("-") else open(path, "rb")
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}") from error


def _unread(capture: CaptureFile) -> Iterator[str]:
    """Yield which packets of the capture were not read, and why."""
    if capture.damage is not None:
        yield capture.damage
    if foreign := capture.foreign.total():
        kinds = ", ".join(map(str, sorted(capture.foreign)))
        yield f"{counted(foreign, 'packet')} of link type {kinds} not read; known are {KNOWN_LINK_TYPES}"
    if cut := capture.cut:
        yield f"{counted(cut, 'packet')} cut off before the end of the TCP header; capture 160 bytes (tcpdump -s 160)"


def _unseen(policy: Policy, run: Replay, ports: tuple[int, ...], named: bool) -> Iterator[str]:
    """Yield why the proxy, or paths identified by interfaces, may be missing from the result."""
    if not run.segments:
        yield f"no segment to or from port {' or '.join(map(str, ports))} was read; another one is given by --port"
    paths = [name for name, path in policy.paths.items() if path.interfaces is not None]
    if paths and not named:
        yield (
            f"the capture names no interface, so no subflow is on path {' or '.join(paths)}; "
            "--interface [PREFIX=]NAME says by which one they leave"
        )


def _given(
    options: argparse.Namespace,
) -> tuple[Policy, tuple[int, ...], tuple[tuple[Network | None, str], ...]]:
    """Return policy, ports and interfaces from the options, otherwise from the settings, otherwise defaults."""
    settings = None
    if options.config is not None or options.policy is None:
        settings = read_settings(options.config or DEFAULT_SETTINGS)
    policy = policy_with_warnings(options.policy or settings.policy if settings else options.policy, None)
    ports = tuple(options.port or ()) or (settings.ownership.listen_ports if settings else (DEFAULT_PORT,))
    interfaces = tuple(_interface(text) for text in options.interface or ())
    if not interfaces and settings is not None and len(settings.interfaces) == 1:
        interfaces = ((None, settings.interfaces[0]),)
    return policy, ports, interfaces


def _interface(text: str) -> tuple[Network | None, str]:
    prefix, equals, name = text.rpartition("=")
    try:
        return (ip_network(prefix) if equals else None), name
    except ValueError as error:
        message = f'{error}; write NAME or PREFIX=NAME (e.g. "10.77.1.0/24=wan0")'
        raise mistake("--interface", text, message) from None
