"""Chooses the Netfilter adapter. Of iptables nothing is loaded, in this process or in the kernel, until it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mptcp_throttler.kernel.netfilter import iptables_traces
from mptcp_throttler.kernel.netfilter import nftables as netfilter_nftables
from mptcp_throttler.kernel.ports import KernelError, Netfilter
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership

Backend = Literal["iptables", "nftables"]
NO_BACKEND = "no netfilter backend: "


def _iptables_available() -> str | None:
    from mptcp_throttler.kernel.netfilter import iptables

    return iptables.available()


def _iptables(ownership: Ownership) -> Netfilter:
    from mptcp_throttler.kernel.netfilter import iptables

    return iptables.IptablesNetfilter(ownership)


_PROBES: dict[Backend, Callable[[], str | None]] = {
    "iptables": _iptables_available,
    "nftables": netfilter_nftables.available,
}
_ADAPTERS: dict[Backend, Callable[[Ownership], Netfilter]] = {
    "iptables": _iptables,
    "nftables": lambda ownership: netfilter_nftables.NftablesNetfilter(NftTable.download(ownership)),
}
_IN_USE: dict[Backend, Callable[[], bool]] = {
    "iptables": iptables_traces.in_use,
    "nftables": lambda: netfilter_nftables.available() is None,
}
"""Whether there may be anything of ours. A probe would make the legacy tables, for which every packet then pays."""


def open_netfilter(wanted: Literal["auto", "iptables", "nftables"], ownership: Ownership) -> tuple[Backend, Netfilter]:
    """Open the backend *wanted*, with "auto" the first that this kernel offers. Raises KernelError where none is."""
    missing = []
    for backend, probe in _PROBES.items():
        if wanted in ("auto", backend):
            why_not = probe()
            if why_not is None:
                return backend, _ADAPTERS[backend](ownership)
            missing.append(f"{backend}: {why_not}")
    raise KernelError(NO_BACKEND + "; ".join(missing))


async def remove_backends(ownership: Ownership, but: Backend | None = None) -> dict[Backend, KernelError | None]:
    """Remove everything of ours from the backends other than *but*; return what each of them refused."""
    refused: dict[Backend, KernelError | None] = {}
    for backend, in_use in _IN_USE.items():
        if backend == but:
            continue
        refused[backend] = None
        if in_use():
            other = _ADAPTERS[backend](ownership)
            try:
                await other.remove()
            except KernelError as error:
                refused[backend] = error
            finally:
                other.close()
    return refused


async def remove_other_backends(ours: Backend, ownership: Ownership) -> None:
    """Remove what a killed daemon with another setting left in the other backends. Raises KernelError."""
    for error in (await remove_backends(ownership, ours)).values():
        if error is not None:
            raise error
