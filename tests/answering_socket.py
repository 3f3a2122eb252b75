# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake status socket of a throttler. It reads a line of JSON, and sends a document from the test."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from listening_socket import serving


@contextmanager
def answering(
    path: Path, answer: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """Answer each request at *path* with the result of *answer*. Yield the list of requests with their times."""
    requests: list[tuple[float, dict[str, Any]]] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def answer_request(client: socket.socket) -> None:
        with client.makefile("rb") as lines:
            request = json.loads(lines.readline() or b'{"query": "status"}')
            requests.append((time.monotonic(), request))
            client.sendall(json.dumps(answer(request)).encode())

    try:
        with serving(listener, answer_request):
            yield requests
    finally:
        path.unlink()
