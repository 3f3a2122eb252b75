"""The netfilter backends, and which of them this host uses.

A new backend needs a module with an adapter of the Netfilter port, a row in :data:`_ALL`, and a row in
``mptcp_common.throttler_needs`` with its name and host requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import BACKENDS, BY_EITHER, BY_IPTABLES, BY_NFTABLES, IPTABLES_THERE
from mptcp_throttler.kernel.netfilter import ipset, nftables
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping import commands
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership, Target

NO_BACKEND = "no netfilter backend: "


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend. Neither this process nor the kernel loads any of it until it is probed or opened."""

    probe: Callable[[], str | None]
    """Returns None if this host supports it, otherwise a message that says what is missing."""
    open: Callable[[Ownership], Netfilter]
    in_use: Callable[[], bool]
    """Whether objects of ours may exist; changes nothing."""
    expected: Callable[[], bool]
    """Whether a probe should succeed here; changes nothing."""
    preview: Callable[[Mapping[FourTuple, Target], Ownership], Iterator[str]]
    """Yields shell commands that make its rules and these entries."""


def _iptables_missing() -> str | None:
    from mptcp_throttler.kernel.netfilter import iptables  # loads kernel modules

    return iptables.available()


def _open_iptables(ownership: Ownership) -> Netfilter:
    from mptcp_throttler.kernel.netfilter import iptables

    return iptables.IptablesNetfilter(ownership)


_ALL = {
    BY_IPTABLES: Backend(
        probe=_iptables_missing,
        open=_open_iptables,
        in_use=ipset.in_use,
        expected=IPTABLES_THERE.exists,
        preview=commands.iptables,
    ),
    BY_NFTABLES: Backend(
        probe=nftables.available,
        open=lambda ownership: nftables.NftablesNetfilter(NftTable(ownership)),
        in_use=lambda: nftables.available() is None,
        expected=lambda: True,
        preview=lambda entries, ownership: NftTable(ownership).shell_commands(entries),
    ),
}


def expected_backend(wanted: str) -> Backend:
    """Return the backend *wanted*, or for "auto" the one that a start should take here. Loads nothing."""
    return _ALL[next(each for each in BACKENDS if each == wanted or (wanted == BY_EITHER and _ALL[each].expected()))]


def open_netfilter(wanted: str, ownership: Ownership) -> tuple[str, Netfilter]:
    """Open the backend *wanted*, or for "auto" the first that this host supports. Raises KernelError if none is."""
    missing = []
    for name in BACKENDS:
        if wanted in (BY_EITHER, name):
            why_not = _ALL[name].probe()
            if why_not is None:
                return name, _ALL[name].open(ownership)
            missing.append(f"{name}: {why_not}")
    raise KernelError(NO_BACKEND + "; ".join(missing))


async def remove_backends(ownership: Ownership, but: str | None = None) -> dict[str, KernelError | None]:
    """Remove everything of ours from all backends except *but*; return each backend's error or None."""
    refused: dict[str, KernelError | None] = {}
    for name, backend in _ALL.items():
        if name == but:
            continue
        refused[name] = None
        if backend.in_use():
            other = backend.open(ownership)
            try:
                await other.remove()
            except KernelError as error:
                refused[name] = error
            finally:
                other.close()
    return refused


async def remove_other_backends(ours: str, ownership: Ownership) -> None:
    """Remove remains of a killed daemon with another setting from the other backends. Raises KernelError."""
    for error in (await remove_backends(ownership, ours)).values():
        if error is not None:
            raise error
