# SPDX-License-Identifier: GPL-2.0-or-later
"""Implements ``Netfilter`` with nftables: one table, one chain, one verdict map per family. nft(8), libnftables(3).

The chain looks up the packet's four-tuple in the map. The verdict is a jump to a class chain. There is one class chain
for each pair of class and mark; it sets our bits of the mark and the HTB class. Each call of libnftables is one
transaction, and can take tens of milliseconds, so long calls run in a thread. Reads use netlink, datagram by datagram
(linux/netfilter/nf_tables.h), because libnftables lists a map as one text: 30 ms for 10,000 entries.

A foreign entry in our maps is read as an entry with the target ``_FOREIGN``, so the reconciler removes or replaces it.
"""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NETLINK_NETFILTER, NetlinkSocket, attributes, string, text
from mptcp_throttler.kernel.scheduling import in_slices
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.commands import NftTable, nft_chain_name, nft_key
from mptcp_throttler.shaping.model import NFT_TABLE, Ownership, Target

_CHUNK = 250  # entries per transaction
_MAX_SYNC_LENGTH = 2000
"""Characters. Shorter transactions run in the event loop: they take 1-2 ms, less than the switch to a thread."""
_ATTEMPTS = 3  # maximum number of reads of a map that changes during the read
_FOREIGN = Target(0, 0)
_CLASS_CHAIN = re.compile(r"^class_([0-9a-f]+)_mark_([0-9a-f]+)$")
_NFT = 10 << 8
_GETCHAIN, _GETRULE, _GETSETELEM = _NFT | 4, _NFT | 7, _NFT | 13
_FAMILIES = {"inet": 1, "netdev": 5}
_NFGENMSG = struct.Struct("!BBH")
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY = 1, 3, 4, 5
_HOOK_DEVICE = 3
_RULE_TABLE, _RULE_CHAIN, _RULE_EXPRESSIONS = 1, 2, 4
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_ELEMENT_KEY, _ELEMENT_DATA = 1, 2
_DATA_VALUE, _DATA_VERDICT = 1, 2
_VERDICT_CODE, _VERDICT_CHAIN = 1, 2
_JUMP = struct.pack("!i", -3)
_KEYS = {4: struct.Struct("!4sH2x4sH2x"), 6: struct.Struct("!16sH2x16sH2x")}
"""The kernel aligns parts of a key to four bytes."""


class _Context(ctypes.c_void_p):
    """A pointer. ctypes would convert a plain ``c_void_p`` result into a number, but not a subclass."""


class LibNftables:
    def __init__(self) -> None:
        NetlinkSocket(NETLINK_NETFILTER).close()  # without nfnetlink in the kernel, the library ends the process
        name = ctypes.util.find_library("nftables")
        if name is None:
            raise KernelError("libnftables is not installed (Debian: libnftables1)")
        self._library = ctypes.CDLL(name)
        self._library.nft_ctx_new.restype = _Context
        self._library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
        self._library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
        self._lock = threading.Lock()  # held during a call: a context is not thread-safe
        self._context = self._library.nft_ctx_new(0)
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def close(self) -> None:
        with self._lock:
            if self._context:
                self._library.nft_ctx_free(self._context)
                self._context = None

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def run(self, commands: str, operation: str) -> str:
        """Run *commands* as one transaction and return their output. Raises KernelError naming *operation*."""
        with self._lock:
            if not self._context:
                raise KernelError(f"{operation}: libnftables is closed")
            failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
            # Reading a buffer empties it.
            output: bytes = self._library.nft_ctx_get_output_buffer(self._context)
            error: bytes = self._library.nft_ctx_get_error_buffer(self._context)
        if failed:
            lines = error.decode(errors="replace").strip().splitlines()
            raise KernelError(f"{operation}: {lines[0] if lines else 'nftables refused'}")
        return output.decode(errors="replace")


