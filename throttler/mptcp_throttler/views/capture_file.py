"""Reads capture files, pcap and pcapng, plain or compressed by gzip, record by record, by Scapy's readers.

Whatever is in a file: no more than some megabytes of it are in memory, what is damaged ends the reading with a sentence
that says so, and nothing is printed.
"""

from __future__ import annotations

import gzip
import logging
import math
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from mptcp_common.reasons import reason

LARGEST_READ: Final = 16 << 20
"""Bytes of one block; no writer makes larger ones."""
LATEST: Final = 1 << 33
"""Seconds since the epoch, in the year 2242: a later time is nonsense."""
_GZIP: Final = b"\x1f\x8b"
_OUTBOUND: Final = {1: False, 2: True}
"""The direction of a pcapng packet: inbound, outbound."""
_LINK_TYPE: Final = 0xFFFF
"""Of the field in the header of pcap; the rest says how long the check sequence behind each frame is, if any is."""
_INTERFACE, _OLD_PACKET, _PACKET = 1, 2, 6
"""Types of pcapng's blocks: Interface Description, Packet (obsolete), Enhanced Packet."""
_TIME_OFFSET: Final = 14
"""Option if_tsoffset of an interface: seconds to be added to the time of each packet, a signed number of 64 bits."""
_STANDARD_INPUT: Final = Path("-")


class CaptureError(Exception):
    """A file that is no capture, or cannot be read."""


class Record(NamedTuple):
    """One packet of a capture file."""

    data: bytes
    """What was captured of it."""
    length: int
    """Its bytes on the wire."""
    link_type: int
    time: float
    interface: str
    """As the file names it; "" where it does not."""
    outgoing: bool | None


