"""The Netfilter port with legacy iptables and ipset: one static rule and one set per family and listening port.

The rule is in mangle POSTROUTING. It sends every packet with data from a listening port through
``SET --map-set … --map-mark --map-prio`` (iptables-extensions(8)): the subflow's entry sets our bits of the mark and
the HTB class; a packet without an entry stays unchanged. The lookup is one hash lookup, however many entries there are.
The key is client address, client port and proxy address; one set per listening port completes the four-tuple.

Import this module only where iptables is used: python-iptables loads kernel modules.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, TextIO

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_throttler.kernel.libraries import AsyncIPSet, IPSetError, NetlinkError, python_iptables
from mptcp_throttler.kernel.netfilter import ipset
from mptcp_throttler.kernel.netlink import NETLINK_NETFILTER, NLM_F_CREATE, NetlinkSocket
from mptcp_throttler.kernel.scheduling import in_turns
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.commands import small_packets
from mptcp_throttler.shaping.model import MAX_ENTRIES, RULE_COMMENT, SET_PREFIX, Ownership, Target

_ATTEMPTS = 20
_LOCK_SECONDS = 5.0
_IPSET_ERR_EXIST = 4103
_CHUNK = 100
"""Requests sent before yielding to the event loop: about 2 ms."""


log = logging.getLogger(__name__)

iptc = python_iptables()
# To distinguish a target from a chain it would read all of the kernel's tables, and thereby create them (nat included).
iptc.Rule.tables = property(lambda _: [iptc.Table("mangle", False)])
iptc.Rule6.tables = property(lambda _: [iptc.Table6("mangle", False)])


class IptablesNetfilter:
    """Sets and rules of the network namespace in which this object is created."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._netlink = NetlinkSocket(NETLINK_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    async def prepare(self) -> None:
        async with AsyncIPSet() as sets:
            for name, is_ipv6, _port in self._sets():
                family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
                try:
                    await sets.create(
                        name,
                        stype=ipset.SET_TYPE,
                        family=family,
                        skbinfo=True,
                        counters=True,
                        exclusive=False,
                        maxelem=MAX_ENTRIES,
                    )
                except (IPSetError, NetlinkError) as error:
                    raise KernelError(
                        f"make the set {name} (hash:ip,port,ip with skbinfo): {error}; if a set of that name was made "
                        f"with other options, remove it: ipset destroy {name}"
                    ) from error
        for is_ipv6 in (False, True):
            await asyncio.sleep(0)  # reading a table takes milliseconds: let a new subflow get its turn
            await _edit_postrouting(is_ipv6, keep=self._rules(is_ipv6))

    def _rules(self, is_ipv6: bool) -> list[Any]:
        """Return the rules for one family: packets with data get their subflow's class, those without data get none."""
        rules = []
        small = small_packets(6 if is_ipv6 else 4)
        try:
            for set_name, v6, port in self._sets():
                if v6 is is_ipv6:
                    with_data, without = (self._rule(is_ipv6, port, length) for length in (f"!{small}", small))
                    target = with_data.create_target("SET")
                    target.map_set = [set_name, "dst,dst,src"]
                    target.map_mark = target.map_prio = ""
                    without.create_target("CLASSIFY").set_class = "0:0"
                    rules += [with_data, without]
        except (iptc.XTablesError, ValueError) as error:  # ValueError: the set does not exist
            raise KernelError(f"make a rule for {_program(is_ipv6)}: {error}") from error
        return rules

    @staticmethod
    def _rule(is_ipv6: bool, port: int, length: str) -> Any:
        rule = iptc.Rule6() if is_ipv6 else iptc.Rule()
        rule.protocol = "tcp"
        rule.create_match("tcp").sport = str(port)
        rule.create_match("comment").comment = RULE_COMMENT
        rule.create_match("length").length = length
        return rule

    async def check(self) -> list[str]:
        problems = []
        for is_ipv6 in (False, True):
            try:
                present = _ours_in(_mangle(is_ipv6))
            except (iptc.IPTCError, iptc.XTablesError) as error:  # a foreign rule with an extension missing here
                raise KernelError(f"read mangle POSTROUTING of {_program(is_ipv6)}: {error}") from error
            wanted = self._rules(is_ipv6)
            # Our rules may be in any order: they do not interact.
            if len(present) != len(wanted) or any(rule not in present for rule in wanted):
                problems.append(f"our rules in mangle POSTROUTING of {_program(is_ipv6)} are not as we made them")
            await asyncio.sleep(0)
        return problems

    async def read_entries(self) -> dict[FourTuple, Target]:
        found: dict[FourTuple, Target] = {}
        # Use a separate socket: changes may happen during the dump.
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            for name, is_ipv6, port in self._sets():
                listing = netlink.dump(ipset.CMD_LIST, ipset.header(name, is_ipv6), f"list the set {name}")
                entries = (entry for message in listing for entry in ipset.entries(message, port))
                async for four_tuple, target in in_turns(entries):
                    found[four_tuple] = target
        return found

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        await self._request(self._additions(entries), f"add {len(entries)} set entries")

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        self._netlink.requests(list(self._additions(entries)), f"add {len(entries)} set entries")
        return True

    def _additions(self, entries: Mapping[FourTuple, Target]) -> Iterator[tuple[int, int, bytes]]:
        mask, major = self._ownership.mark_mask, self._ownership.htb_major
        for four_tuple, target in entries.items():
            entry = ipset.entry_with_target(four_tuple, target, mask, major)
            yield ipset.CMD_ADD, NLM_F_CREATE, self._header(four_tuple) + entry

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        gone = list(four_tuples)
        requests = ((ipset.CMD_DEL, 0, self._header(four_tuple) + ipset.entry(four_tuple)) for four_tuple in gone)
        await self._request(requests, f"remove {len(gone)} set entries", ignore=(_IPSET_ERR_EXIST, errno.ENOENT))

    async def _request(self, requests: Iterator[tuple[int, int, bytes]], what: str, ignore: Sequence[int] = ()) -> None:
        failures: list[KernelError] = []  # the first only: see ``runtime.garbage``
        while chunk := list(islice(requests, _CHUNK)):
            try:
                self._netlink.requests(chunk, what, ignore)
            except KernelError as error:
                failures = failures or [error]
            await asyncio.sleep(0)
        if failures:
            raise failures.pop()

    async def remove(self) -> None:
        for is_ipv6 in ipset.registered():
            await _edit_postrouting(is_ipv6, keep=[])
        async with AsyncIPSet() as sets:
            ours = [
                message.get_attr("IPSET_ATTR_SETNAME")
                async for message in await sets.list()
                if ipset.is_our_set(message.get_attr("IPSET_ATTR_SETNAME", ""))
            ]
            for name in dict.fromkeys(ours):
                try:
                    await sets.destroy(name)
                except (IPSetError, NetlinkError) as error:
                    raise KernelError(f"destroy the set {name}: {error}; does another rule refer to it?") from error

    def _header(self, four_tuple: FourTuple) -> bytes:
        return ipset.header(_set_name(four_tuple.is_ipv6, four_tuple.local_port), four_tuple.is_ipv6)

    def _sets(self) -> Iterator[tuple[str, bool, int]]:
        for port in self._ownership.listen_ports:
            for is_ipv6 in (False, True):
                yield _set_name(is_ipv6, port), is_ipv6, port


