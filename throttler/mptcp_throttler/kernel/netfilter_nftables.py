"""The Netfilter port with nftables: one table, one chain, one verdict map per family. nft(8), libnftables(3).

The chain looks the packet's four-tuple up in the map; the map's verdict is a jump to a small chain, one for
each pair of class and mark, that sets our bits of the mark and the HTB class. Commands go through libnftables,
whose every call is one transaction.
"""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import json
import re
import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from ..mptcp.model import FourTuple
from ..shaping.model import UPLOAD_DEVICE, Target
from ..shaping.words import NftTable, nft_chain_name, nft_key
from .ports import KernelError

_OUTPUT_JSON = 1 << 4
_CHUNK = 2000
_PAUSE_AFTER = 500
_CHAIN_NAME = re.compile(r"^class_([0-9a-f]+)_mark_([0-9a-f]+)$")


class LibNftables:
    """libnftables in the network namespace in which it is opened."""

    def __init__(self) -> None:
        name = ctypes.util.find_library("nftables")
        if name is None:
            raise KernelError("libnftables is not installed (Debian: libnftables1)")
        self._library = ctypes.CDLL(name)
        self._library.nft_ctx_new.restype = ctypes.c_void_p
        self._library.nft_ctx_new.argtypes = [ctypes.c_uint32]
        for call in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
            getattr(self._library, call).restype = ctypes.c_char_p
        for call in (
            "nft_ctx_buffer_output",
            "nft_ctx_buffer_error",
            "nft_ctx_get_output_buffer",
            "nft_ctx_get_error_buffer",
            "nft_ctx_free",
        ):
            getattr(self._library, call).argtypes = [ctypes.c_void_p]
        self._library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._context = self._library.nft_ctx_new(0)
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def close(self) -> None:
        if self._context:
            self._library.nft_ctx_free(self._context)
            self._context = None

    def run(self, commands: str, what: str, as_json: bool = False) -> str:
        """Run *commands* as one transaction and return what they print. Raises KernelError naming *what*."""
        self._library.nft_ctx_output_set_flags(self._context, _OUTPUT_JSON if as_json else 0)
        failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
        output: bytes = self._library.nft_ctx_get_output_buffer(self._context)
        error = self._library.nft_ctx_get_error_buffer(self._context)
        if failed:
            lines = error.decode(errors="replace").strip().splitlines()
            raise KernelError(f"{what}: {lines[0] if lines else 'nftables refused'}")
        return output.decode(errors="replace")


