"""Shaping what was received: an IFB device of ours with our HTB tree. ip-link(8), drivers/net/ifb.c.

nftables sends the packets of capped subflows here (``NftTable.upload``), each with its class as priority; the device
shapes them and puts them back where they came in. One device serves all interfaces. It is known by its name: whoever
finds it after a crash takes it over, classes included.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from ..shaping.model import UPLOAD_DEVICE, ClassSpec, Ownership
from .htb import UP_LEAF, HtbTree, Link
from .ports import KernelError

log = logging.getLogger(__name__)

_ENODEV = 19


class IfbTrafficControl:
    """The TrafficControl port on the IFB device of the namespace it is opened in."""

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
        link = await self._link()
        try:
            if link is None:
                await self._ipr.link("add", ifname=UPLOAD_DEVICE, kind="ifb")
                link = await self._link()
            if link is None:
                raise KernelError(f"the IFB device {UPLOAD_DEVICE} is gone as soon as it was made")
            await self._ipr.link("set", index=link.index, state="up")
        except NetlinkError as error:
            raise KernelError(
                f"make the IFB device {UPLOAD_DEVICE}, which rules for uploads need (kernel module ifb): {error}"
            ) from error
        await self._tree.make_root(link)

    async def read_classes(self) -> dict[int, ClassSpec]:
        link = await self._link()
        return {} if link is None else await self._tree.classes_of(link)

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        link = await self._there()
        for spec in specs:
            await self._tree.upsert(link, spec)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        link = await self._there()
        for minor in minors:
            await self._tree.delete(link, minor)

    async def restore(self) -> None:
        link = await self._link()
        if link is not None:
            try:
                await self._ipr.link("del", index=link.index)
            except NetlinkError as error:
                raise KernelError(f"remove the IFB device {UPLOAD_DEVICE}: {error}") from error

    async def _there(self) -> Link:
        link = await self._link()
        if link is None:
            raise KernelError(f"the IFB device {UPLOAD_DEVICE} is gone")
        return link

    async def _link(self) -> Link | None:
        """Return the device, None where it is not there. Raises KernelError where something else has the name."""
        try:
            found = [x async for x in await self._ipr.get_links(ifname=UPLOAD_DEVICE)]
        except NetlinkError as error:
            if error.code == _ENODEV:
                return None
            raise KernelError(f"look up interface {UPLOAD_DEVICE}: {error}") from error
        if not found:
            return None
        about = found[0].get_attr("IFLA_LINKINFO")
        if about is None or about.get_attr("IFLA_INFO_KIND") != "ifb":
            raise KernelError(f"interface {UPLOAD_DEVICE} is not an IFB device: it is in the way of rules for uploads")
        return Link(UPLOAD_DEVICE, found[0]["index"])
