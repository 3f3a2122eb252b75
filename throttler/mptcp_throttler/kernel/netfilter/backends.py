# SPDX-License-Identifier: GPL-2.0-or-later
"""The netfilter backends, and the choice of a backend for this host.

A new backend needs a row in ``mptcp_common.throttler_needs``, with its name and its requirements, and a module here
with the functions of :class:`Backend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Protocol

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import ANY_BACKEND, BACKENDS, NFTABLES_BACKEND, backends_without_modules
from mptcp_throttler.kernel.netfilter import iptables, nftables
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import Ownership, Target

NO_BACKEND = "no netfilter backend: "


class Backend(Protocol):
    """The functions of a backend's module."""

    def missing_support(self) -> str | None:
        """Return the reason why this host does not support the backend; None if it does."""

    def may_have_objects(self) -> bool:
        """Return whether our objects may exist. Changes nothing."""

    def open_adapter(self, ownership: Ownership) -> Netfilter:
        """Return the adapter, for the current network namespace. Raises KernelError."""

    def preview(self, entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
        """Yield shell commands that create the rules and *entries*."""


_MODULES: Mapping[str, Backend] = {"iptables": iptables, NFTABLES_BACKEND: nftables}


def preview(backend: str, entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
    return _MODULES[backends_without_modules()[0] if backend == ANY_BACKEND else backend].preview(entries, ownership)


def open_netfilter(backend: str, ownership: Ownership) -> tuple[str, Netfilter]:
    """Open *backend*, or for "auto" the first that is supported. Raises KernelError if none is supported."""
    missing = []
    for name in BACKENDS if backend == ANY_BACKEND else (backend,):
        if (reason := _MODULES[name].missing_support()) is None:
            return name, _MODULES[name].open_adapter(ownership)
        missing.append(f"{name}: {reason}")
    raise KernelError(NO_BACKEND + "; ".join(missing))


async def remove_backends(ownership: Ownership, kept: str | None = None) -> dict[str, KernelError | None]:
    """Remove our objects from all backends except the one *kept*; return each backend's error or None."""
    errors: dict[str, KernelError | None] = {name: None for name in BACKENDS if name != kept}
    for name in errors:
        if _MODULES[name].may_have_objects():
            with closing(_MODULES[name].open_adapter(ownership)) as netfilter:
                try:
                    await netfilter.remove()
                except KernelError as error:
                    errors[name] = error
    return errors


async def remove_other_backends(backend: str, ownership: Ownership) -> None:
    """Remove objects that a killed daemon with another setting left in other backends. Raises KernelError."""
    for error in (await remove_backends(ownership, backend)).values():
        if error is not None:
            raise error