def _set_name(is_ipv6: bool, port: int) -> str:
    return f"{SET_PREFIX}-{6 if is_ipv6 else 4}-{port}"


def _program(is_ipv6: bool) -> str:
    return "ip6tables" if is_ipv6 else "iptables"


def _is_ours(rule: Any) -> bool:
    return any(match.name == "comment" and match.comment == RULE_COMMENT for match in rule.matches)


def _ours_in(table: Any) -> list[Any]:
    return [rule for rule in iptc.Chain(table, "POSTROUTING").rules if _is_ours(rule)]


def _mangle(is_ipv6: bool) -> Any:
    """Return the current mangle table. python-iptables keeps one object per table and dereferences its handle to make a
    rule: refresh it, never close it."""
    table = (iptc.Table6 if is_ipv6 else iptc.Table)("mangle", False)
    table.refresh()
    return table


async def _edit_postrouting(is_ipv6: bool, keep: list[Any]) -> None:
    """Make *keep* our only rules in mangle POSTROUTING; leave foreign rules alone.

    A commit replaces the whole table. It fails with EAGAIN if a program changed it without the lock: retry.
    """
    async with _xtables_lock():
        for attempt in range(_ATTEMPTS):
            try:
                _edit_once(is_ipv6, keep)
                return
            except (iptc.IPTCError, iptc.XTablesError) as error:
                if attempt == _ATTEMPTS - 1 or os.strerror(errno.EAGAIN) not in str(error):
                    raise KernelError(f"change mangle POSTROUTING of {_program(is_ipv6)}: {error}") from error


def _edit_once(is_ipv6: bool, keep: list[Any]) -> None:
    table = _mangle(is_ipv6)
    chain = iptc.Chain(table, "POSTROUTING")
    present = _ours_in(table)
    surplus = [rule for rule in present if rule not in keep]
    missing = [rule for rule in keep if rule not in present]
    for rule in surplus:
        chain.delete_rule(rule)
    for rule in missing:
        chain.append_rule(rule)
    if surplus or missing:
        table.commit()


@asynccontextmanager
async def _xtables_lock() -> AsyncIterator[None]:
    """Hold the xtables lock, which iptables(8) takes but python-iptables does not. Raises KernelError."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with _lock_file() as lock:
        path = lock.name
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise KernelError(f"{path} has been locked by another program for {_LOCK_SECONDS:g} s") from None
                await asyncio.sleep(0.01)
        yield


def _lock_file() -> TextIO:
    """Open the lock file, read-only, which suffices for flock(2). Raises KernelError."""
    path = os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock")
    try:
        return open(path, encoding="ascii", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600))
    except OSError as error:
        raise KernelError(
            f"iptables' lock {path}: {error.strerror}; mptcp-throttler.service gives it to its user, and nftables "
            "needs none"
        ) from error


def available() -> str | None:
    """Return None if this host supports iptables, otherwise a message that says what is missing."""
    try:
        _lock_file().close()
    except KernelError as error:
        return str(error)
    try:
        list(ipset.all_sets())
    except (KernelError, OSError) as error:
        return f"ipset does not answer ({reason(error)})"
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            for is_ipv6 in (False, True):
                netlink.ask(ipset.CMD_TYPE, ipset.type_request(is_ipv6), "ask ipset for a type")
    except KernelError:
        return f"ipset has no sets {ipset.SET_TYPE} (module ip_set_hash_ipportip)"
    try:
        for is_ipv6 in (False, True):
            _mangle(is_ipv6)
        rule = iptc.Rule()
        rule.create_match("length")
        rule.create_target("SET")
    except Exception as error:  # python-iptables raises many kinds
        return f"legacy iptables does not answer ({error or type(error).__name__})"
    return None
