"""What the portal's kernel tests share: Squid as shipped, a throttler, the portal without privileges, and a client."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Proxy,
    Throttler,
    accepts,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

CHECK = "http://check.mptcp.internal/"
CHECK_PORT, PAGE_PORT, CAPTIVE_PORT = 3180, 3181, 3182
IPPROTO_MPTCP = 262
NOBODY = ["setpriv", "--reuid=65534", "--regid=0", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
"""As the unit has it: nobody, in the group of the status socket (here root's), without capabilities."""
PATHS = """\
version: 1
paths:
  Wi-Fi: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  LTE: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""
UNCAPPED = PATHS + "rules: []\n"
LTE_CAPPED = PATHS + "rules:\n  - {name: evening, paths: [LTE], throttle: {rate: 5 Mbit/s}}\n"
VOLUME = """\
rules:
  - name: month
    budget: {period: month, per: client, count: both, steps: [{after: %s, throttle: {rate: 8 Mbit/s}}]}
"""
PORTAL = """\
status_socket: {socket}
proxy: {{address: {address}, name: Proxy at home}}
onboarding:
  listen: {address}:3181
  profile: {{wifi: Home, apn: internet}}
captive_portal: {{listen: "{address}:3182", behind: [{address}/32]}}
"""


@dataclass
class PortalSite:
    """A testbed with a proxy, and a throttler and a portal that are started when they are wanted."""

    testbed: Testbed
    proxy: Proxy
    policy: Path
    throttler_config: Path
    portal: Process | None = field(default=None, init=False)

    @classmethod
    def on(cls, testbed: Testbed) -> Self:
        node = testbed["proxy"]
        # The portal's user has to get at the status socket.
        testbed.directory.chmod(0o755)
        policy = testbed.directory / "policy.yaml"
        policy.write_text(UNCAPPED)
        settings = {"ledger": str(testbed.directory / "ledger.sqlite")}
        return cls(testbed, start_proxy(node), policy, write_throttler_config(node, policy, settings=settings))

    @property
    def node(self) -> LiveNode:
        return self.testbed["proxy"]

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def status_socket(self) -> Path:
        return self.testbed.directory / "proxy-throttler-run" / "status.sock"

    def start_portal(self) -> Process:
        text = PORTAL.format(socket=self.status_socket, address=self.node.service_address())
        config = self.node.write("portal.yaml", text)
        self.portal = self.node.popen([*NOBODY, self.node.program("mptcp-portal"), "run", "--config", str(config)])
        wait_until(
            lambda: accepts(self.node, "127.0.0.1", CHECK_PORT), "the portal answers", process=self.portal, timeout=60
        )
        return self.portal

    def start_throttler(self, policy: str = UNCAPPED) -> Throttler:
        self.policy.write_text(policy)
        throttler = start_throttler(self.node, self.throttler_config)
        self.status_socket.parent.chmod(0o755)
        return throttler

    @contextmanager
    def throttled(self, policy: str = UNCAPPED) -> Iterator[Throttler]:
        """Have a throttler for a while."""
        throttler = self.start_throttler(policy)
        try:
            yield throttler
        finally:
            throttler.process.signal(signal.SIGTERM)
            throttler.process.wait(60)

    def reload(self, throttler: Throttler, policy: str) -> None:
        self.policy.write_text(policy)
        throttler.process.signal(signal.SIGHUP)


class Connection:
    """One kept connection of a client to the proxy, by which it asks for pages."""

    def __init__(self, node: LiveNode, proxy: str, protocol: int = IPPROTO_MPTCP) -> None:
        self._proxy = proxy
        family = socket.AF_INET6 if ":" in proxy else socket.AF_INET
        with node.entered():
            self._socket = socket.socket(family, socket.SOCK_STREAM, protocol)
        self._socket.settimeout(60)
        self._socket.connect((proxy, PROXY_PORT))
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    @property
    def end(self) -> tuple[str, int]:
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

    def said_to(self, data: bytes) -> bytes:
        """Send *data*, whatever they are, and a last request; return all that comes until Squid closes."""
        self._socket.sendall(data + f"GET {CHECK} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        try:
            return self._file.read()
        except ConnectionResetError:
            return b""

    def look(self, *headers: str) -> dict[str, Any]:
        """Return what the check page says of this connection."""
        status, _, body = self.get(CHECK + "check.json", *headers)
        assert status == 200, (status, body)
        found: dict[str, Any] = json.loads(body)
        return found

    def until(self, true: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Ask until what the page says is *true*, and return it."""
        last: list[dict[str, Any]] = []

        def is_so() -> bool:
            last[:] = [self.look()]
            return true(last[0])

        try:
            wait_until(is_so, what, timeout=60)
        except Exception as error:
            raise AssertionError(f"{error}; last: {last}") from None
        return last[0]
