# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the client of many files, which the experiment ``pages`` uses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mptcp_lab.agent import fetch


@pytest.mark.parametrize(
    ("kind", "octets", "error"),
    [("get", 300, None), ("keepalive", 300, None), ("get", 299, "ended after 299 of 300 bytes")],
)
def test_client_of_many_files_reports_complete_and_incomplete_files(
    kind: str, octets: int, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Use plain TCP, so that no kernel with MPTCP is needed.
    monkeypatch.setattr(fetch, "MPTCP", 0)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"x" * octets)
            if octets < 300:
                break
        writer.close()

    async def download() -> list[dict[str, Any]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        order = {"proxy": ["127.0.0.1", port], "target": ["10.77.9.2", 80], "kind": kind, "at_once": 2, "timeout": 5}
        fetcher = fetch.Fetcher({**order, "files": [["300", 300]] * 6})
        await fetcher.run()
        server.close()
        return fetcher.done

    done = asyncio.run(download())
    assert [each["error"] for each in done] == [error] * 6
    assert connections == (2 if kind == "keepalive" else 6)
