# SPDX-License-Identifier: GPL-2.0-or-later
"""Tries the kernel features that the throttler needs: those of ``mptcp_common.throttler_trial``, and netfilter through
the daemon's adapters. It runs in a network namespace that ends with the process; see ``try_features``.

It prints one JSON object, which maps each feature to null if the feature works, otherwise to the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import partial
from ipaddress import ip_address

from pyroute2 import AsyncIPRoute

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import ANY_BACKEND, BACKENDS, INGRESS, backends_without_modules
from mptcp_common.throttler_trial import TRIALS, Results, attempt, in_fresh_namespace
from mptcp_throttler.kernel.netfilter.backends import NO_BACKEND, open_netfilter
from mptcp_throttler.kernel.netfilter.nftables import NftablesNetfilter
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import FIRST_MINOR, UPLOAD_DEVICE, Ownership, Target

_LO = 1  # index of the loopback interface, the only interface of a fresh namespace
_DEFAULTS = Ownership()
_TARGET = Target(FIRST_MINOR, _DEFAULTS.mark_of_rule(0))
_ENTRIES = {
    FourTuple(ip_address(local).packed, _DEFAULTS.listen_ports[0], ip_address(remote).packed, 50000): _TARGET
    for local, remote in (("192.0.2.1", "198.51.100.1"), ("2001:db8::1", "2001:db8:1::1"))
}
"""One entry per address family, with addresses from documentation networks."""


async def _try_netfilter(netfilter: Netfilter) -> None:
    with closing(netfilter):
        await netfilter.prepare()
        await netfilter.upsert_entries(_ENTRIES)
        if await netfilter.read_entries() != _ENTRIES:
            raise KernelError("the kernel returns other entries than were set")


def _try_backend(backend: str) -> None:
    try:
        _, netfilter = open_netfilter(backend, _DEFAULTS)
    except KernelError as error:
        raise KernelError(str(error).removeprefix(NO_BACKEND).removeprefix(f"{backend}: ")) from error
    asyncio.run(_try_netfilter(netfilter))


def _try_any_backend() -> None:
    """Try the backends for ``auto``, if possible without loading kernel modules."""
    backends = backends_without_modules()
    for name in backends if backends != BACKENDS else ():
        with suppress(KernelError, OSError):  # the call below reports all reasons
            return _try_backend(name)
    _try_backend(ANY_BACKEND)


async def _try_ingress() -> None:
    # Let lo stand for the IFB device: the module ifb, when loaded, creates two devices in the host's own namespace.
    async with AsyncIPRoute() as links:
        await links.link("set", index=_LO, ifname=UPLOAD_DEVICE)
    await _try_netfilter(NftablesNetfilter(NftTable(_DEFAULTS, (UPLOAD_DEVICE,))))


_TRIALS: Mapping[str, Callable[[], None]] = {
    **TRIALS,
    **{name: partial(_try_backend, name) for name in BACKENDS},
    ANY_BACKEND: _try_any_backend,
    INGRESS: lambda: asyncio.run(_try_ingress()),
}


def try_features(features: Iterable[str]) -> tuple[Results, str]:
    """Return for each of *features* why it does not work, or None; and why none could be tried, or an empty text."""
    return in_fresh_namespace(__name__, list(features))


def main() -> None:
    trials = {feature: trial for feature, trial in _TRIALS.items() if feature in sys.argv[1:]}
    # No other program changes this namespace's tables, so avoid the host's lock. A memfd always ends with the process.
    os.environ["XTABLES_LOCKFILE"] = f"/proc/self/fd/{os.memfd_create('xtables.lock')}"
    print(json.dumps(attempt(trials)))


if __name__ == "__main__":
    main()
