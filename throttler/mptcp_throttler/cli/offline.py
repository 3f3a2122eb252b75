"""The command that needs neither a daemon nor its host: replay."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_common.problems import DocumentError, Problem
from mptcp_throttler.cli.complaints import complain, policy_with_warnings
from mptcp_throttler.config.status_socket import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from mptcp_throttler.mptcp.captured import Unread
    from mptcp_throttler.policy.model import Network, Policy
    from mptcp_throttler.views.replay import Replay
    from mptcp_throttler.views.replayed import Entry

DEFAULT_PORT = 3128
MOST_NAMED = 10
"""Link types and EtherTypes that a note names."""
_ETHER_TYPES = {0x8847: "MPLS", 0x8848: "MPLS", 0x8864: "PPPoE", 0x88E5: "MACsec"}


def replay(options: argparse.Namespace) -> int:
    from mptcp_throttler.mptcp.captured import Unread, ether_type, read_record
    from mptcp_throttler.views import timeline
    from mptcp_throttler.views.capture_file import CaptureError, CaptureFile
    from mptcp_throttler.views.replay import Replay

    if any(not 0 < port < 65536 for port in options.port or ()):
        complain("--port: a port is from 1 to 65535")
        return USAGE
    policy, ports, interfaces = _given(options)
    run = Replay(policy, ports, interfaces)
    people = timeline.Timeline(policy.time_zone)
    capture = CaptureFile(options.capture)
    unread = dict.fromkeys(Unread, 0)
    links: set[int] = set()
    ether_types: set[int] = set()
    records = 0
    named = bool(interfaces)

    def show(entries: Iterable[Entry]) -> None:
        for entry in entries:
            for line in (timeline.as_json(entry),) if options.json else people.lines(entry):
                print(line)

    try:
        for record in capture:
            records += 1
            outgoing = None if options.elsewhere else record.outgoing
            found = read_record(
                record.data, record.length, record.link_type, ports, record.time, record.interface, outgoing
            )
            if isinstance(found, Unread):
                unread[found] += 1
                if found is Unread.LINK and len(links) < MOST_NAMED:
                    links.add(record.link_type)
                elif found is Unread.ETHER_TYPE and len(ether_types) < MOST_NAMED:
                    ether_types.add(ether_type(record.data, record.link_type))
                continue
            named = named or bool(record.interface)
            if options.elsewhere:
                found = replace(found, segment=replace(found.segment, outgoing=None))
            show(run.take(found))
    except CaptureError as error:
        complain(error)
        return FAILED
    show(run.finish())
    notes = [] if capture.damage is None else [capture.damage]
    notes += [*_unread(unread, links, ether_types), *timeline.notes(run)]
    left_out = unread[Unread.LINK] + unread[Unread.ETHER_TYPE] + unread[Unread.CUT]
    notes += _unseen(policy, run, ports, named, otherwise=left_out == 0)
    if options.json:
        print(timeline.summary_json(run, notes))
    else:
        for line in timeline.summary(run):
            print(line)
        sys.stdout.flush()
        for note in notes:
            journal.say(f"note: {note}")
    return FAILED if records and left_out == records else DONE


def _unread(unread: Mapping[Unread, int], links: Iterable[int], ether_types: Iterable[int]) -> Iterator[str]:
    """Yield what was not read of the capture, and why."""
    from mptcp_common.units import counted
    from mptcp_throttler.mptcp.captured import LINK_TYPES, Unread

    if foreign := unread[Unread.LINK]:
        known = ", ".join(f"{name} ({', '.join(map(str, numbers))})" for name, numbers in LINK_TYPES.items())
        kinds = ", ".join(map(str, sorted(links)))
        yield f"{counted(foreign, 'packet')} of link type {kinds} not read; known are {known}"
    if foreign := unread[Unread.ETHER_TYPE]:
        named = (
            f"{each:#06x}" + (f" ({_ETHER_TYPES[each]})" if each in _ETHER_TYPES else "")
            for each in sorted(ether_types)
        )
        yield (
            f"{counted(foreign, 'packet')} of EtherType {', '.join(named)} not read, whatever is in them; "
            "capture on the interface on which they are IP"
        )
    if cut := unread[Unread.CUT]:
        yield f"{counted(cut, 'packet')} cut off before the end of the TCP header; capture 160 bytes (tcpdump -s 160)"
    if fragments := unread[Unread.FRAGMENT]:
        yield (
            f"{counted(fragments, 'later fragment')} of TCP segments not read, for only the first has ports; what they "
            "carried counts where the capture has what came behind it"
        )


def _unseen(policy: Policy, run: Replay, ports: tuple[int, ...], named: bool, otherwise: bool) -> Iterator[str]:
    """Yield why nothing may have been seen of the proxy, or of paths that are told apart by interfaces.

    *otherwise*: all packets in which there may be IP were read, so that the proxy has another port.
    """
    if not run.totals.segments:
        hint = "; another one is given by --port" if otherwise else " in what was read"
        yield f"no segment to or from port {' or '.join(map(str, ports))}{hint}"
    paths = [path.name for path in policy.paths if path.interfaces is not None]
    if paths and not named:
        yield (
            f"the capture names no interface, so no subflow is on path {' or '.join(paths)}; "
            "--interface [PREFIX=]NAME says by which one they leave"
        )


def _given(
    options: argparse.Namespace,
) -> tuple[Policy, tuple[int, ...], tuple[tuple[Network | None, str], ...]]:
    """Return policy, ports and interfaces: of the options, else of the settings, else what is usual."""
    from mptcp_throttler.config.files import read_settings

    settings = None
    if options.config is not None or options.policy is None:
        settings = read_settings(options.config or DEFAULT_SETTINGS)
    policy = policy_with_warnings(options.policy or settings.policy if settings else options.policy, None)
    ports = tuple(options.port or ()) or (settings.ownership.listen_ports if settings else (DEFAULT_PORT,))
    interfaces = tuple(_interface(text) for text in options.interface or ())
    if not interfaces and settings is not None and len(settings.interfaces) == 1:
        interfaces = ((None, settings.interfaces[0]),)
    if options.time_zone is not None:
        from mptcp_throttler.policy.fields import parse_time_zone

        try:
            policy = replace(policy, time_zone=parse_time_zone(options.time_zone))
        except ValueError as error:
            raise _mistake("--time-zone", options.time_zone, str(error)) from None
    return policy, ports, interfaces


def _interface(text: str) -> tuple[Network | None, str]:
    prefix, equals, name = text.rpartition("=")
    try:
        return (ip_network(prefix) if equals else None), name
    except ValueError as error:
        message = f'{error}; write NAME or PREFIX=NAME (e.g. "10.77.1.0/24=wan0")'
        raise _mistake("--interface", text, message) from None


def _mistake(option: str, value: str, message: str) -> DocumentError:
    return DocumentError([Problem(option, 0, 0, "", value, message)])


def add_replay(command: argparse.ArgumentParser) -> None:
    """Give *command* its arguments."""
    command.add_argument("capture", type=Path, metavar="CAPTURE", help="a pcap or pcapng file, or - for standard input")
    command.add_argument("--policy", type=Path, metavar="FILE", help="this policy instead of the one in the settings")
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="take ports, interface and policy from this settings file; without it and with --policy none is read",
    )
    command.add_argument(
        "--port", type=int, action="append", metavar="NUMBER", help=f"a port of the proxy (default: {DEFAULT_PORT})"
    )
    command.add_argument(
        "--interface",
        action="append",
        metavar="[PREFIX=]NAME",
        help="the proxy's interface towards clients of PREFIX, or towards all; the first that fits counts",
    )
    command.add_argument("--time-zone", metavar="ZONE", help="Region/City instead of the policy's time zone")
    command.add_argument(
        "--elsewhere",
        action="store_true",
        help="captured elsewhere than on the proxy's host: which way packets went there says nothing",
    )
    command.add_argument("--json", action="store_true", help="print JSON, one object a line")
    command.set_defaults(command=replay)
