# SPDX-License-Identifier: GPL-2.0-or-later
"""Run unmodified OpenVPN between two nodes, over UDP, TCP or MPTCP. TCP and MPTCP may use a proxy.

The ends authenticate each other by certificate fingerprints (``--peer-fingerprint``, from OpenVPN 2.6 on). Data are
neither encrypted nor signed. All other settings are OpenVPN's defaults, including the replay window of 64 packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from .commands import undone
from .node import LiveNode
from .services import mptcp_command, wait_until

PORT: Final = 1194
"""UDP port of both ends."""
TCP_PORT: Final = 443
"""The server's TCP port, to which our proxy allows CONNECT."""
MTU: Final = 1400
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


class OpenVpn(NamedTuple):
    """A running VPN: its inner device, which has the same name at both ends, and its inner addresses."""

    device: str = "vpn0"
    client_address: str = "10.94.0.2"
    server_address: str = "10.94.0.1"


def over_udp(client: LiveNode, server: LiveNode, *, local: str | None = None) -> AbstractContextManager[OpenVpn]:
    """Run a VPN over UDP. *local* is the client's outer address; None means any. Raises TestbedError."""
    vpn = OpenVpn()
    common = f"openvpn --proto udp --lport {PORT}"
    remote = f"--remote {server.service_address()} {PORT}{f' --local {local}' if local else ''}"
    client_line = f"{common} --tls-client --ifconfig {vpn.client_address} {vpn.server_address} {remote}"
    server_line = f"{common} --tls-server --ifconfig {vpn.server_address} {vpn.client_address}"
    return _running(client, server, client_line.split(), server_line.split())


def over_tcp(
    client: LiveNode, server: LiveNode, *, proxy: tuple[str, int] | None = None, multipath: bool = True
) -> AbstractContextManager[OpenVpn]:
    """Run a VPN over TCP, through the HTTP *proxy* (address, port) if any; with *multipath* over MPTCP.

    Raises TestbedError.
    """
    # TCP_NODELAY lets each packet leave at once, as over UDP.
    common = "--socket-flags TCP_NODELAY"
    remote = f"--remote {server.service_address()} {TCP_PORT} --nobind"
    connect = "" if proxy is None else f"--http-proxy {proxy[0]} {proxy[1]}"
    client_argv = f"openvpn --client --proto tcp4-client {remote} {connect} {common}".split()
    # Use --server: in point-to-point mode OpenVPN closes its listening socket when a client has connected, and then the
    # kernel refuses joins.
    pool = "--topology subnet --server 10.94.0.0 255.255.255.0"
    server_argv = f"openvpn --proto tcp4-server --lport {TCP_PORT} {pool} {common}".split()
    if multipath:
        client_argv, server_argv = mptcp_command(client_argv), mptcp_command(server_argv)
    return _running(client, server, client_argv, server_argv)


@contextmanager
def _running(
    client: LiveNode, server: LiveNode, client_argv: Sequence[str], server_argv: Sequence[str]
) -> Iterator[OpenVpn]:
    stem = client.directory / f"openvpn-{client.name}"
    if not Path(f"{stem}-server.fingerprint").exists():
        client.run(["sh", "-ec", _CERTIFICATE, "sh", str(stem)])

    def options(end: str, peer: str) -> list[str]:
        # --reneg-bytes 0: without a cipher, OpenVPN would renegotiate keys after each 64 MB, as with ciphers that have
        # small blocks.
        fingerprint = Path(f"{stem}-{peer}.fingerprint").read_text().strip()
        return (
            f"--dev {OpenVpn().device} --dev-type tun --tun-mtu {MTU} --cert {stem}-{end}.crt --key {stem}-{end}.key "
            f"--peer-fingerprint {fingerprint} --data-ciphers none --auth none --disable-dco --connect-retry 1 "
            "--reneg-bytes 0"
        ).split()

    with ExitStack() as stack:
        processes = []
        for node, argv in (
            (server, [*server_argv, "--dh", "none", *options("server", "client")]),
            (client, [*client_argv, *options("client", "server")]),
        ):
            processes.append(node.popen(argv, name="openvpn"))
            stack.enter_context(undone(processes[-1].stop))
        for process in processes:
            wait_until(lambda: READY in process.output(), "OpenVPN's ends are connected", process=process)  # noqa: B023
        yield OpenVpn()