class _Watched:
    """A file that refuses absurd reads, and notes whether one found less than it was to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.ended_early = False
        self.read_on = False
        """Somebody looked for more behind the end: a record begins there that has nothing but its header."""
        self.at_end = False
        self.broken: str | None = None
        """Why the file itself cannot be read on."""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise OSError(f"a block of {size} bytes")
        if size == 0:
            return b""
        try:
            found = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            self.broken = reason(error)
            return b""
        self.ended_early = self.ended_early or 0 < len(found) < size
        self.read_on = self.read_on or self.at_end
        self.at_end = not found
        return found

    def close(self) -> None:
        """The file is closed by whoever opened it."""


class _Complaints(logging.Handler):
    """Keeps the last complaint of Scapy."""

    def __init__(self) -> None:
        super().__init__()
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage().strip()


class CaptureFile:
    """The records of one file, once; ``damage`` says afterwards what is wrong with it."""

    def __init__(self, path: Path) -> None:
        """*path*: ``-`` for standard input."""
        self._path = path
        self.damage: str | None = None

    def __iter__(self) -> Iterator[Record]:
        """Yield the records. Raises CaptureError where the file is none, or cannot be read."""
        from scapy.error import Scapy_Exception
        from scapy.utils import RawPcapReader

        with ExitStack() as stack:
            complaints = stack.enter_context(_scapys_complaints())
            try:
                watched = _Watched(stack.enter_context(self._opened()))
                reader: Any = RawPcapReader(watched)
            except OSError as error:
                raise CaptureError(f"{self._path}: cannot be read: {reason(error)}") from error
            except Scapy_Exception as error:
                if watched.broken is not None:
                    raise CaptureError(f"{self._path}: cannot be read: {watched.broken}") from error
                what = (
                    "the file ends within its header" if watched.ended_early else "is no capture file, pcap or pcapng"
                )
                raise CaptureError(f"{self._path}: {what}") from error
            if hasattr(reader, "interfaces"):
                _begin_sections_anew(reader)
                _heed_interfaces(reader)
            before = 0.0
            while True:
                try:
                    data, about = next(reader)
                except StopIteration:
                    break
                except Exception as error:
                    # Whatever a library makes of bytes that nobody foresaw.
                    complaints.last = reason(error)
                    break
                complaints.last = None
                record = _record(data, about, reader, before)
                before = record.time
                yield record
            if watched.broken is not None:
                self.damage = f"{self._path}: cannot be read to its end: {watched.broken}"
            elif watched.ended_early or watched.read_on:
                self.damage = f"{self._path}: the file ends in the middle of a record; what follows is not there"
            elif complaints.last is not None or not watched.at_end:
                what = complaints.last or "its length is not the same at both ends"
                self.damage = f"{self._path}: not read to its end, there is a damaged record: {what}"

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with ExitStack() as stack:
            if self._path == _STANDARD_INPUT:
                file: Any = sys.stdin.buffer
            else:
                file = stack.enter_context(self._path.open("rb"))
            if file.peek(2)[:2] == _GZIP:
                file = stack.enter_context(gzip.open(file))
            yield file


@contextmanager
def _scapys_complaints() -> Iterator[_Complaints]:
    """Have Scapy tell its complaints to nobody else."""
    logger, complaints = logging.getLogger("scapy.runtime"), _Complaints()
    before = logger.handlers, logger.propagate, logger.filters
    logger.handlers, logger.propagate, logger.filters = [complaints], False, []
    try:
        yield complaints
    finally:
        logger.handlers, logger.propagate, logger.filters = before


def _begin_sections_anew(reader: Any) -> None:
    """Have *reader* forget its interfaces where a section of pcapng begins, which numbers its own from 0: Scapy takes
    them for more of those before. A file has several where somebody put captures behind each other."""
    read_header = reader._read_block_shb

    def begin() -> None:
        reader.interfaces.clear()
        read_header()

    reader._read_block_shb = begin


def _heed_interfaces(reader: Any) -> None:
    """Have *reader* heed what Scapy passes over of an interface: that its times count from another moment, and that
    a limit of 0 to what is captured of a packet is none (draft-ietf-opsawg-pcapng, 4.2)."""
    read_interface, name = reader.blocktypes[_INTERFACE], "time offset"

    def with_offset(read_packet: Callable[[bytes, int], Any], number: str) -> Callable[[bytes, int], Any]:
        def packet(block: bytes, size: int) -> Any:
            found = read_packet(block, size)
            if found is None:
                return None
            data, about = found
            _, _, options = reader.interfaces[struct.unpack_from(reader.endian + number, block)[0]]
            ticks = (about.tshigh << 32 | about.tslow) + options[name] * about.tsresol
            return data, about._replace(tshigh=ticks >> 32, tslow=ticks & 0xFFFFFFFF)

        return packet

    packets = {
        _PACKET: with_offset(reader.blocktypes[_PACKET], "I"),
        _OLD_PACKET: with_offset(reader.blocktypes[_OLD_PACKET], "H"),
    }

    def interface(block: bytes, size: int) -> None:
        read_interface(block, size)
        link_type, limit, options = reader.interfaces[-1]
        value = reader._read_options(block[8:]).get(_TIME_OFFSET, b"")
        options[name] = struct.unpack(reader.endian + "q", value)[0] if len(value) == 8 else 0
        reader.interfaces[-1] = link_type, limit or LARGEST_READ, options
        if options[name]:
            # From here on: hardly any file has one, and each packet takes longer.
            reader.blocktypes.update(packets)

    reader.blocktypes[_INTERFACE] = interface


def _record(data: bytes, about: Any, reader: Any, before: float) -> Record:
    if hasattr(about, "sec"):
        time = about.sec + about.usec / (1e9 if reader.nano else 1e6)
        link_type = reader.linktype & _LINK_TYPE
        return Record(data, max(about.wirelen, len(data)), link_type, _time(time, before), "", None)
    # A simple packet of pcapng has no time.
    time = before if about.tshigh is None else ((about.tshigh << 32) | about.tslow) / about.tsresol
    name = _printable(about.ifname)
    length = max(about.wirelen, len(data))
    return Record(data, length, about.linktype, _time(time, before), name, _OUTBOUND.get(about.direction))


def _time(time: float, before: float) -> float:
    """Return *time*, that of the record before it where it is nonsense."""
    return time if math.isfinite(time) and 0 <= time < LATEST else before


def _printable(name: bytes | None) -> str:
    """Return the name of an interface without what would control a terminal."""
    return "".join(each for each in (name or b"").decode(errors="replace") if each.isprintable())