class NftablesNetfilter:
    """Implements ``Netfilter`` with one of our tables, in the network namespace in which this object is created."""

    def __init__(self, table: NftTable) -> None:
        self._table = table
        self._nft = LibNftables()
        self._targets: dict[FourTuple, Target] = {}
        self._uses: Counter[Target] = Counter()  # number of entries, by target
        self._changes = 0  # counts starts and ends of changes, so that a read can detect a change during the read
        self._base_rules: dict[str, tuple[bytes, ...]] = {}
        self._class_rules: dict[Target, tuple[bytes, ...]] = {}
        """Rules of the class chains as created; ``_base_rules``: of the base chains."""

    def close(self) -> None:
        self._nft.close()

    async def prepare(self) -> None:
        present = [name for _, name in socket.if_nameindex()]
        devices: dict[str, str | None] = {}
        chains: set[Target] = set()
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            async for name, hook in in_slices(_chains(netlink, self._table.family)):
                if hook is None:
                    chains.add(_target(name))
                else:
                    devices[name] = text(dict(attributes(hook)).get(_HOOK_DEVICE)) or None
        # A predecessor may have hooked other interfaces. The download table has no interfaces.
        obsolete = self._table.obsolete_chains(devices, present) if self._table.interfaces else []
        commands = [f"delete chain {self._table.name} {name}" for name in obsolete]
        await self._run((*commands, *self._table.table(present)), f"create the nftables table {self._table.name}")
        self._base_rules = self._base_chains(present)
        _, is_complete = await self._read_entries()
        if is_complete:
            await self._drop_unused_chains(chains)
        # Create the class chains of all entries again: another program may have flushed them, or have replaced the IFB
        # device, whose index they contain.
        targets = sorted(set(self._uses) - {_FOREIGN}, key=nft_chain_name)
        for start in range(0, len(targets), _CHUNK):
            lines = (line for target in targets[start : start + _CHUNK] for line in self._table.chain(target))
            await self._run(lines, "create chains of classes")
        self._class_rules.clear()
        self._record_chains(targets)

    def _record_chains(self, targets: Iterable[Target]) -> None:
        """Record the rules, as the kernel has them, of new class chains."""
        new = [target for target in targets if target not in self._class_rules and target is not _FOREIGN]
        if new:
            with NetlinkSocket(NETLINK_NETFILTER) as netlink:
                for target in new:
                    rules = _rules(netlink, self._table.family, nft_chain_name(target))
                    self._class_rules[target] = tuple(rule for _, rule in rules)

    async def check(self) -> list[str]:
        present = [name for _, name in socket.if_nameindex()]
        if self._base_chains(present) != self._base_rules:
            return [f"the chains of the nftables table {self._table.name} were changed"]
        for _ in range(_ATTEMPTS):
            before, expected = self._changes, dict(self._class_rules)
            actual: dict[Target, list[bytes]] = {target: [] for target in expected}
            with NetlinkSocket(NETLINK_NETFILTER) as netlink:
                async for name, rule in in_slices(_rules(netlink, self._table.family)):
                    if (target := _target(name)) in actual:
                        actual[target].append(rule)
                interrupted = netlink.interrupted
            if before == self._changes and not interrupted:
                damaged = [target for target, rules in expected.items() if tuple(actual[target]) != rules]
                name = self._table.name
                return [f"chain {nft_chain_name(each)} of table {name} was changed" for each in damaged[:1]]
        return []  # the next check finds the differences

    def _base_chains(self, present: Iterable[str]) -> dict[str, tuple[bytes, ...]]:
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            return {
                name: _base_chain(netlink, self._table.family, name) for name in self._table.base_chains(tuple(present))
            }

    async def read_entries(self) -> dict[FourTuple, Target]:
        entries, _ = await self._read_entries()
        return entries

    async def _read_entries(self) -> tuple[dict[FourTuple, Target], bool]:
        """Return the entries, and whether they are complete: others may change the ruleset during every attempt."""
        before, is_complete = self._changes, True
        entries: dict[FourTuple, Target] = {}
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            for version in (4, 6):
                for _ in range(_ATTEMPTS):
                    listed: dict[FourTuple, Target] = {}
                    # Between messages of a dump the kernel skips as many elements as it has listed, in the order of the
                    # hash table. If the table grows, it lists some twice and omits others, without NLM_F_DUMP_INTR.
                    has_duplicates = False
                    async for four_tuple, target in in_slices(_entries(netlink, self._table.family, version)):
                        has_duplicates = has_duplicates or four_tuple in listed
                        listed[four_tuple] = target
                    entries |= listed
                    is_consistent = not (has_duplicates or netlink.interrupted)
                    if is_consistent:
                        break
                is_complete = is_complete and is_consistent
        if before == self._changes:
            # After an incomplete read keep the entries that were not listed: a forgotten entry could not be deleted.
            self._targets = dict(entries) if is_complete else self._targets | entries
            self._uses = Counter(self._targets.values())
        return entries, is_complete

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        items = list(entries.items())
        for start in range(0, len(items), _CHUNK):
            part = items[start : start + _CHUNK]
            await self._run(self._additions(part), f"add {len(part)} map entries")
            self._record_chains({target for _, target in part})
            await self._drop_unused_chains({self._record(ft, target) for ft, target in part})

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        part = list(entries.items())
        # Changing an existing entry may leave a chain unused; its removal takes another transaction.
        if self._nft.busy or any(ft in self._targets for ft, _ in part):
            return False
        text = "\n".join(self._additions(part))
        if len(text) >= _MAX_SYNC_LENGTH:
            return False
        self._changes += 2
        self._nft.run(text, f"add {len(part)} map entries")
        self._record_chains({target for _, target in part})
        for ft, target in part:
            self._record(ft, target)
        return True

    def _additions(self, part: list[tuple[FourTuple, Target]]) -> list[str]:
        targets = {target for _, target in part} - {_FOREIGN}
        lines = [line for target in targets for line in self._table.chain(target)]
        # A map refuses a new verdict for an existing key, so the same transaction deletes the old element.
        lines += self._deletions([ft for ft, target in part if self._targets.get(ft, target) != target])
        new = {ft: target for ft, target in part if self._targets.get(ft) != target}
        return lines + self._elements(
            "add", {ft: f"{nft_key(ft)} : jump {nft_chain_name(target)}" for ft, target in new.items()}
        )

    def _record(self, four_tuple: FourTuple, target: Target | None) -> Target | None:
        """Record an entry's target, None if the entry was deleted; return its former target."""
        before = self._targets.pop(four_tuple, None)
        if before is not None:
            self._uses[before] -= 1
            if not self._uses[before]:
                del self._uses[before]
        if target is not None:
            self._targets[four_tuple] = target
            self._uses[target] += 1
        return before

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        present_tuples = [ft for ft in dict.fromkeys(four_tuples) if ft in self._targets]
        for start in range(0, len(present_tuples), _CHUNK):
            part = present_tuples[start : start + _CHUNK]
            await self._run(self._deletions(part), f"remove {len(part)} map entries")
            await self._drop_unused_chains({self._record(ft, None) for ft in part})

    async def remove(self) -> None:
        commands = (f"add table {self._table.name}", f"delete table {self._table.name}")
        await self._run(commands, f"remove the nftables table {self._table.name}")
        self._targets, self._base_rules = {}, {}
        self._uses.clear()
        self._class_rules.clear()

    async def _run(self, commands: Iterable[str], operation: str) -> None:
        self._changes += 1
        try:
            text = "\n".join(commands)
            if len(text) < _MAX_SYNC_LENGTH and not self._nft.busy:
                self._nft.run(text, operation)
            else:
                await asyncio.to_thread(self._nft.run, text, operation)
        finally:
            self._changes += 1

    def _deletions(self, four_tuples: Iterable[FourTuple]) -> list[str]:
        return self._elements("delete", {ft: nft_key(ft) for ft in four_tuples})

    def _elements(self, verb: str, elements: Mapping[FourTuple, str]) -> list[str]:
        texts = {v: ", ".join(each for ft, each in elements.items() if ft.is_ipv6 is (v == 6)) for v in (4, 6)}
        return [f"{verb} element {self._table.name} v{v} {{ {text} }}" for v, text in texts.items() if text]

    async def _drop_unused_chains(self, candidates: Iterable[Target | None]) -> None:
        unused = [each for each in set(candidates) - {_FOREIGN} if each is not None and each not in self._uses]
        for target in unused:
            self._class_rules.pop(target, None)
        names = sorted(map(nft_chain_name, unused))
        if names:
            commands = (f"delete chain {self._table.name} {name}" for name in names)
            await self._run(commands, "remove unused chains of classes")


