# SPDX-License-Identifier: GPL-2.0-or-later
"""The netfilter backends, and the choice of one for this host.

A new backend needs a module with an adapter of the Netfilter port, a case in each function here, a row in
``mptcp_common.throttler_needs`` with its name and host requirements, its name in ``config.settings``, and a trial in
``kernel.feature_probe``. Neither this process nor the kernel loads any of a
backend until it is probed or opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import BACKENDS, BY_EITHER, BY_IPTABLES, IPTABLES_THERE
from mptcp_throttler.kernel.netfilter import iptables, nftables
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping import commands
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership, Target

NO_BACKEND = "no netfilter backend: "


def preview(wanted: str) -> Callable[[Mapping[FourTuple, Target], Ownership], Iterator[str]]:
    """Return the function that yields shell commands for rules and entries of the backend *wanted*; for "auto", of the
    backend that a daemon would select on this host."""
    if wanted == BY_IPTABLES or (wanted == BY_EITHER and IPTABLES_THERE.exists()):
        return commands.iptables
    return lambda entries, ownership: NftTable(ownership).shell_commands(entries)


def open_netfilter(wanted: str, ownership: Ownership) -> tuple[str, Netfilter]:
    """Open the backend *wanted*, or for "auto" the first supported one. Raises KernelError if none is supported."""
    missing = []
    for name in BACKENDS:
        if wanted in (BY_EITHER, name):
            why_not = iptables.available() if name == BY_IPTABLES else nftables.available()
            if why_not is None:
                return name, _opened(name, ownership)
            missing.append(f"{name}: {why_not}")
    raise KernelError(NO_BACKEND + "; ".join(missing))


async def remove_backends(ownership: Ownership, but: str | None = None) -> dict[str, KernelError | None]:
    """Remove everything of ours from all backends except *but*; return each backend's error or None."""
    refused: dict[str, KernelError | None] = {}
    for name in BACKENDS:
        if name == but:
            continue
        refused[name] = None
        if iptables.in_use() if name == BY_IPTABLES else nftables.available() is None:
            with closing(_opened(name, ownership)) as other:
                try:
                    await other.remove()
                except KernelError as error:
                    refused[name] = error
    return refused


async def remove_other_backends(ours: str, ownership: Ownership) -> None:
    """Remove remains of a killed daemon with another setting from the other backends. Raises KernelError."""
    for error in (await remove_backends(ownership, ours)).values():
        if error is not None:
            raise error


def _opened(name: str, ownership: Ownership) -> Netfilter:
    if name == BY_IPTABLES:
        return iptables.IptablesNetfilter(ownership)
    return nftables.NftablesNetfilter(NftTable(ownership))
