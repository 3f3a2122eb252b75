"""Reads pages of Squid's cache manager by HTTP, over loopback: to this host alone squid.conf gives them."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from .squid import (
    BY_PROCESS,
    COUNTERS,
    INFO,
    THE_ONLY_PROCESS,
    SquidPages,
    parse_counters,
    parse_info,
    parse_processes,
)

ADDRESS = "http://127.0.0.1:3128"
"""Where conf/squid.conf has Squid listen."""
_MANAGER = "/squid-internal-mgr/"
_MAX_PAGE_BYTES = 1 << 20


def read_pages(address: str, timeout: float) -> SquidPages:
    """Return what the Squid at *address* (``http://HOST:PORT``) says of itself, asked one page after another.

    *timeout*: seconds for all of them, so that Squid is asked no longer than its answer is waited for. A process whose
    page is not there by then, or that has just ended, is left out. Raises OSError, HTTPException where there is no
    such page or it is refused, of any process, ValueError where it is not Squid's.
    """
    until = time.monotonic() + timeout
    info = _page(address, INFO, until)
    # A Squid with one process says the same whichever number it is asked for.
    processes = parse_processes(_page(address, BY_PROCESS, until)) or [THE_ONLY_PROCESS]
    counters = {}
    trouble: Exception | None = None
    for number in processes:
        try:
            counters[number] = parse_counters(_page(address, f"{COUNTERS}?processes={number}", until))
        except (OSError, http.client.HTTPException, ValueError) as error:
            trouble = error
    if trouble is not None and not counters:
        raise trouble
    return SquidPages(counters, parse_info(info))


def _page(address: str, page: str, until: float) -> str:
    """Return the text of *page*. A connection of its own: with several processes, Squid closes it after each."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=left)
    try:
        connection.request("GET", _MANAGER + page)
        answer = connection.getresponse()
        text = answer.read(_MAX_PAGE_BYTES)
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise http.client.HTTPException(f"{page}: {answer.status} {answer.reason}")
    return text.decode("utf-8", "replace")
