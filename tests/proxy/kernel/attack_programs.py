# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs for the hosts of the attack tests, which use only the standard library. The first argument selects one."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import socket
import struct
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

MAX_PARALLEL = 40
ANSWER_SECONDS, EXTRA_SECONDS = 60.0, 0.1
"""Seconds to wait for an answer, and then for additional bytes."""
SILENCE_SECONDS = 8.0
"""Seconds to wait if there may be no answer, because Squid rightly waits for the rest of an unfinished request."""
A, AAAA = 1, 28
"""Types of DNS records."""
NO_ERROR, NO_SUCH_NAME = 0x8180, 0x8183
"""Flags of an answer (RFC 1035, 4.1.1)."""


def name_server(table: str) -> None:
    """Answer A and AAAA queries from a table. If a name has several lists of addresses, each query gets the next
    list."""
    lists_by_name = read_json(table)
    query_counts: dict[tuple[str, int], int] = {}
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("", 53))
    while True:
        query, client = server.recvfrom(2048)
        labels, offset = [], 12
        while query[offset]:
            labels.append(query[offset + 1 : offset + 1 + query[offset]].decode("latin-1").lower())
            offset += query[offset] + 1
        name, kind = ".".join(labels), struct.unpack("!H", query[offset + 1 : offset + 3])[0]
        address_lists = lists_by_name.get(name)
        addresses: list[bytes] = []
        if address_lists is not None:
            earlier_count = query_counts.get((name, kind), 0)
            query_counts[name, kind] = earlier_count + 1
            for address in address_lists[min(earlier_count, len(address_lists) - 1)]:
                is_ipv6 = ":" in address
                if kind == (AAAA if is_ipv6 else A):
                    addresses.append(socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, address))
        answers = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(each)) + each for each in addresses)
        header = struct.pack("!HHHHH", NO_SUCH_NAME if address_lists is None else NO_ERROR, 1, len(addresses), 0, 0)
        server.sendto(query[:2] + header + query[12 : offset + 5] + answers, client)


def read_json(path: str) -> Any:
    return json.loads(Path(path).read_text())


class Record:
    """A file of received data. Each chunk is written immediately."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115  the file stays open

    def add(self, name: str, data: bytes) -> None:
        self._file.write(json.dumps([name, base64.b64encode(data).decode()]) + "\n")


async def listen(handle: Any, *ports: str) -> None:
    for port in ports:
        await asyncio.start_server(handle, None, int(port), reuse_address=True, backlog=500)
    await asyncio.Event().wait()


CANARY = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ncanary"


async def echo(record: str, *ports: str) -> None:
    """Record each connection and echo its data. Answer an HTTP request with a valid response."""
    record_file = Record(record)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local_address = str(writer.get_extra_info("sockname"))
        record_file.add(local_address, b"")
        while data := await reader.read(65536):
            record_file.add(local_address, data)
            writer.write(CANARY if b" HTTP/1." in data else data)
        writer.close()

    await listen(handle, *ports)


async def web(answers: str, record: str, port: str) -> None:
    """Record and answer each request. If its path has a special answer, send that and close the connection."""
    special_answers = {name: base64.b64decode(each) for name, each in read_json(answers).items()}
    record_file, numbers = Record(record), itertools.count()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, data = str(next(numbers)), b""
        while True:
            while (size := request_size(data)) is None:
                chunk = await reader.read(65536)
                if not chunk:
                    writer.close()
                    return
                record_file.add(name, chunk)
                data += chunk
            target = data.split(b" ", 2)[1].decode("latin-1").lstrip("/").partition("?")[0].partition("/")[0]
            data = data[size:]
            # The path may have a suffix that distinguishes rows with the same answer.
            candidates = (target, target.rpartition("-to-")[0], "-".join(target.split("-")[:2]))
            answer_name = next((each for each in candidates if each in special_answers), "")
            if target.startswith(("answer-", "malformed-")):
                writer.write(special_answers[answer_name])
                await writer.drain()
                # Half-close, then continue to read: Squid may already have sent the next request. If the connection
                # were closed, the kernel would answer that request with RST, and Squid would send 502
                # (docs/squid-versions.md).
                writer.write_eof()
                while await reader.read(65536):
                    pass
                writer.close()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await listen(handle, port)


async def relay(port: str, origin: str, origin_port: str) -> None:
    """Forward all bytes without parsing or repairing them; only remove the origin's name from URLs."""
    name = f"http://{origin}:{origin_port}/".encode()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                writer.write(data.replace(name, b"/"))
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin_reader, origin_writer = await asyncio.open_connection(origin, int(origin_port))
        await asyncio.gather(copy(reader, origin_writer), copy(origin_reader, writer))
        writer.close()
        origin_writer.close()

    await listen(handle, port)


