# SPDX-License-Identifier: GPL-2.0-or-later
"""Many timed downloads through the proxy, several at the same time, by one process, like a phone's browser.

``agent.fetch FILE`` reads a JSON object from FILE: ``proxy`` and ``target``, each ``[address, port]``; ``kind``;
``at_once``, the number of parallel downloads; ``files``, a list of ``[name, bytes]``; ``timeout``, the maximum seconds
for each file. The kinds are: ``get``, with a connection for each file; ``keepalive``, with *at_once* persistent
connections; ``connect``, with a tunnel for each file with plain HTTP in it.

The program prints a JSON list with one object per file: when it ``began`` (before the first SYN; on a persistent
connection, before the request), when it ``connected``, its ``first`` byte and its ``end``, as time.monotonic() of this
host; ``octets``, the bytes of its body; ``error``, null if the file is complete.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

MPTCP = getattr(socket, "IPPROTO_MPTCP", 262)
BLOCK = 1 << 16
"""Maximum bytes per read."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FetchError(Exception):
    """The proxy sent an unexpected answer."""


class Fetcher:
    """Downloads the files and records the times of each file."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._is_persistent = order["kind"] == "keepalive"
        self._files = list(enumerate(order["files"]))
        self._files.reverse()
        self.done: list[dict[str, Any]] = [{} for _ in self._files]

    async def run(self) -> None:
        await asyncio.gather(*(self._work() for _ in range(min(self._order["at_once"], len(self._files)))))

    async def _work(self) -> None:
        streams: Streams | None = None
        while self._files:
            number, (name, size) = self._files.pop()
            entry = self.done[number]
            entry.update(name=name, began=time.monotonic(), connected=None, first=None, octets=0, error=None)
            try:
                streams = await asyncio.wait_for(self._fetch(streams, name, size, entry), self._order["timeout"])
            except (TimeoutError, OSError, FetchError, asyncio.IncompleteReadError, ValueError) as error:
                entry["error"] = str(error) or type(error).__name__
                streams = None
            entry["end"] = time.monotonic()
        if streams is not None:
            streams[1].close()

    async def _fetch(self, streams: Streams | None, name: str, size: int, entry: dict[str, Any]) -> Streams | None:
        address, port = self._order["target"]
        host = address if port == 80 else f"{address}:{port}"
        tunnelled = self._order["kind"] == "connect"
        reader, writer = streams or await self._connect()
        try:
            entry["connected"] = time.monotonic()
            request_target = f"/{name}" if tunnelled else f"http://{host}/{name}"
            writer.write(f"GET {request_target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            length = await _answer(reader)
            entry["first"] = time.monotonic()
            if length != size:
                raise FetchError(f"{length} bytes were announced instead of {size}")
            while entry["octets"] < size:
                block = await reader.read(min(BLOCK, size - entry["octets"]))
                if not block:
                    raise FetchError(f"ended after {entry['octets']} of {size} bytes")
                entry["octets"] += len(block)
        except BaseException:
            writer.close()
            raise
        if self._is_persistent:
            return reader, writer
        writer.close()
        return None

    async def _connect(self) -> Streams:
        address, port = self._order["proxy"]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # Hide the protocol: the event loop resolves addresses with it, and getaddrinfo(3) does not know MPTCP.
        descriptor = socket.socket(family, socket.SOCK_STREAM, MPTCP).detach()
        connection = socket.socket(family, socket.SOCK_STREAM, 0, descriptor)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except BaseException:
            connection.close()
            raise
        reader, writer = await asyncio.open_connection(sock=connection)
        if self._order["kind"] == "connect":
            goal = ":".join(map(str, self._order["target"]))
            writer.write(f"CONNECT {goal} HTTP/1.1\r\nHost: {goal}\r\n\r\n".encode())
            await _answer(reader)
        return reader, writer


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read the header section of an answer with status 200. Return its Content-Length, or 0 if it has none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    if head[0].split()[1:2] != ["200"]:
        raise FetchError(head[0])
    lengths = [line.partition(":")[2] for line in head[1:] if line.lower().startswith("content-length:")]
    return int(lengths[0]) if lengths else 0


def main(arguments: list[str]) -> int:
    fetcher = Fetcher(json.loads(Path(arguments[0]).read_text()))
    asyncio.run(fetcher.run())
    json.dump(fetcher.done, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
