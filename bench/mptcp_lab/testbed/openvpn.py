# SPDX-License-Identifier: GPL-2.0-or-later
"""Unmodified OpenVPN between two nodes: over UDP or TCP; TCP optionally by MPTCP and through a proxy.

The ends authenticate each other by certificate fingerprints (``--peer-fingerprint``, from OpenVPN 2.6 on). Data are
neither encrypted nor signed, because the cost of that is not compared. Everything else is OpenVPN's default, including
the replay window of 64 packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .commands import undone
from .node import LiveNode
from .process import Process
from .services import mptcp_command, wait_until

MTU = 1400
"""MTU of the inner device."""
READY = "Initialization Sequence Completed"
_CERTIFICATE = """\
umask 077
for end in client server; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=$end \
        -keyout $1-$end.key -out $1-$end.crt 2>&1
    openssl x509 -in $1-$end.crt -noout -fingerprint -sha256 | cut -d= -f2 >$1-$end.fingerprint
done
"""


@dataclass(frozen=True, slots=True)
class OpenVpn:
    """Two OpenVPN processes that run: client and server of one VPN."""

    number: int
    client: Process
    server: Process

    @property
    def device(self) -> str:
        """Name of the inner device, which is the same at both ends."""
        return device_of(self.number)

    @property
    def client_address(self) -> str:
        """Address of the inner device at the client."""
        return f"10.94.{self.number}.2"

    @property
    def server_address(self) -> str:
        """Address of the inner device at the server."""
        return f"10.94.{self.number}.1"

    def wait(self) -> None:
        """Wait until both ends have reached each other. Raises TestbedError."""
        for process in (self.client, self.server):
            wait_until(lambda: READY in process.output(), "OpenVPN's ends reach each other", process=process)  # noqa: B023


def device_of(number: int) -> str:
    """Return the name of the inner device of pair *number*."""
    return f"vpn{number}"


@contextmanager
def over_udp(
    client: LiveNode,
    server: LiveNode,
    remote: str,
    *,
    number: int = 0,
    port: int = 1194,
    local: str | None = None,
    wait: bool = True,
) -> Iterator[OpenVpn]:
    """Run a pair over UDP, both ends on *port*. *remote* is the server's address, *local* the client's, None for any.

    *number*, 0 to 255, distinguishes pairs between the same nodes. Their ports must differ, too. Without *wait*, the
    pair may not be connected yet. Raises TestbedError.
    """
    more = [] if local is None else ["--local", local]
    first, second = f"10.94.{number}.1", f"10.94.{number}.2"
    common = ["openvpn", "--proto", "udp", "--lport", str(port)]
    with _pair(
        client,
        server,
        number,
        [*common, "--tls-client", "--ifconfig", second, first, "--remote", remote, str(port), *more],
        [*common, "--tls-server", "--ifconfig", first, second],
        wait,
    ) as pair:
        yield pair


@contextmanager
def over_tcp(
    client: LiveNode,
    server: LiveNode,
    remote: str,
    *,
    number: int = 0,
    port: int = 443,
    proxy: tuple[str, int] | None = None,
    multipath: bool = True,
    wait: bool = True,
) -> Iterator[OpenVpn]:
    """Run a pair over TCP. *remote* and *port* are the server's.

    *proxy* is address and port of an HTTP proxy through which the client reaches the server by CONNECT; our proxy
    allows port 443. With *multipath*, both ends use MPTCP, by mptcpize(8). Without *wait*, the pair may not be
    connected yet. Raises TestbedError.
    """
    by = [] if proxy is None else ["--http-proxy", proxy[0], str(proxy[1])]
    # TCP_NODELAY lets each packet leave at once, as over UDP.
    common = ["--socket-flags", "TCP_NODELAY"]
    client_argv = ["openvpn", "--client", "--proto", "tcp4-client", "--remote", remote, str(port), "--nobind", *by]
    # Use --server: in point-to-point mode OpenVPN closes its listening socket when a client has connected, and then the
    # kernel refuses joins.
    pool = ["--topology", "subnet", "--server", f"10.94.{number}.0", "255.255.255.0"]
    server_argv = ["openvpn", "--proto", "tcp4-server", "--lport", str(port), *pool]
    client_argv, server_argv = [*client_argv, *common], [*server_argv, *common]
    if multipath:
        client_argv, server_argv = mptcp_command(client_argv), mptcp_command(server_argv)
    with _pair(client, server, number, client_argv, server_argv, wait) as pair:
        yield pair


@contextmanager
def _pair(
    client: LiveNode, server: LiveNode, number: int, client_argv: Sequence[str], server_argv: Sequence[str], wait: bool
) -> Iterator[OpenVpn]:
    stem = client.directory / f"openvpn-{client.name}"
    if not stem.with_name(f"{stem.name}-server.fingerprint").exists():
        client.run(["sh", "-ec", _CERTIFICATE, "sh", str(stem)])
    there_argv = [*server_argv, "--dh", "none", *_common(stem, "server", "client", number)]
    here_argv = [*client_argv, *_common(stem, "client", "server", number)]
    there = server.popen(there_argv, name="openvpn")
    with undone(there.stop):
        here = client.popen(here_argv, name="openvpn")
        with undone(here.stop):
            pair = OpenVpn(number, here, there)
            if wait:
                pair.wait()
            yield pair


def _common(stem: Path, end: str, other: str, number: int) -> list[str]:
    def file(of: str, kind: str) -> Path:
        return stem.with_name(f"{stem.name}-{of}.{kind}")

    fingerprint = file(other, "fingerprint").read_text().strip()
    # --reneg-bytes 0: without a cipher, OpenVPN would renegotiate keys after each 64 MB, as for ciphers with small
    # blocks.
    return [
        "--dev", device_of(number), "--dev-type", "tun", "--tun-mtu", str(MTU),
        "--cert", str(file(end, "crt")), "--key", str(file(end, "key")), "--peer-fingerprint", fingerprint,
    "--data-ciphers", "none", "--auth", "none", "--disable-dco", "--connect-retry", "1", "--reneg-bytes", "0",
    ]  # fmt: skip