class NftablesNetfilter:
    """One of our tables in the namespace it is made in."""

    def __init__(self, table: NftTable) -> None:
        self._table = table
        self._nft = LibNftables()
        self._targets: dict[FourTuple, Target] = {}
        self._adopted = False
        self._device = 0
        """Index of the IFB device to which the chains of an upload table send."""

    def close(self) -> None:
        self._nft.close()

    async def prepare(self) -> None:
        present = [name for _, name in socket.if_nameindex()]
        self._nft.run("\n".join(self._table.table(present)), f"make the nftables table {self._table.name}")
        if not self._adopted:
            await self.read_entries()
            self._drop_unused_chains(self._chains())
            self._adopted = True
        if self._table.interfaces:
            self._follow_device()

    def _follow_device(self) -> None:
        """Let the chains send to the device that has the name now: nftables keeps its index."""
        try:
            device = socket.if_nametoindex(UPLOAD_DEVICE)
        except OSError as error:
            raise KernelError(f"the IFB device {UPLOAD_DEVICE} is gone: {error.strerror}") from error
        if device != self._device:
            lines = [line for target in set(self._targets.values()) for line in self._table.chain(target)]
            self._nft.run("\n".join(lines), f"send to {UPLOAD_DEVICE}")
            self._device = device

    async def read_entries(self) -> dict[FourTuple, Target]:
        found: dict[FourTuple, Target] = {}
        for family in (4, 6):
            what = f"list the map v{family} of table {self._table.name}"
            answer = json.loads(self._nft.run(f"list map {self._table.name} v{family}", what, as_json=True))
            for item in answer["nftables"]:
                for number, (key, verdict) in enumerate(item.get("map", {}).get("elem", [])):
                    found[_four_tuple(key)] = _target(verdict)
                    if number % _PAUSE_AFTER == 0:
                        await asyncio.sleep(0)
        self._targets = dict(found)
        return found

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        items = list(entries.items())
        for start in range(0, len(items), _CHUNK):
            part = items[start : start + _CHUNK]
            lines = [line for target in {target for _, target in part} for line in self._table.chain(target)]
            # A map refuses another verdict for a key that it has: the old one goes in the same transaction.
            lines += self._elements("delete", [ft for ft, target in part if self._targets.get(ft, target) != target])
            fresh = [(ft, target) for ft, target in part if self._targets.get(ft) != target]
            for is_ipv6 in (False, True):
                texts = [
                    f"{nft_key(ft)} : jump {nft_chain_name(target)}" for ft, target in fresh if ft.is_ipv6 is is_ipv6
                ]
                if texts:
                    lines.append(f"add element {self._table.name} v{6 if is_ipv6 else 4} {{ {', '.join(texts)} }}")
            self._nft.run("\n".join(lines), f"add {len(part)} map entries")
            self._targets.update(part)

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        gone = [ft for ft in four_tuples if ft in self._targets]
        for start in range(0, len(gone), _CHUNK):
            part = gone[start : start + _CHUNK]
            self._nft.run("\n".join(self._elements("delete", part)), f"remove {len(part)} map entries")
            left = {self._targets.pop(ft) for ft in part}
            self._drop_unused_chains({nft_chain_name(target) for target in left})

    async def remove(self) -> None:
        self._nft.run(
            f"add table {self._table.name}\ndelete table {self._table.name}",
            f"remove the nftables table {self._table.name}",
        )
        self._targets, self._adopted = {}, False

    def _chains(self) -> set[str]:
        what = f"list the chains of table {self._table.name}"
        listing = json.loads(self._nft.run(f"list table {self._table.name}", what, as_json=True))
        names = (item["chain"]["name"] for item in listing["nftables"] if "chain" in item)
        return {name for name in names if _CHAIN_NAME.match(name)}

    def _elements(self, verb: str, four_tuples: Iterable[FourTuple]) -> list[str]:
        keys: dict[int, list[str]] = {4: [], 6: []}
        for four_tuple in four_tuples:
            keys[6 if four_tuple.is_ipv6 else 4].append(nft_key(four_tuple))
        return [
            f"{verb} element {self._table.name} v{v} {{ {', '.join(texts)} }}" for v, texts in keys.items() if texts
        ]

    def _drop_unused_chains(self, candidates: set[str]) -> None:
        unused = candidates - {nft_chain_name(target) for target in set(self._targets.values())}
        if unused:
            commands = "".join(f"delete chain {self._table.name} {name}\n" for name in sorted(unused))
            self._nft.run(commands, "remove chains of classes no longer used")


def _four_tuple(key: Any) -> FourTuple:
    # An element with a counter is wrapped: {"elem": {"val": {"concat": […]}, "counter": …}}.
    concat = (key["elem"]["val"] if "elem" in key else key)["concat"]
    return FourTuple(ip_address(concat[2]).packed, concat[3], ip_address(concat[0]).packed, concat[1])


def _target(verdict: Any) -> Target:
    match = _CHAIN_NAME.match(verdict["jump"]["target"])
    if match is None:
        raise KernelError(f"our table has an entry that is not ours: jump {verdict['jump']['target']}")
    return Target(int(match[1], 16), int(match[2], 16))


def available() -> str | None:
    """Return None where this kernel and host can do it, else what is missing, for people."""
    try:
        nft = LibNftables()
    except (KernelError, OSError) as error:
        return str(error)
    try:
        nft.run("list tables", "list nftables tables")
    except KernelError as error:
        return str(error)
    finally:
        nft.close()
    return None