def _target(chain: str) -> Target:
    match = _CLASS_CHAIN.match(chain)
    return _FOREIGN if match is None else Target(int(match[1], 16), int(match[2], 16))


def _entries(netlink: NetlinkSocket, family: str, version: int) -> Iterator[tuple[FourTuple, Target]]:
    """Yield the map entries for an IP *version*; may omit some if *netlink* was interrupted. Raises KernelError."""
    key = _KEYS[version]
    request = _header(family) + string(_LIST_TABLE, NFT_TABLE) + string(_LIST_SET, f"v{version}")
    for body in netlink.dump(_GETSETELEM, request, f"list the map v{version} of table {family} {NFT_TABLE}"):
        for kind, payload in attributes(body, _NFGENMSG.size):
            for _, element in attributes(payload) if kind == _LIST_ELEMENTS else ():
                fields = dict(attributes(element))
                value = dict(attributes(fields.get(_ELEMENT_KEY, b""))).get(_DATA_VALUE, b"")
                if len(value) != key.size:
                    continue  # a map with our name but another type
                remote, remote_port, local, local_port = key.unpack(value)
                verdict = dict(attributes(dict(attributes(fields.get(_ELEMENT_DATA, b""))).get(_DATA_VERDICT, b"")))
                jumps = verdict.get(_VERDICT_CODE) == _JUMP
                target = _target(text(verdict.get(_VERDICT_CHAIN))) if jumps else _FOREIGN
                yield FourTuple(local, local_port, remote, remote_port), target


