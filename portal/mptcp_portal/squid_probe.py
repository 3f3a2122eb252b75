# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes Squid detect that the portal is up, so that no client's request gets 503.

If Squid could not connect to the portal, it considers the portal dead. It probes a dead portal, at most once a second,
only when it checks whether the portal is up (neighborUp and peerProbeConnect in src/neighbors.cc). A client's request
causes such a check, but fails before the probe succeeds. The cache manager's page of parents causes a check in each
worker, so this module requests that page.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Final

from mptcp_portal.settings import ListenAddress

_PAGE: Final = "/squid-internal-mgr/server_list"
_TIMEOUT_SECONDS: Final = 3.0
"""Time limit for all attempts; Squid probes once a second."""
_RETRY_SECONDS: Final = 0.3
_ATTEMPTS: Final = 10
_MAX_BYTES: Final = 1 << 20


async def make_squid_probe(port: int, portal: ListenAddress, seconds: float = _TIMEOUT_SECONDS) -> None:
    """Request the page of parents from the Squid on *port* of this host until *portal* is up for all its workers.

    A failure does no harm: clients' requests also make Squid probe.
    """
    with suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
        async with asyncio.timeout(seconds):
            for _ in range(_ATTEMPTS):
                if not is_dead(await _parents(port), portal):
                    break
                await asyncio.sleep(_RETRY_SECONDS)


async def _parents(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {_PAGE} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        text = bytearray()
        while len(text) < _MAX_BYTES and (data := await reader.read(1 << 16)):
            text += data
        return text.decode("utf-8", "replace")
    finally:
        writer.close()


def is_dead(parents: str, portal: ListenAddress) -> bool:
    """Return whether *parents*, Squid's page, lists *portal* as not up for some worker."""
    address = re.escape(f"{portal.address}/{portal.port}/")
    found = re.findall(rf"^Host +: {address}.*?^Status +: (\w+)", parents, re.MULTILINE | re.DOTALL)
    return any(status != "Up" for status in found)
