# SPDX-License-Identifier: GPL-2.0-or-later
"""Chooses an uplink's address among those of its device. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, IPv6Network
from typing import Final

from mptcp_gateway.model import Address

_UNIQUE_LOCAL: Final = IPv6Network("fc00::/7")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A global address of a device."""

    interface: IPv4Interface | IPv6Interface
    deprecated: bool = False
    temporary: bool = False
    preferred: int = 0
    """Remaining seconds in which new connections may use the address."""


def choose_address(candidates: Sequence[Candidate], current: Address | None) -> Candidate | None:
    """Return the address for subflows: *current*, unless another address is of a better kind."""
    usable = [each for each in candidates if not each.deprecated]
    if not usable:
        return None
    best = min(map(_kind, usable))
    usable = [each for each in usable if _kind(each) == best]
    for each in usable:
        if each.interface.ip == current:
            return each
    if usable[0].interface.version == 4:
        return usable[0]  # the first in the kernel's order is the primary address
    return max(usable, key=lambda each: each.preferred)


def _kind(candidate: Candidate) -> tuple[bool, bool]:
    """Return the kind of an address, for comparison. Unique local addresses do not reach the Internet, and temporary
    addresses are removed within a day."""
    return candidate.interface.ip in _UNIQUE_LOCAL, candidate.temporary
