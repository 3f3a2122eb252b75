# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads and attaches the kernel programs, the splitter and the joiner, and sets their maps. bpf(2), tc-bpf(8).

The structures match ``programs/tunnel.h``; the loader compares the sizes of the structures in maps.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.bpf import Bpf
from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_tunnel.model import MAX_PATHS, MAX_TUNNELS, Address, End, Ends, PathCounters, PathState, Split

log = logging.getLogger(__name__)
PROGRAMS: Final = Path(__file__).parent / "programs"
SPLITTER, JOINER, IP_JOINER = "mptcp_split", "mptcp_join", "mptcp_join_ip"
_BYTE_TIME_SHIFT: Final = 10
MAX_VIRTUAL_QUEUE: Final = 100_000_000
"""Maximum length of a path's virtual queue, nanoseconds. A path with a longer queue is used only if all other paths
also have longer queues."""
_END = struct.Struct("=16sHH")
_NUMBER = struct.Struct("=I")
_PATH_KEY = struct.Struct("=II")
_HOP = struct.Struct("=I16s")
_PATH = struct.Struct(f"={2 * _END.size}s{_HOP.size}sIIIQQQQ")
_TUNNEL = struct.Struct(f"={2 * _END.size}sQQQIIQ{MAX_PATHS * _PATH.size}s")
PATH_STATE = struct.Struct("=QQQQQ")
"""The time when the path's virtual queue will be empty, then the path's counters."""
STATE_HEAD = struct.Struct("=QQ")
"""Number of the last packet, and the clock of WEIGHTS; the paths follow."""
_SETTINGS = struct.Struct("=I8s8192s")
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
"""Parents of filters at a clsact qdisc (linux/pkt_sched.h)."""
_ETHERNET_TYPES = (1, 772)
"""ARPHRD_ETHER and the loopback device (linux/if_arp.h): their packets begin with an Ethernet header."""
_ETH_P_ALL = 3
_PREFERENCE: Final = 7
"""Preference (prio) of the tunnel's filters."""


def packed_end(end: End) -> bytes:
    """Return struct end: an address, IPv4 mapped into IPv6, and the port in network order."""
    packed = end.address.packed
    address = packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
    return _END.pack(address, socket.htons(end.port), 0)


def packed_ends(ends: Ends) -> bytes:
    return packed_end(ends.local) + packed_end(ends.remote)


def _packed_hop(next_hop: Address) -> bytes:
    family = socket.AF_INET if next_hop.version == 4 else socket.AF_INET6
    return _HOP.pack(family, next_hop.packed)


def _packed_path(path: PathState, share: float | None) -> bytes:
    """Return struct path. *share*: the path's fixed share of the bytes; None if its rate determines the share."""
    byte_time = round((8e9 / path.rate if share is None else 1 / share) * (1 << _BYTE_TIME_SHIFT))
    numbers = path.interface, path.alive, path.class_id, byte_time, path.delay, MAX_VIRTUAL_QUEUE, path.queue
    return _PATH.pack(packed_ends(path.outside), _packed_hop(path.next_hop), *numbers)


