"""Chooses the Netfilter adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ..shaping.model import Ownership
from ..shaping.words import NftTable
from . import netfilter_iptables, netfilter_nftables
from .ports import KernelError, Netfilter

Backend = Literal["iptables", "nftables"]

_PROBES: dict[Backend, Callable[[], str | None]] = {
    "iptables": netfilter_iptables.available,
    "nftables": netfilter_nftables.available,
}
_ADAPTERS: dict[Backend, Callable[[Ownership], Netfilter]] = {
    "iptables": netfilter_iptables.IptablesNetfilter,
    "nftables": lambda ownership: netfilter_nftables.NftablesNetfilter(NftTable.download(ownership)),
}


def available_backends() -> dict[Backend, str | None]:
    """Return for each backend None where this kernel offers it, else what is missing."""
    return {backend: probe() for backend, probe in _PROBES.items()}


def open_netfilter(wanted: Literal["auto", "iptables", "nftables"], ownership: Ownership) -> tuple[Backend, Netfilter]:
    """Open the backend *wanted*, with "auto" the first that this kernel offers. Raises KernelError where none is."""
    missing = []
    for backend, probe in _PROBES.items():
        if wanted in ("auto", backend):
            why_not = probe()
            if why_not is None:
                return backend, _ADAPTERS[backend](ownership)
            missing.append(f"{backend}: {why_not}")
    raise KernelError("no netfilter backend: " + "; ".join(missing))


async def remove_other_backends(ours: Backend, ownership: Ownership) -> None:
    """Remove what a killed daemon with another setting left in the other backends."""
    for backend, probe in _PROBES.items():
        if backend != ours and probe() is None:
            other = _ADAPTERS[backend](ownership)
            try:
                await other.remove()
            finally:
                other.close()
