# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's endpoints and limits of Multipath TCP, through ``ip mptcp`` (ip-mptcp(8))."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from mptcp_common.programs import run
from mptcp_gateway.model import Address

_FLAGS: Final = ("signal", "subflow", "backup", "fullmesh")


@dataclass(frozen=True, slots=True)
class ExistingEndpoint:
    """An existing endpoint; the kernel has at most one per address."""

    number: int
    device: str
    """The device to which the endpoint is bound; empty if none."""
    flags: tuple[str, ...]

    @property
    def opens_subflows(self) -> bool:
        """Whether the kernel opens subflows from it."""
        return "subflow" in self.flags


def endpoints() -> dict[Address, ExistingEndpoint]:
    """Return the endpoints without a port, except those that the kernel created itself. Raises KernelError."""
    found = {}
    for each in json.loads(_ip("-j", "mptcp", "endpoint", "show") or "[]"):
        if not each.get("implicit") and "port" not in each:
            flags = tuple(flag for flag in _FLAGS if each.get(flag))
            found[ip_address(each["address"])] = ExistingEndpoint(int(each["id"]), each.get("dev", ""), flags)
    return found


def add_endpoint(address: Address, device: str, flags: Iterable[str]) -> None:
    """Add an endpoint; *device* may be empty. Raises KernelError."""
    _ip("mptcp", "endpoint", "add", str(address), *(("dev", device) if device else ()), *flags)


def delete_endpoint(number: int) -> None:
    """Raises KernelError."""
    _ip("mptcp", "endpoint", "delete", "id", str(number))


def subflow_limit() -> int:
    """Return the maximum number of additional subflows per connection. Raises KernelError."""
    found = re.search(r"subflows (\d+)", _ip("mptcp", "limits", "show"))  # iproute2 6.1 prints no JSON here
    return int(found[1]) if found else 0


def set_subflow_limit(limit: int) -> None:
    """Raises KernelError."""
    _ip("mptcp", "limits", "set", "subflows", str(limit))


def _ip(*arguments: str) -> str:
    return run("ip", *arguments)
