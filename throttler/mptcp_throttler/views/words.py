"""How answers write single values for people."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address


@lru_cache(4096)
def address_text(address: bytes) -> str | None:
    """Return a packed address as people write it; None for none."""
    return str(ip_address(address)) if address else None
