"""Shaping of received packets: our IFB device with our HTB tree. ip-link(8), drivers/net/ifb.c.

nftables redirects packets of capped subflows here (``NftTable``), with the class as priority. The device shapes
them and reinjects them where they came in. One device serves all interfaces. After a crash the successor adopts it by
its name, with its classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.libraries import AsyncIPRoute, NetlinkError
from mptcp_throttler.kernel.tc.htb import UP_LEAF, HtbTree
from mptcp_throttler.kernel.tc.link import Link, find
from mptcp_throttler.shaping.model import UPLOAD_DEVICE, ClassSpec, Ownership

log = logging.getLogger(__name__)


class IfbTrafficControl:
    """The TrafficControl port on the IFB device of the network namespace in which it is opened."""

    settled = True
    left_out: Mapping[str, str] = MappingProxyType({})
    """Always empty: no other interface could go on."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._ipr: Any = None
        self._tree: HtbTree

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[IfbTrafficControl]:
        async with AsyncIPRoute() as self._ipr:
            self._tree = HtbTree(self._ipr, self._ownership, UP_LEAF)
            yield self

    async def prepare(self) -> None:
        link = self._link()
        try:
            if link is None:
                await self._ipr.link("add", ifname=UPLOAD_DEVICE, kind="ifb")
                link = self._link()
            if link is None:
                raise KernelError(f"the IFB device {UPLOAD_DEVICE} is gone as soon as it was made")
            await self._ipr.link("set", index=link.index, state="up")
        except NetlinkError as error:
            raise KernelError(
                f"make the IFB device {UPLOAD_DEVICE}, which rules for uploads need (kernel module ifb): "
                f"{os.strerror(error.code)}"
            ) from error
        await self._tree.make_root(link)

    async def settle(self) -> None:
        """Do nothing: there are no settings other than root and classes."""

    async def read(self) -> tuple[list[str], dict[int, ClassSpec]]:
        link = self._link()
        if link is None:
            return [f"the IFB device {UPLOAD_DEVICE} is gone"], {}
        problems, classes = await self._tree.read(link)
        return problems if link.up else [f"the IFB device {UPLOAD_DEVICE} is down"], classes

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        await self._tree.upsert([self._there()], specs)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        await self._tree.delete([self._there()], minors)

    async def restore(self) -> None:
        link = self._link()
        if link is not None:
            try:
                await self._ipr.link("del", index=link.index)
            except NetlinkError as error:
                raise KernelError(f"remove the IFB device {UPLOAD_DEVICE}: {error}") from error

    def _there(self) -> Link:
        link = self._link()
        if link is None:
            raise KernelError(f"the IFB device {UPLOAD_DEVICE} is gone")
        return link

    @staticmethod
    def _link() -> Link | None:
        """Return the device, or None. Raises KernelError if another interface has its name."""
        link = find(UPLOAD_DEVICE)
        if link is not None and link.kind != "ifb":
            raise KernelError(f"interface {UPLOAD_DEVICE} is not an IFB device: it is in the way of rules for uploads")
        return link
