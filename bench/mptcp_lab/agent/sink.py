# SPDX-License-Identifier: GPL-2.0-or-later
"""A web server that discards uploads: ``python -m mptcp_lab.agent.sink PORT``.

It answers each PUT with 200 when the whole body has arrived. Apache is not used, because it would need WebDAV for PUT.
"""

from __future__ import annotations

import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BLOCK = 1 << 20


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        missing = int(self.headers.get("Content-Length", 0))
        while missing > 0 and (block := self.rfile.read1(min(missing, _BLOCK))):
            missing -= len(block)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Do not write a log."""


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main() -> None:
    """Serve until this process is killed."""
    _Server(("::", int(sys.argv[1])), _Sink).serve_forever()


if __name__ == "__main__":
    main()
