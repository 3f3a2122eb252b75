# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses addresses with ports, such as ``192.0.2.1:3128`` and ``[2001:db8::1]:3128``. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from mptcp_common.problems import shown

PROXY_PORT: Final = 3128
"""The proxy's default port, at which the throttler expects the proxy by default (docs/contract.md)."""
_ENDPOINT: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def address_and_port(value: object, *examples: str) -> tuple[str, int]:
    """Return both parts of ``ADDR:PORT`` or ``[ADDR]:PORT``. Raises ValueError, whose text contains *examples*."""
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    try:
        if found is not None and 0 < int(found["port"]) < 65536:
            return str(ip_address(found["v6"] or found["v4"])), int(found["port"])
    except ValueError:
        pass
    examples_text = " or ".join(f'"{each}"' for each in examples)
    raise ValueError(f"{shown(value)} is not an address and port; write {examples_text}")
