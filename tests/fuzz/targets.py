# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzz targets: functions of bytes that raise an exception if the product handles the bytes wrongly.

``unit/test_fuzz_targets.py`` runs the targets for a few seconds in each test run. ``explore.py`` runs one target with
coverage guidance, for a time that the caller chooses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mptcp_invariants import SMALL, Subscriber, check_tables
from tunnel_messages import tunnel_messages

from mptcp_common.problems import Severity
from mptcp_proxy.configuration.access import open_proxy_problems
from mptcp_proxy.configuration.check import check
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.squid_problems import interpret
from mptcp_throttler.mptcp.model import EventKind, FourTuple
from mptcp_throttler.mptcp.options import Malformed, MptcpOption, UnknownSubtype, parse_option, parse_options
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, parse_frame
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.policy.load import check_policy
from mptcp_throttler.replay.simulated_kernel import SimulatedKernel

PORT = 3128
_LINK_TYPES = (ETHERNET, RAW_IP, LINUX_COOKED, 4)
_SERVICE = "fuzz"
_SUBTYPES = ("MpCapable", "MpJoin", "Dss", "AddAddr", "RemoveAddr", "MpPrio", "MpFail", "MpFastclose", "MpTcprst")
"""Names of the MPTCP option subtypes, in the order of their numbers (figure 19 of RFC 8684)."""


def options(data: bytes) -> None:
    """Parse the options of a TCP header. *data* is a byte of TCP flags, followed by the options."""
    flags, header = data[0] if data else 0, data[1:]
    found = parse_options(header, flags)
    at, end, option_count = 0, len(header), 0
    # Find the options a second time, as RFC 9293, 3.1, defines them.
    while at < end and header[at] != 0:
        if header[at] == 1:
            at += 1
            continue
        length = header[at + 1] if at + 1 < end else 0
        is_complete = 2 <= length <= end - at
        if header[at] == 30:
            option: MptcpOption = found[option_count]
            assert is_complete or (isinstance(option, Malformed) and option.subtype is None)
            if is_complete:
                raw = header[at : at + length]
                assert option == parse_option(raw, flags)
                _assert_fits_bytes(option, raw)
            option_count += 1
        if not is_complete:
            break
        at += length
    assert option_count == len(found)


def _assert_fits_bytes(option: MptcpOption, raw: bytes) -> None:
    match option:
        case Malformed():
            assert option.data == raw
        case UnknownSubtype():
            assert (option.subtype, option.body) == (raw[2] >> 4, raw[2:])
        case _:
            assert type(option).__name__.startswith(_SUBTYPES[raw[2] >> 4])
    text = repr(option)
    if len(raw) >= 12 and raw[2] >> 4 in (0, 7):
        assert raw[4:12].hex() not in text, "repr() shows a cryptographic key"
        assert repr(raw[4:12])[2:-1] not in text, "repr() shows a cryptographic key"


def packets(data: bytes) -> None:
    """Give frames to a tracker, and the events that a kernel would have sent for each frame.

    In *data*, two bytes precede each frame: its length, and a byte with the link type, direction and
    time of its capture.
    """
    tracker, kernel, subscriber = Tracker([PORT], SMALL), SimulatedKernel(), Subscriber()
    time = 1000.0
    for size, capture, frame in _frames(data):
        time += (capture >> 4) * size / 64
        segment = parse_frame(
            frame, time, "eth0", _LINK_TYPES[capture & 3], (None, None, True, False)[capture >> 2 & 3]
        )
        if segment is None:
            continue
        assert len(segment.source) == len(segment.destination) in (4, 16)
        events = tracker.apply_segment(segment)
        assert {event.kind for event in events} <= {EventKind.SUBFLOW_CHANGED, EventKind.JOIN_REFUSED}
        incoming = FourTuple(segment.destination, segment.destination_port, segment.source, segment.source_port)
        outgoing = FourTuple(segment.source, segment.source_port, segment.destination, segment.destination_port)
        from_client = segment.destination_port == PORT
        for reported in kernel.process(segment, incoming if from_client else outgoing, from_client):
            events += tracker.apply_event(reported)
        events += tracker.expire(time)
        for event in events:
            if event.kind is EventKind.CONNECTION_CLOSED:
                kernel.forget(event.token)
        subscriber.receive(events)
        check_tables(tracker, SMALL)
    subscriber.assert_agrees_with(tracker)
    subscriber.receive(tracker.resync([], time + 1e6))
    subscriber.receive(tracker.apply_lookup(list(tracker.table.subflows), {}, time + 1e6))
    subscriber.receive(tracker.expire(time + 2e6))
    assert subscriber.live == {}
    assert not any(tracker.table_sizes.values())


def _frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + 2 < len(data):
        size, capture = data[at], data[at + 1]
        yield size, capture, data[at + 2 : at + 2 + size]
        at += 2 + size


def policy(data: bytes) -> None:
    """Check the text of a policy: the result is a policy, or messages of one line."""
    text = data.decode("utf-8", "replace")
    checked = check_policy(text, "policy.yaml")
    errors = [problem for problem in checked.problems if problem.severity is Severity.ERROR]
    assert (checked.policy is None) == bool(errors)
    for problem in (*checked.problems, *checked.notes):
        _assert_one_line(str(problem))
        assert 0 <= problem.line <= text.count("\n") + text.count("\r") + 2


def squid_configuration(data: bytes) -> None:
    """Check the text of a squid.conf. The text is written to a file, because it may include itself."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        path = Path(directory, "squid.conf")
        path.write_bytes(data.replace(b"SELF", bytes(path)))
        checked = check(path, _SERVICE, None)
    for problem in checked.problems:
        _assert_one_line(str(problem))
    lines = [PhysicalLine("squid.conf", number, line.text) for number, line in enumerate(checked.lines, 1)]
    found = list(statements(lines, _SERVICE))
    for statement in found:
        assert 0 <= statement.first <= statement.last < len(lines)
    assert list(open_proxy_problems(list(statements([_line("http_access allow all"), *lines], _SERVICE))))
    assert not list(open_proxy_problems(list(statements([_line("http_access deny all"), *lines], _SERVICE))))
    # Interpret messages of Squid that contain lines of the file.
    output = "\n".join(f"2026/01/01 00:00:00| Processing: {each.text}\n{each.text}" for each in found)
    for problem in interpret(output, found, set())[0]:
        _assert_one_line(str(problem))


def _line(text: str) -> PhysicalLine:
    return PhysicalLine("squid.conf", 0, text)


def _assert_one_line(text: str) -> None:
    assert text.isprintable(), ascii(text)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "options": options,
    "packets": packets,
    "policy": policy,
    "squid_configuration": squid_configuration,
    "tunnel_messages": tunnel_messages,
}
