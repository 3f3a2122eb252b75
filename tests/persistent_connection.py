# SPDX-License-Identifier: GPL-2.0-or-later
"""A persistent connection of a client to the proxy, with methods that request pages, such as the check page."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, Final, Self

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.services import PROXY_PORT, wait_until

CHECK: Final = "http://check.mptcp.internal/"


class Connection:
    """A persistent connection of a client to the proxy. *source*: its source address and port (optional)."""

    def __init__(
        self, node: LiveNode, proxy: str, protocol: int = socket.IPPROTO_MPTCP, source: tuple[str, int] | None = None
    ) -> None:
        self._proxy = proxy
        family = socket.AF_INET6 if ":" in proxy else socket.AF_INET
        with node.entered():
            self._socket = socket.socket(family, socket.SOCK_STREAM, protocol)
        self._socket.settimeout(60)
        if source is not None:
            self._socket.bind(source)
        self._socket.connect((proxy, PROXY_PORT))
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    @property
    def end(self) -> tuple[str, int]:
        """Return the client's address and port."""
        address, port = self._socket.getsockname()[:2]
        return str(address), int(port)

    def get(self, url: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body."""
        host = url.split("/")[2]
        lines = [f"{method} {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        status = int(self._file.readline().split()[1])
        found: dict[str, str] = {}
        while (line := self._file.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        size = 0 if method == "HEAD" else int(found.get("content-length", "0"))
        return status, found, self._file.read(size)

    def send_raw(self, data: bytes) -> bytes:
        """Send *data*, which may not be HTTP, and a last request. Return all bytes from Squid until it closes the
        connection."""
        self._socket.sendall(data + f"GET {CHECK} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        try:
            return self._file.read()
        except ConnectionResetError:
            return b""

    def report(self, *headers: str) -> dict[str, Any]:
        """Return the check page's report about this connection."""
        status, _, body = self.get(CHECK + "check.json", *headers)
        assert status in (200, 503), (status, body)
        found: dict[str, Any] = json.loads(body)
        assert (status == 200) == (found["throttler"] == "answered"), (status, found)
        return found

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Request the check page until *condition* holds for its report. Return this report."""
        reports: list[dict[str, Any]] = []

        def condition_holds() -> bool:
            reports[:] = [self.report()]
            return condition(reports[0])

        try:
            wait_until(condition_holds, what, timeout=60)
        except Exception as error:
            raise AssertionError(f"{error}; last report: {reports}") from None
        return reports[0]
