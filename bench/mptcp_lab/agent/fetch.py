# SPDX-License-Identifier: GPL-2.0-or-later
"""Make many downloads through the proxy, several at the same time, like a phone's browser, and measure their times.

``agent.fetch FILE`` reads a JSON object from FILE: ``proxy`` and ``target``, each ``[address, port]``; ``kind``;
``at_once``, the number of parallel downloads; ``files``, a list of ``[name, bytes]``; ``timeout``, the maximum seconds
for each wait for data. The kinds are: ``get``, with a connection for each file; ``keepalive``, with persistent
connections; ``connect``, with a tunnel for each file with plain HTTP in it. The program must run in mptcpize(8), so
that its connections use MPTCP.

The program prints a JSON list with one object per file: when it ``began`` (before the first SYN; on a persistent
connection, before the request) and its ``end``, as time.monotonic() of this host; ``octets``, the bytes of its body;
``error``, null if the file is complete.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import local
from typing import Any


class Fetcher:
    """Downloads files in threads, each of which has at most one connection."""

    def __init__(self, specification: dict[str, Any]) -> None:
        self._specification = specification
        self._thread = local()

    def run(self) -> list[dict[str, Any]]:
        """Download all files and return the object of each file."""
        with ThreadPoolExecutor(self._specification["at_once"]) as threads:
            return list(threads.map(lambda file: self._download(*file), self._specification["files"]))

    def _download(self, name: str, size: int) -> dict[str, Any]:
        began, octets, error = time.monotonic(), 0, None
        try:
            octets = len(self._fetch(name))
            if octets != size:
                error = f"{octets} bytes were received instead of {size}"
        except (OSError, HTTPException) as failed:
            error = str(failed) or type(failed).__name__
            self._thread.connection = None
        return {"name": name, "began": began, "end": time.monotonic(), "octets": octets, "error": error}

    def _fetch(self, name: str) -> bytes:
        kind, (address, port), proxy = (
            self._specification["kind"],
            self._specification["target"],
            self._specification["proxy"],
        )
        connection: HTTPConnection | None = getattr(self._thread, "connection", None)
        if connection is None:
            connection = HTTPConnection(proxy[0], proxy[1], timeout=self._specification["timeout"])
            if kind == "connect":
                connection.set_tunnel(address, port)
        try:
            connection.request("GET", f"/{name}" if kind == "connect" else f"http://{address}:{port}/{name}")
            response = connection.getresponse()
            body = response.read()
        except BaseException:
            connection.close()
            raise
        if response.status != 200:
            raise HTTPException(f"status {response.status} {response.reason}")
        if kind == "keepalive":
            self._thread.connection = connection
        else:
            connection.close()
        return body


def main(arguments: list[str]) -> int:
    json.dump(Fetcher(json.loads(Path(arguments[0]).read_text())).run(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