def _chains(netlink: NetlinkSocket, family: str) -> Iterator[tuple[str, bytes | None]]:
    """Yield name and hook (base chains only) of our chains; may omit chains that change. Raises KernelError."""
    for chain in netlink.dump(_GETCHAIN, _header(family), f"list the chains of table {family} {NFT_TABLE}"):
        fields = dict(attributes(chain, _NFGENMSG.size))
        if text(fields.get(_CHAIN_TABLE)) == NFT_TABLE:
            yield text(fields.get(_CHAIN_NAME)), fields.get(_CHAIN_HOOK)


def _base_chain(netlink: NetlinkSocket, family: str, name: str) -> tuple[bytes, ...]:
    """Return hook, policy and rules of a chain; empty if it does not exist."""
    request = _header(family) + string(_CHAIN_TABLE, NFT_TABLE) + string(_CHAIN_NAME, name)
    reply = netlink.ask_if_exists(_GETCHAIN, request, f"look up the chain {name} of table {family} {NFT_TABLE}")
    if reply is None:
        return ()
    fields = dict(attributes(reply, _NFGENMSG.size))
    return fields.get(_CHAIN_HOOK, b""), fields.get(_CHAIN_POLICY, b""), *(r for _, r in _rules(netlink, family, name))


def _rules(netlink: NetlinkSocket, family: str, chain: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield chain and expressions of each rule of our table, or of one *chain*, in order. Raises KernelError."""
    request = _header(family) + string(_RULE_TABLE, NFT_TABLE)
    if chain is not None:
        request += string(_RULE_CHAIN, chain)
    for rule in netlink.dump(_GETRULE, request, f"list the rules of table {family} {NFT_TABLE}"):
        fields = dict(attributes(rule, _NFGENMSG.size))
        yield text(fields.get(_RULE_CHAIN)), fields.get(_RULE_EXPRESSIONS, b"")


def _header(family: str) -> bytes:
    return _NFGENMSG.pack(_FAMILIES[family], 0, 0)


def missing_support() -> str | None:
    """Return the reason why this host does not support nftables; None if it does."""
    try:
        with closing(LibNftables()) as nft:
            nft.run("list tables", "list nftables tables")
    except (KernelError, OSError) as error:
        return str(error)
    return None


def may_have_objects() -> bool:
    """Return whether our tables may exist. There is no closer check, because removing absent tables costs little."""
    return missing_support() is None


def open_adapter(ownership: Ownership) -> NftablesNetfilter:
    return NftablesNetfilter(NftTable(ownership))


def preview(entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
    return NftTable(ownership).shell_commands(entries)
