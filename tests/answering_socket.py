"""A throttler's status socket without a throttler: one line of JSON comes, one document goes, and a test says which."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def answering(
    path: Path, answer: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """Have *answer* answer at *path*; yield the requests that came, with their times."""
    asked: list[tuple[float, dict[str, Any]]] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines:
                request = json.loads(lines.readline() or b'{"query": "status"}')
                asked.append((time.monotonic(), request))
                with suppress(BrokenPipeError):  # who asked has gone
                    client.sendall(json.dumps(answer(request)).encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        path.unlink()