class Programs:
    """Both programs, attached to the devices of one network namespace."""

    def __init__(self, device: int, address: bytes, ports: Iterable[int]) -> None:
        """*device*: index of the virtual device; *address*: its MAC address; *ports*: the UDP ports of the tunnel
        programs. Raises KernelError."""
        self._bpf = Bpf()
        self._route = IPRoute()
        self._device = device
        self._attached: dict[tuple[int, int], str] = {}
        self._last_counters: dict[int, tuple[bytes, tuple[PathCounters, ...]]] = {}
        """For each tunnel, the last value read from the map, and the counters in it."""
        self._path_keys: dict[Ends, tuple[int, int]] = {}
        self._own_clsact: set[int] = set()
        """Interfaces to which the tunnel added a clsact qdisc."""
        bits = bytearray(1 << 13)
        for port in ports:
            bits[port // 8] |= 1 << port % 8
        try:
            self._inside = self._bpf.hash_map("tunnel_inside", 2 * _END.size, _NUMBER.size, MAX_TUNNELS)
            self._outside = self._bpf.hash_map(
                "tunnel_outside", 2 * _END.size, _PATH_KEY.size, 2 * MAX_PATHS * MAX_TUNNELS
            )
            self._tunnels = self._bpf.array("tunnel_tunnels", _TUNNEL.size, MAX_TUNNELS)
            self.states = self._bpf.array("tunnel_states", STATE_HEAD.size + MAX_PATHS * PATH_STATE.size, MAX_TUNNELS)
            """The programs' counters: per tunnel a head, and its paths."""
            maps = {
                "inside": self._inside,
                "outside": self._outside,
                "tunnels": self._tunnels,
                "states": self.states,
            }
            self.descriptors = self._bpf.load(
                PROGRAMS / "mptcp_tunnel.o", _SETTINGS.pack(device, address, bytes(bits)), maps, Path("./run")
            )
        except KernelError:
            self.close()
            raise

    def close(self) -> None:
        """Detach the programs; the kernel frees them and their maps."""
        for interface, parent in self._attached:
            self._change_filter("del-filter", interface, parent)
        self._attached.clear()
        for interface in self._own_clsact:
            if not self._program_names(interface, _INGRESS) + self._program_names(interface, _EGRESS):
                with suppress(NetlinkError):
                    self._route.tc("del", "clsact", interface)
        self._route.close()
        self._bpf.close()

    def attach_splitter(self) -> None:
        """Attach the splitter to the virtual device. Raises KernelError."""
        (device,) = self._route.get_links(self._device)
        self._attach(self._device, _EGRESS, SPLITTER)
        self._attach(device.get("link"), _INGRESS, SPLITTER)  # the device's other end gets the packets of bundles

    def attach_joiner(self, uplink: int) -> None:
        """Attach the joiner to the uplink with this interface index. Raises KernelError."""
        try:
            (link,) = self._route.get_links(uplink)
        except NetlinkError as error:
            raise KernelError(f"read interface {uplink}: {reason(error)}") from error
        has_header = link["ifi_type"] in _ETHERNET_TYPES
        self._attach(uplink, _INGRESS, JOINER if has_header else IP_JOINER)

    def repair(self) -> None:
        """Attach the programs again if other programs detached them. Raises KernelError."""
        for (interface, parent), program in list(self._attached.items()):
            try:
                socket.if_indextoname(interface)
            except OSError:
                del self._attached[interface, parent]
                continue
            if program not in self._program_names(interface, parent):
                log.warning("the program %s was detached from interface %s; it is attached again", program, interface)
                self._attach(interface, parent, program)

    def set_tunnel(
        self, number: int, inside: Ends, paths: Sequence[PathState | None], split: Split, max_queue: int = 0
    ) -> None:
        """Set a tunnel for the splitter. *max_queue*: maximum queue of a path, nanoseconds; 0 means no maximum. Raises
        KernelError."""
        packed = b"".join(
            bytes(_PATH.size) if path is None else _packed_path(path, split.share(index))
            for index, path in enumerate(paths)
        )
        now = time.monotonic_ns()
        value = _TUNNEL.pack(
            packed_ends(inside), split.spill, max_queue, now, split.mode, split.duplicate, len(paths), packed
        )
        self._bpf.update_batch(self._tunnels, _NUMBER.pack(number), value)
        self._bpf.update_batch(self._inside, packed_ends(inside), _NUMBER.pack(number))

    def set_outside_ends(self, path_keys: Mapping[Ends, tuple[int, int]]) -> None:
        """Set the tunnel and path to which packets with these ends belong. Raises KernelError."""
        keys = b"".join(map(packed_ends, path_keys))
        self._bpf.update_batch(
            self._outside, keys, b"".join(_PATH_KEY.pack(*path_key) for path_key in path_keys.values())
        )
        self._path_keys |= path_keys

    def remove_outside_ends(self, ends: Ends, path_key: tuple[int, int]) -> None:
        """Remove these ends of a path, unless they belong to another path now. Raises KernelError."""
        if self._path_keys.get(ends) == path_key:
            del self._path_keys[ends]
            self._bpf.delete_batch(self._outside, packed_ends(ends))

    def remove_inside_ends(self, ends: Ends) -> None:
        """Remove the inside ends of a tunnel. Raises KernelError."""
        self._bpf.delete_batch(self._inside, packed_ends(ends))

    def counters(self, number: int) -> tuple[PathCounters, ...]:
        """Return the counters of each path of a tunnel. Raises KernelError."""
        value = self._bpf.lookup(self.states, _NUMBER.pack(number))
        last = self._last_counters.get(number)
        if last is not None and last[0] == value:
            return last[1]  # the usual case with a thousand tunnels
        paths = PATH_STATE.iter_unpack(value[STATE_HEAD.size :])
        found = tuple(PathCounters(*each[1:]) for each in paths)
        self._last_counters[number] = value, found
        return found

    def _attach(self, interface: int, parent: int, program: str) -> None:
        was_attached = program in self._program_names(interface, parent)  # by a daemon that was killed
        try:
            self._route.tc("add", "clsact", interface)
            self._own_clsact.add(interface)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise KernelError(f"add clsact to interface {interface}: {reason(error)}") from error
            if was_attached:
                self._own_clsact.add(interface)
                self._change_filter("del-filter", interface, parent)
        self._change_filter(
            "add-filter", interface, parent, fd=self.descriptors[program], name=program, direct_action=True, classid=1
        )
        self._attached[interface, parent] = program

    def _program_names(self, interface: int, parent: int) -> list[str]:
        found = []
        with suppress(NetlinkError):
            for each in self._route.get_filters(interface, 0, parent):
                options = each.get_attr("TCA_OPTIONS")
                found.append(str(options.get_attr("TCA_BPF_NAME")) if options is not None else "")
        return found

    def _change_filter(self, command: str, interface: int, parent: int, **options: Any) -> None:
        try:
            self._route.tc(
                command, "bpf", interface, ":1", parent=parent, prio=_PREFERENCE, protocol=_ETH_P_ALL, **options
            )
        except NetlinkError as error:
            if command != "del-filter":
                raise KernelError(f"attach {options['name']} to interface {interface}: {reason(error)}") from error
