"""What is in our nftables table, read by netlink. linux/netfilter/nf_tables.h; changes go through libnftables.

libnftables lists a map as one text, which takes 30 ms to read for 10,000 entries; here they come datagram by datagram.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mptcp_throttler.kernel.netlink import NetlinkSocket, attribute, attributes
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import NFT_TABLE

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
"""Each part of a key begins at a multiple of four bytes."""


class Element(NamedTuple):
    """One entry of a map."""

    four_tuple: FourTuple
    chain: str | None
    """To which it jumps; None for any other verdict."""


def elements(netlink: NetlinkSocket, family: str, version: int) -> Iterator[Element]:
    """Yield what the map for an IP *version* has. Raises KernelError; ends early where :attr:`interrupted` says so."""
    name = f"v{version}"
    request = _NFGENMSG.pack(_FAMILIES[family], 0, 0) + _text(_LIST_TABLE, NFT_TABLE) + _text(_LIST_SET, name)
    key = _KEYS[version]
    for body in netlink.dump(_GETSETELEM, request, f"list the map {name} of table {family} {NFT_TABLE}"):
        for kind, payload in attributes(body, _NFGENMSG.size):
            if kind == _LIST_ELEMENTS:
                for _, element in attributes(payload):
                    found = _element(element, key)
                    if found is not None:
                        yield found


def _element(data: bytes, key: struct.Struct) -> Element | None:
    fields = dict(attributes(data))
    value = dict(attributes(fields.get(_ELEMENT_KEY, b""))).get(_DATA_VALUE, b"")
    if len(value) != key.size:
        return None  # not of a map that has our name and our type
    remote, remote_port, local, local_port = key.unpack(value)
    verdict = dict(attributes(dict(attributes(fields.get(_ELEMENT_DATA, b""))).get(_DATA_VERDICT, b"")))
    chain = None
    if verdict.get(_VERDICT_CODE) == _JUMP:
        chain = _read(verdict.get(_VERDICT_CHAIN))
    return Element(FourTuple(local, local_port, remote, remote_port), chain)


def base_chain(netlink: NetlinkSocket, family: str, name: str) -> tuple[bytes, ...]:
    """Return where a chain hooks in, its policy and its rules, to compare; empty where it is not there."""
    header = _NFGENMSG.pack(_FAMILIES[family], 0, 0)
    what = f"look up the chain {name} of table {family} {NFT_TABLE}"
    question = header + _text(_CHAIN_TABLE, NFT_TABLE) + _text(_CHAIN_NAME, name)
    answer = netlink.ask_if_there(_GETCHAIN, question, what)
    if answer is None:
        return ()
    fields = dict(attributes(answer, _NFGENMSG.size))
    expressions = (rule for _, rule in rules(netlink, family, name))
    return fields.get(_CHAIN_HOOK, b""), fields.get(_CHAIN_POLICY, b""), *expressions


def hooks(netlink: NetlinkSocket, family: str) -> Iterator[tuple[str, str | None]]:
    """Yield each base chain of our table, and the interface it is on; None where that is none, or more than one.

    Raises KernelError; what changes meanwhile may be left out.
    """
    question = _NFGENMSG.pack(_FAMILIES[family], 0, 0)
    for chain in netlink.dump(_GETCHAIN, question, f"list the chains of table {family} {NFT_TABLE}"):
        fields = dict(attributes(chain, _NFGENMSG.size))
        if _CHAIN_HOOK in fields and _read(fields.get(_CHAIN_TABLE)) == NFT_TABLE:
            yield _read(fields.get(_CHAIN_NAME)), _read(dict(attributes(fields[_CHAIN_HOOK])).get(_HOOK_DEVICE)) or None


def rules(netlink: NetlinkSocket, family: str, chain: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield each rule of our table, as its chain and its expressions, in their order. Raises KernelError.

    *chain*: of that one alone.
    """
    question = _NFGENMSG.pack(_FAMILIES[family], 0, 0) + _text(_RULE_TABLE, NFT_TABLE)
    what = f"list the rules of table {family} {NFT_TABLE}"
    if chain is not None:
        question += _text(_RULE_CHAIN, chain)
        what = f"list the chain {chain} of table {family} {NFT_TABLE}"
    for rule in netlink.dump(_GETRULE, question, what):
        fields = dict(attributes(rule, _NFGENMSG.size))
        yield _read(fields.get(_RULE_CHAIN)), fields.get(_RULE_EXPRESSIONS, b"")


def _read(text: bytes | None) -> str:
    return (text or b"").rstrip(b"\0").decode(errors="replace")


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")
