# SPDX-License-Identifier: GPL-2.0-or-later
"""Implements ``Netfilter`` with legacy iptables and ipset: two static rules and one set per family and listening port.

The rules are in mangle POSTROUTING. One sends every packet with data from a listening port through
``SET --map-set … --map-mark --map-prio`` (iptables-extensions(8)): the subflow's entry sets our bits of the mark and
the HTB class. The lookup is one hash lookup, however many entries there are. The key is client address, client port and
proxy address; one set per listening port completes the four-tuple. Packets without data lose their class.

pyroute2 creates and destroys the sets. It takes 260 µs to change an entry; our encoding (ip_set.h) takes 6 µs, and
1,000 connections per second need 2,000 changes. :func:`may_have_objects` reads no table, because that would create the
table, which costs time for every packet. Nor does it load python-iptables, because that would load kernel modules.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from itertools import islice
from typing import Any, TextIO

from pyroute2 import AsyncIPSet
from pyroute2.netlink.exceptions import IPSetError, NetlinkError

from mptcp_common import netlink
from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NLA_NESTED, NLA_NET_BYTEORDER, NetlinkSocket, attribute, attributes
from mptcp_common.reasons import reason
from mptcp_throttler.kernel.libraries import python_iptables
from mptcp_throttler.kernel.scheduling import in_slices
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import MAX_ENTRIES, RULE_COMMENT, SET_PREFIX, SMALL_PACKET, Ownership, Target

_ATTEMPTS = 20
_LOCK_SECONDS = 5.0
_CHUNK = 100  # requests sent before yielding to the event loop: about 2 ms
_SET_TYPE = "hash:ip,port,ip"
_OUR_SET = re.compile(rf"{SET_PREFIX}-[46]-[0-9]{{1,5}}")
"""Any port, because the daemon that left a set may have had other ports. A foreign set may have the same prefix."""
_IPSET = 6 << 8
CMD_LIST, _CMD_ADD, _CMD_DEL, _CMD_TYPE = _IPSET | 7, _IPSET | 9, _IPSET | 10, _IPSET | 13
_ERR_EXIST = 4103
_NFGENMSG = struct.Struct("!BBH")
_VERSION = 6
_ATTR_PROTOCOL, _ATTR_SETNAME, _ATTR_TYPENAME, _ATTR_FAMILY, _ATTR_DATA, _ATTR_ADT = 1, 2, 3, 5, 7, 8
_DATA_IP, _DATA_PORT, _DATA_PROTO, _DATA_IP2, _DATA_SKBMARK, _DATA_SKBPRIO = 1, 4, 7, 20, 27, 28
_ADDRESS_IPV4, _ADDRESS_IPV6 = 1, 2
_TCP = 6
_MARK, _PRIORITY, _PORT = struct.Struct("!II"), struct.Struct("!I"), struct.Struct("!H")


class IptablesNetfilter:
    """Sets and rules of the network namespace in which this object is created."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._iptc = python_iptables()
        self._netlink = NetlinkSocket(netlink.NETLINK_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    async def prepare(self) -> None:
        async with AsyncIPSet() as sets:
            for name, is_ipv6, _port in self._sets():
                family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
                options = {"skbinfo": True, "counters": True, "exclusive": False, "maxelem": MAX_ENTRIES}
                try:
                    await sets.create(name, stype=_SET_TYPE, family=family, **options)
                except (IPSetError, NetlinkError) as error:
                    remedy = f"if a set of that name has other options, remove it: ipset destroy {name}"
                    raise KernelError(
                        f"create the set {name} (hash:ip,port,ip with skbinfo): {error}; {remedy}"
                    ) from error
        for is_ipv6 in (False, True):
            await asyncio.sleep(0)  # reading a table takes milliseconds: let the event loop handle new subflows first
            await self._edit_postrouting(is_ipv6, keep=self._rules(is_ipv6))

    def _rules(self, is_ipv6: bool) -> list[Any]:
        """Return the rules for one family: packets with data get their subflow's class, other packets get no class."""
        rules = []
        small = _small_packets(6 if is_ipv6 else 4)
        try:
            for port in self._ownership.listen_ports:
                with_data, without = (self._rule(is_ipv6, port, length) for length in (f"!{small}", small))
                target = with_data.create_target("SET")
                target.map_set = [_set_name(is_ipv6, port), "dst,dst,src"]
                target.map_mark = target.map_prio = ""
                without.create_target("CLASSIFY").set_class = "0:0"
                rules += [with_data, without]
        except (self._iptc.XTablesError, ValueError) as error:  # ValueError: the set does not exist
            raise KernelError(f"create a rule for {_program(is_ipv6)}: {error}") from error
        return rules

    def _rule(self, is_ipv6: bool, port: int, length: str) -> Any:
        rule = self._iptc.Rule6() if is_ipv6 else self._iptc.Rule()
        rule.protocol = "tcp"
        rule.create_match("tcp").sport = str(port)
        rule.create_match("comment").comment = RULE_COMMENT
        rule.create_match("length").length = length
        return rule

    async def check(self) -> list[str]:
        problems = []
        for is_ipv6 in (False, True):
            try:
                _, own_rules = self._read_postrouting(is_ipv6)
            except (self._iptc.IPTCError, self._iptc.XTablesError) as error:  # a foreign rule's extension is missing
                raise KernelError(f"read mangle POSTROUTING of {_program(is_ipv6)}: {error}") from error
            rules = self._rules(is_ipv6)
            # Our rules may be in any order: they do not interact.
            if len(own_rules) != len(rules) or any(rule not in own_rules for rule in rules):
                problems.append(f"our rules in mangle POSTROUTING of {_program(is_ipv6)} were changed")
            await asyncio.sleep(0)
        return problems

    def _read_postrouting(self, is_ipv6: bool) -> tuple[Any, list[Any]]:
        chain = self._iptc.Chain(_mangle_table(self._iptc, is_ipv6), "POSTROUTING")
        return chain, [
            rule
            for rule in chain.rules
            if any(match.name == "comment" and match.comment == RULE_COMMENT for match in rule.matches)
        ]

    async def _edit_postrouting(self, is_ipv6: bool, keep: list[Any]) -> None:
        """Make *keep* our only rules in mangle POSTROUTING; do not change foreign rules.

        A commit replaces the whole table. If a program changed the table without the lock, it fails with EAGAIN: retry.
        """
        async with _xtables_lock():
            for attempt in range(_ATTEMPTS):
                try:
                    chain, own_rules = self._read_postrouting(is_ipv6)
                    surplus = [rule for rule in own_rules if rule not in keep]
                    missing = [rule for rule in keep if rule not in own_rules]
                    for rule in surplus:
                        chain.delete_rule(rule)
                    for rule in missing:
                        chain.append_rule(rule)
                    if surplus or missing:
                        chain.table.commit()
                    return
                except (self._iptc.IPTCError, self._iptc.XTablesError) as error:
                    if attempt == _ATTEMPTS - 1 or os.strerror(errno.EAGAIN) not in str(error):
                        raise KernelError(f"change mangle POSTROUTING of {_program(is_ipv6)}: {error}") from error

    async def read_entries(self) -> dict[FourTuple, Target]:
        targets: dict[FourTuple, Target] = {}
        # Use a separate socket: changes may happen during the dump.
        with NetlinkSocket(netlink.NETLINK_NETFILTER) as dump_socket:
            for name, is_ipv6, port in self._sets():
                listing = dump_socket.dump(CMD_LIST, header(name, is_ipv6), f"list the set {name}")
                entries = (entry for message in listing for entry in _entries(message, port))
                async for four_tuple, target in in_slices(entries):
                    targets[four_tuple] = target
        return targets

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        await self._request(self._additions(entries), f"add {len(entries)} set entries")

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        self._netlink.requests(list(self._additions(entries)), f"add {len(entries)} set entries")
        return True

    def _additions(self, entries: Mapping[FourTuple, Target]) -> Iterator[tuple[int, int, bytes]]:
        mask, major = self._ownership.mark_mask, self._ownership.htb_major
        for four_tuple, target in entries.items():
            skbinfo = attribute(_DATA_SKBMARK | NLA_NET_BYTEORDER, _MARK.pack(target.mark, mask))
            skbinfo += attribute(_DATA_SKBPRIO | NLA_NET_BYTEORDER, _PRIORITY.pack(major << 16 | target.minor))
            yield _CMD_ADD, netlink.NLM_F_CREATE, _entry(four_tuple, skbinfo)

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        tuples = list(four_tuples)
        requests = ((_CMD_DEL, 0, _entry(four_tuple)) for four_tuple in tuples)
        await self._request(requests, f"remove {len(tuples)} set entries", ignore=(_ERR_EXIST, errno.ENOENT))

    async def _request(self, requests: Iterator[tuple[int, int, bytes]], what: str, ignore: Sequence[int] = ()) -> None:
        failures: list[KernelError] = []  # only the first; a list avoids a reference cycle (``runtime.event_loop``)
        while chunk := list(islice(requests, _CHUNK)):
            try:
                self._netlink.requests(chunk, what, ignore)
            except KernelError as error:
                failures = failures or [error]
            await asyncio.sleep(0)
        if failures:
            raise failures.pop()

    async def remove(self) -> None:
        for is_ipv6 in (False, True) if may_have_objects() else ():
            await self._edit_postrouting(is_ipv6, keep=[])
        async with AsyncIPSet() as sets:
            for name in _our_sets():
                try:
                    await sets.destroy(name)
                except (IPSetError, NetlinkError) as error:
                    raise KernelError(f"destroy the set {name}: {error}; does another rule refer to it?") from error

    def _sets(self) -> Iterator[tuple[str, bool, int]]:
        for port in self._ownership.listen_ports:
            for is_ipv6 in (False, True):
                yield _set_name(is_ipv6, port), is_ipv6, port


open_adapter = IptablesNetfilter


def preview(entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
    for port in ownership.listen_ports:
        for version, family, command in ((4, "inet", "iptables-legacy"), (6, "inet6", "ip6tables-legacy")):
            name, small = _set_name(version == 6, port), _small_packets(version)
            match = f"-p tcp -m tcp --sport {port} -m comment --comment {RULE_COMMENT} -m length"
            rule = f"{command} -t mangle -A POSTROUTING {match}"
            yield f"{rule} --length {small} -j CLASSIFY --set-class 0:0"
            yield f"ipset create {name} hash:ip,port,ip family {family} maxelem {MAX_ENTRIES} counters skbinfo"
            yield f"{rule} ! --length {small} -j SET --map-set {name} dst,dst,src --map-mark --map-prio"
    for four_tuple, target in sorted(entries.items()):
        remote, local = ip_address(four_tuple.remote), ip_address(four_tuple.local)
        name = _set_name(four_tuple.is_ipv6, four_tuple.local_port)
        key = f"{remote},tcp:{four_tuple.remote_port},{local}"
        mark, priority = f"0x{target.mark:x}/0x{ownership.mark_mask:x}", f"{ownership.htb_major:x}:{target.minor:x}"
        yield f"ipset add {name} {key} skbmark {mark} skbprio {priority}"


def _small_packets(version: int) -> str:
    """Return the packet lengths that bypass the classes, for ``-m length``. The range excludes a bare IP header: some
    kernels report that length for an IPv6 segment of more than 64 KiB."""
    return f"{SMALL_PACKET[version] - 59}:{SMALL_PACKET[version]}"


def missing_support() -> str | None:
    """Return the reason why this host does not support iptables; None if it does."""
    try:
        _lock_file().close()
    except KernelError as error:
        return str(error)
    try:
        _our_sets()
    except (KernelError, OSError) as error:
        return f"ipset does not answer ({reason(error)})"
    try:
        with NetlinkSocket(netlink.NETLINK_NETFILTER) as probe:
            for family in (socket.AF_INET, socket.AF_INET6):
                request = _request_start(family) + netlink.string(_ATTR_TYPENAME, _SET_TYPE)
                probe.ask(_CMD_TYPE, request + attribute(_ATTR_FAMILY, bytes([family])), "query a set type of ipset")
    except KernelError:
        return f"ipset has no sets {_SET_TYPE} (module ip_set_hash_ipportip)"
    try:
        iptc = python_iptables()
        for is_ipv6 in (False, True):
            _mangle_table(iptc, is_ipv6)
        rule = iptc.Rule()
        rule.create_match("length")
        rule.create_target("SET")
    except Exception as error:  # python-iptables raises many kinds of exceptions
        return f"legacy iptables does not answer ({error or type(error).__name__})"
    return None


def may_have_objects() -> bool:
    """Return whether our sets exist: without them our rules, which refer to them, cannot exist."""
    with suppress(KernelError, OSError):
        return bool(_our_sets())
    return False


def _our_sets() -> list[str]:
    """Return the names of our sets. Raises KernelError, OSError."""
    with NetlinkSocket(netlink.NETLINK_NETFILTER) as listing:
        messages = listing.dump(CMD_LIST, _request_start(socket.AF_INET), "list sets")
        names = [netlink.text(dict(attributes(each, _NFGENMSG.size)).get(_ATTR_SETNAME)) for each in messages]
    return [name for name in dict.fromkeys(names) if _OUR_SET.fullmatch(name)]


def _mangle_table(iptc: Any, is_ipv6: bool) -> Any:
    """Return the current mangle table. python-iptables keeps one object per table and dereferences its handle to make a
    rule: refresh it, never close it."""
    table = (iptc.Table6 if is_ipv6 else iptc.Table)("mangle", False)
    table.refresh()
    return table


@asynccontextmanager
async def _xtables_lock() -> AsyncIterator[None]:
    """Hold the xtables lock, which iptables(8) takes but python-iptables does not. Raises KernelError."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with _lock_file() as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"{lock.name} has been locked by another program for {_LOCK_SECONDS:g} s"
                    raise KernelError(message) from None
                await asyncio.sleep(0.01)
        yield


def _lock_file() -> TextIO:
    """Open the lock file, read-only, which suffices for flock(2). Raises KernelError."""
    path = os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock")
    try:
        return open(path, encoding="ascii", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600))
    except OSError as error:
        remedy = "mptcp-throttler.service gives the file to its user, and nftables needs no lock"
        raise KernelError(f"iptables' lock {path} cannot be opened: {error.strerror}; {remedy}") from error


def _set_name(is_ipv6: bool, port: int) -> str:
    return f"{SET_PREFIX}-{6 if is_ipv6 else 4}-{port}"


def _program(is_ipv6: bool) -> str:
    return "ip6tables" if is_ipv6 else "iptables"


def _request_start(family: int) -> bytes:
    return _NFGENMSG.pack(family, 0, 0) + attribute(_ATTR_PROTOCOL, bytes([_VERSION]))


def header(set_name: str, is_ipv6: bool) -> bytes:
    """Return the start of a request: nfgenmsg and the attributes that name the set."""
    return _request_start(socket.AF_INET6 if is_ipv6 else socket.AF_INET) + netlink.string(_ATTR_SETNAME, set_name)


def _entry(four_tuple: FourTuple, skbinfo: bytes = b"") -> bytes:
    """Return the payload of a request on one entry: its set, its key, and to add or replace it also *skbinfo*."""
    key = _address(_DATA_IP, four_tuple.remote) + _address(_DATA_IP2, four_tuple.local)
    key += attribute(_DATA_PORT | NLA_NET_BYTEORDER, _PORT.pack(four_tuple.remote_port))
    key += attribute(_DATA_PROTO, bytes([_TCP]))
    set_name = _set_name(four_tuple.is_ipv6, four_tuple.local_port)
    return header(set_name, four_tuple.is_ipv6) + attribute(_ATTR_DATA | NLA_NESTED, key + skbinfo)


def _address(kind: int, packed: bytes) -> bytes:
    family = _ADDRESS_IPV6 if len(packed) == 16 else _ADDRESS_IPV4
    return attribute(kind | NLA_NESTED, attribute(family | NLA_NET_BYTEORDER, packed))


def _entries(list_message: bytes, listen_port: int) -> Iterator[tuple[FourTuple, Target]]:
    """Yield the entries in one message, without netlink header, of a listing."""
    for kind, payload in attributes(list_message, _NFGENMSG.size):
        for _kind, data in attributes(payload) if kind == _ATTR_ADT else ():
            fields = dict(attributes(data))
            remote, local = (next(attributes(fields[kind]))[1] for kind in (_DATA_IP, _DATA_IP2))
            mark = _MARK.unpack(fields[_DATA_SKBMARK])[0] if _DATA_SKBMARK in fields else 0
            priority = _PRIORITY.unpack(fields[_DATA_SKBPRIO])[0] if _DATA_SKBPRIO in fields else 0
            (port,) = _PORT.unpack(fields[_DATA_PORT])
            yield FourTuple(local, listen_port, remote, port), Target(priority & 0xFFFF, mark)
