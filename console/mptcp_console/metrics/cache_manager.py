# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads pages of Squid's cache manager by HTTP over loopback, because squid.conf allows them only to this host."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from .squid import (
    BY_PROCESS,
    COUNTERS,
    INFO,
    SINGLE_PROCESS,
    SquidPages,
    parse_counters,
    parse_info,
    parse_processes,
)

ADDRESS = "http://127.0.0.1:3128"
"""Squid's listener in conf/squid.conf."""
_MANAGER = "/squid-internal-mgr/"
_MAX_PAGE_BYTES = 1 << 20


def read_pages(address: str, timeout: float) -> SquidPages:
    """Return the figures of the Squid at *address* (``http://HOST:PORT``), read page by page.

    *timeout*: seconds for all pages together, so that Squid is not queried longer than the scraper waits. A process is
    omitted if its page is late, or if the process has just ended. Raises OSError or HTTPException if a page is missing
    or refused for every process, ValueError if a page is not Squid's.
    """
    deadline = time.monotonic() + timeout
    info = _page(address, INFO, deadline)
    # If Squid has only one process, it ignores the number.
    processes = parse_processes(_page(address, BY_PROCESS, deadline)) or [SINGLE_PROCESS]
    counters = {}
    last_error: Exception | None = None
    for number in processes:
        try:
            counters[number] = parse_counters(_page(address, f"{COUNTERS}?processes={number}", deadline))
        except (OSError, http.client.HTTPException, ValueError) as error:
            last_error = error
    if last_error is not None and not counters:
        raise last_error
    return SquidPages(counters, parse_info(info))


def _page(address: str, page: str, deadline: float) -> str:
    """Return the text of *page*. Each page needs a new connection, because a Squid with several processes closes it
    after one page."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=remaining)
    try:
        connection.request("GET", _MANAGER + page)
        answer = connection.getresponse()
        text = answer.read(_MAX_PAGE_BYTES)
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise http.client.HTTPException(f"{page}: {answer.status} {answer.reason}")
    return text.decode("utf-8", "replace")
