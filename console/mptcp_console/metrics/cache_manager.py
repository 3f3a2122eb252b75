"""Reads pages of Squid's cache manager by HTTP, over loopback: to this host alone squid.conf gives them."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from .squid import PAGES

ADDRESS = "http://127.0.0.1:3128"
"""Where conf/squid.conf has Squid listen."""
_MANAGER = "/squid-internal-mgr/"
_MAX_PAGE_BYTES = 1 << 20


def read_pages(address: str, timeout: float) -> dict[str, str]:
    """Return the text of each of ``PAGES`` of the Squid at *address* (``http://HOST:PORT``).

    *timeout*: seconds for each step. Raises OSError, HTTPException where there is no such page or it is refused.
    """
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=timeout)
    texts = {}
    try:
        for page in PAGES:
            connection.request("GET", _MANAGER + page)
            answer = connection.getresponse()
            text = answer.read(_MAX_PAGE_BYTES)
            if answer.status != http.client.OK:
                raise http.client.HTTPException(f"{page}: {answer.status} {answer.reason}")
            texts[page] = text.decode("utf-8", "replace")
    finally:
        connection.close()
    return texts