def request_size(data: bytes) -> int | None:
    """Return the size of the first request in *data*, as a lenient server reads it; None if it is incomplete."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    body_offset = len(head) + 4
    if re.search(rb"(?i)\r\ntransfer-encoding:[^\r]*chunked", head):
        last_chunk = re.search(rb"(?:^|\r\n)0+[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n", body)
        return None if last_chunk is None else body_offset + last_chunk.end()
    length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
    size = int(length[1]) if length else 0
    return None if len(body) < size else body_offset + size


def statuses_in(data: bytes, heads: list[bool], closed: bool) -> list[int]:
    """Return the statuses of the complete final answers. *heads* contains whether each known request is a HEAD."""
    statuses: list[int] = []
    while match := re.match(rb"HTTP/\d\.\d (\d+)[^\n]*\n", data):
        status = int(match[1])
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            break
        if 100 <= status < 200 and status != 101:
            data = rest
            continue
        chunked = re.search(rb"(?i)\r\ntransfer-encoding:[^\r]*chunked", head)
        length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
        if status in (204, 304, 101) or (len(statuses) < len(heads) and heads[len(statuses)]):
            data = rest
        elif chunked:
            last_chunk = re.search(rb"(?:^|\r\n)0\r\n\r\n", rest)
            if last_chunk is None and not closed:
                break
            data = rest[last_chunk.end() :] if last_chunk else b""
        elif length:
            if len(rest) < int(length[1]) and not closed:
                break
            data = rest[int(length[1]) :]
        elif closed:
            data = b""
        else:
            break
        statuses.append(status)
    return statuses


async def send_row(
    row: dict[str, Any], address: str, port: str, limit: asyncio.Semaphore
) -> tuple[str, dict[str, Any]]:
    """Send a row on a new connection. Return its id, and the answers."""
    sent = base64.b64decode(row["data"])
    tunnel, heads = sent.startswith(b"CONNECT"), [sent.startswith(b"HEAD")]
    expected, data, closed = base64.b64decode(row["has"]), b"", False
    async with limit:
        reader, writer = await asyncio.open_connection(address, int(port))
        try:
            writer.write(sent)
            if row["ends"]:
                writer.write_eof()
            loop = asyncio.get_running_loop()
            deadline = loop.time() + ANSWER_SECONDS
            while not closed and loop.time() < deadline:
                has_all_answers = len(statuses_in(data, heads, False)) >= row["answers"] or (
                    tunnel and b"\r\n\r\n" in data and data.startswith(b"HTTP/1.1 200") and expected in data
                )
                timeout = (
                    EXTRA_SECONDS
                    if has_all_answers
                    else min(
                        deadline - loop.time(),
                        SILENCE_SECONDS if row["may_get_no_answer"] and not data else ANSWER_SECONDS,
                    )
                )
                try:
                    chunk = await asyncio.wait_for(reader.read(262144), max(timeout, 0.01))
                except TimeoutError:
                    break
                data += chunk
                closed = not chunk
        except ConnectionError:
            closed = True
        writer.close()
    statuses = statuses_in(data, heads, closed)
    if tunnel and data.startswith(b"HTTP/1.1 200"):
        statuses = [200]
    return row["id"], {"statuses": statuses, "raw": base64.b64encode(data[:20000]).decode()}


async def send_rows(rows: str, address: str, port: str) -> None:
    """Send the rows and print the answers."""
    limit = asyncio.Semaphore(MAX_PARALLEL)
    answers = await asyncio.gather(*(send_row(row, address, port, limit) for row in read_json(rows)))
    print(json.dumps(dict(answers)))


if __name__ == "__main__":
    if sys.argv[1] == "name-server":
        name_server(*sys.argv[2:])
    else:
        programs: dict[str, Callable[..., Coroutine[Any, Any, None]]]
        programs = {"echo": echo, "web": web, "relay": relay, "send-rows": send_rows}
        asyncio.run(programs[sys.argv[1]](*sys.argv[2:]))
