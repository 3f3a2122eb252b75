"""The wire form of HTB classes and their leaf queues. linux/pkt_sched.h, tc-htb(8).

pyroute2 takes 0.3 ms of processor time for a class that it reads and a whole datagram of them at once; a cap for each
of 10,000 clients is as many classes on every interface.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mptcp_throttler.kernel.netlink import attribute, attributes

TCMSG = struct.Struct("=BxxxiIII")
RTM_NEWQDISC, RTM_NEWTCLASS, RTM_DELTCLASS = 36, 40, 41
_TCA_KIND, _TCA_OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_HTB_OPTIONS = struct.Struct("=8xI8xIIIIII")
"""struct tc_htb_opt: of the two struct tc_ratespec the rate only."""
_TBF_PARMS = 1
_TBF_LIMIT = struct.Struct("=24xI")
"""struct tc_tbf_qopt, after two struct tc_ratespec."""
_TICK_SECONDS = 64e-9
_TCA_STATS2, _STATS_BASIC, _STATS_QUEUE = 7, 1, 3
_BASIC, _QUEUE = struct.Struct("=QI"), struct.Struct("=8xI")
"""struct gnet_stats_basic; of struct gnet_stats_queue the drops."""


_ETHERNET = 1
"""TC_LINKLAYER_ETHERNET: without it the kernel would look for a table of rates."""
_RATE = struct.Struct("=BBHhHI")
"""struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate."""
_MAX_RATE_32 = 0xFFFFFFFF
_TBF_RATE64, _TBF_BURST = 4, 6


class HtbClass(NamedTuple):
    """One class. Rates in bytes/s, sizes in bytes."""

    handle: int
    parent: int
    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int


class Queue(NamedTuple):
    """One queueing discipline."""

    kind: str
    handle: int
    parent: int
    options: bytes


def queue(body: bytes, index: int) -> Queue | None:
    """Return what an RTM_NEWQDISC says; None for another interface's."""
    _family, owner, handle, parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    fields = dict(attributes(body, TCMSG.size))
    kind = fields.get(_TCA_KIND, b"").rstrip(b"\0").decode()
    return Queue(kind, handle, parent, fields.get(_TCA_OPTIONS, b""))


def htb_class(body: bytes, index: int) -> HtbClass | None:
    """Return what an RTM_NEWTCLASS says; None for another interface's and for one that is not HTB's."""
    _family, owner, handle, parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    fields = dict(attributes(body, TCMSG.size))
    options = dict(attributes(fields.get(_TCA_OPTIONS, b"")))
    parameters = options.get(_HTB_PARMS, b"")
    if fields.get(_TCA_KIND) != b"htb\0" or len(parameters) < _HTB_OPTIONS.size:
        return None
    rate, ceil, buffer, cbuffer, quantum, _level, _priority = _HTB_OPTIONS.unpack_from(parameters)
    # 32 bits are not enough for 34 Gbit/s.
    rate = int.from_bytes(options.get(_HTB_RATE64, b""), "little") or rate
    ceil = int.from_bytes(options.get(_HTB_CEIL64, b""), "little") or ceil
    burst, cburst = round(buffer * _TICK_SECONDS * rate), round(cbuffer * _TICK_SECONDS * ceil)
    return HtbClass(handle, parent, rate, ceil, burst, cburst, quantum)


def class_counters(body: bytes, index: int) -> tuple[int, int, int, int] | None:
    """Return handle, bytes, packets and drops that an RTM_NEWTCLASS says; None for another interface's."""
    _family, owner, handle, _parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    counters = dict(attributes(dict(attributes(body, TCMSG.size)).get(_TCA_STATS2, b"")))
    basic, queue = counters.get(_STATS_BASIC, b""), counters.get(_STATS_QUEUE, b"")
    if len(basic) < _BASIC.size or len(queue) < _QUEUE.size:
        return None
    passed, packets = _BASIC.unpack_from(basic)
    return handle, passed, packets, _QUEUE.unpack_from(queue)[0]


def pfifo_limit(options: bytes) -> int:
    """Return the limit of a pfifo, packets; of a bfifo, bytes."""
    return int.from_bytes(options[:4], "little")


def tbf_limit(options: bytes) -> int:
    """Return the limit of a tbf, bytes."""
    parameters = dict(attributes(options)).get(_TBF_PARMS, b"")
    return int(_TBF_LIMIT.unpack_from(parameters)[0]) if len(parameters) >= _TBF_LIMIT.size else 0


def class_request(index: int, wanted: HtbClass) -> bytes:
    """Return the payload of the RTM_NEWTCLASS that makes or changes a class of interface *index*."""
    ticks = (
        min(0xFFFFFFFF, round(size / rate / _TICK_SECONDS))
        for size, rate in ((wanted.burst, wanted.rate), (wanted.cburst, wanted.ceil))
    )
    options = attribute(
        _HTB_PARMS, _rate(wanted.rate) + _rate(wanted.ceil) + struct.pack("=IIIII", *ticks, wanted.quantum, 0, 0)
    )
    for kind, rate in ((_HTB_RATE64, wanted.rate), (_HTB_CEIL64, wanted.ceil)):
        if rate > _MAX_RATE_32:
            options += attribute(kind, struct.pack("=Q", rate))
    return _request(index, wanted.handle, wanted.parent, "htb", options)


def queue_request(index: int, wanted: Queue) -> bytes:
    """Return the payload of the RTM_NEWQDISC that makes or changes a queueing discipline of interface *index*."""
    return _request(index, wanted.handle, wanted.parent, wanted.kind, wanted.options)


def class_name(index: int, handle: int) -> bytes:
    """Return the payload of the RTM_DELTCLASS that removes a class of interface *index*."""
    return TCMSG.pack(0, index, handle, 0, 0)


def pfifo_options(packets: int) -> bytes:
    return struct.pack("=I", packets)


def tbf_options(rate: int, burst: int, limit: int) -> bytes:
    """Return the options of a tbf: bytes/s, bytes, bytes."""
    parameters = _rate(rate) + _RATE.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", limit, 0, 0)
    options = attribute(_TBF_PARMS, parameters) + attribute(_TBF_BURST, struct.pack("=I", burst))
    return options + (attribute(_TBF_RATE64, struct.pack("=Q", rate)) if rate > _MAX_RATE_32 else b"")


def _rate(rate: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_RATE_32))


def _request(index: int, handle: int, parent: int, kind: str, options: bytes) -> bytes:
    name = attribute(_TCA_KIND, kind.encode() + b"\0")
    return TCMSG.pack(0, index, handle, parent, 0) + name + attribute(_TCA_OPTIONS, options)
