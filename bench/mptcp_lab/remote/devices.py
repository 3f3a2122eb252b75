# SPDX-License-Identifier: GPL-2.0-or-later
"""The network interfaces of a host, from the output of ``ip -j address show``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FAMILIES = {"inet": 4, "inet6": 6}


@dataclass(frozen=True, slots=True)
class Device:
    """One interface, with the addresses at which other hosts can reach it."""

    name: str
    up: bool
    """Whether the interface is up and, if the device reports that, has a carrier."""
    addresses: tuple[tuple[int, str], ...]
    """Family and text of each address, in the kernel's order, without link-local, temporary or deprecated ones."""

    def address(self, family: int) -> str | None:
        return next((text for kind, text in self.addresses if kind == family), None)


def parse_devices(text: str) -> dict[str, Device]:
    """Return the interfaces in the output *text*, by name."""
    # Skip empty objects, which older versions of ip(8) print for interfaces that they do not show.
    return {each["ifname"]: _device(each) for each in json.loads(text) if "ifname" in each}


def _device(shown: Mapping[str, Any]) -> Device:
    usable = (
        address
        for address in shown.get("addr_info", [])
        if address.get("scope") == "global" and not address.get("temporary") and not address.get("deprecated")
    )
    addresses = tuple((_FAMILIES[a["family"]], a["local"]) for a in usable if a.get("family") in _FAMILIES)
    return Device(shown["ifname"], "UP" in shown["flags"] and "NO-CARRIER" not in shown["flags"], addresses)
