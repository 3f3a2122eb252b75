# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the proxy's kernel tests: a client that downloads, and queries of Squid's processes and sockets."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mptcp_lab.testbed import LiveNode, Program
from mptcp_lab.testbed.services import SQUID_CONFIG, Proxy, mptcp_command, wait_until
from mptcp_proxy.process import children, command
from mptcp_proxy.squid import find_squid

LIBRARIES = ("squid_turns.so", "mptcp_listen.so")
SYN_FILTER = "tcp[tcpflags] & tcp-syn != 0 or (ip6 and ip6[6] = 6 and ip6[53] & 2 != 0)"
MPTCP_OPTION = 30
"""TCP option kind of MPTCP (RFC 8684, 3)."""
WITH_RETRIES = ("--retry", "9", "--retry-all-errors", "--retry-delay", "1")
"""Options of curl: while Squid reloads, the kernel refuses new connections and resets those that are not yet
accepted."""


@dataclass(frozen=True)
class DownloadResult:
    """Result of a client's download."""

    status: int
    """Status of the answer, or of the proxy's answer to CONNECT if that was refused."""
    sha256: str
    size: int


def skip_in_private_checkout() -> None:
    """Skip the test if other users cannot enter the checkout, for example in a private home directory."""
    if not all(directory.stat().st_mode & 0o001 for directory in Path(sys.executable).absolute().parents):
        pytest.skip(f"NOT TESTED: other users may not enter {Path(sys.executable).parent}")


def skip_if_squid_needs_no_library() -> None:
    """Skip the test if the first Squid in PATH opens Multipath TCP listeners without the project's library."""
    found = find_squid()
    if found is not None and found.has_mptcp_option:
        pytest.skip("NOT TESTED: this Squid needs no library for its listeners, see test_proxy_own_option.py")


def curl_command(url: str, proxy: str, *, mptcp: bool, tunnel: bool, options: Sequence[str]) -> list[str]:
    # -g: brackets belong to IPv6 addresses. --noproxy: otherwise curl contacts loopback addresses directly.
    command = ["curl", "-sSg", "--noproxy", "", "-x", proxy, *(["-p"] if tunnel else []), *options, url]
    return mptcp_command(command) if mptcp else command


def fetch(
    client: LiveNode,
    url: str,
    proxy: str,
    *,
    mptcp: bool = False,
    tunnel: bool = False,
    options: Sequence[str] = (),
    timeout: int = 60,
) -> DownloadResult:
    """Download *url* through *proxy*, with CONNECT if *tunnel*, within *timeout* seconds."""
    with tempfile.NamedTemporaryFile(dir=client.directory) as file:
        all_options = ["-m", str(timeout), "-o", file.name, "-w", "%{http_connect} %{http_code}", *options]
        command = curl_command(url, proxy, mptcp=mptcp, tunnel=tunnel, options=all_options)
        answer = client.run(command, check=False, timeout=timeout + 10)
        connect, code = (int(field) for field in answer.stdout.split())
        data = Path(file.name).read_bytes()
    return DownloadResult(connect if tunnel and connect != 200 else code, hashlib.sha256(data).hexdigest(), len(data))


def write_configuration(node: LiveNode, *statements: str, name: str = "squid.conf") -> Path:
    """Write a configuration: the shipped one and *statements*; Squid does not wait at shutdown."""
    path = node.directory / f"{node.name}-{name}"
    path.write_text("\n".join([f"include {SQUID_CONFIG}", *statements, "shutdown_lifetime 0 seconds", ""]))
    return path


def squid_pid(process: Program) -> int:
    """Return the PID of Squid's main process. ``mptcp-proxy run`` may also have a short-lived Squid for checks."""
    (pid,) = (pid for pid in children(process.pid) if b"--foreground" in command(pid))
    return pid


def worker_pids(process: Program) -> tuple[int, ...]:
    """Return the PIDs of Squid's workers, and of the coordinator if there are several."""
    return children(squid_pid(process))


def wait_for_workers(proxy: Proxy) -> tuple[int, ...]:
    """Wait until all workers listen, then return their PIDs. Squid forks them one after the other."""

    def all_listen() -> bool:
        if not (reloads := proxy.state / "reloads.json").exists():
            return False
        serving = json.loads(reloads.read_text())["serving"]
        # Until all listen, the text ends in, for example, "(2 of 4 workers)".
        return serving != "" and " workers)" not in serving

    wait_until(all_listen, "all workers listen", process=proxy.process)
    return worker_pids(proxy.process)


def worker_pids_by_name(process: Program) -> dict[str, int]:
    """Return the PIDs of the workers by process name, without those that have just ended."""
    return {name.decode(): pid for pid in worker_pids(process) if (name := command(pid).partition(b"\0")[0])}


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)


def libraries_of(pid: int) -> list[str]:
    """Return the names of the preload libraries that the process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in LIBRARIES if name in maps]


def has_libraries(pid: int) -> bool:
    return libraries_of(pid) == list(LIBRARIES)


def mptcp_listeners(node: LiveNode) -> set[str]:
    """Return ADDRESS:PORT of the listening MPTCP sockets."""
    return {line.split()[3] for line in node.run(["ss", "-HMln"]).stdout.splitlines()}


def tcp_listeners(node: LiveNode) -> set[str]:
    """Return ADDRESS:PORT of all listening TCP sockets, including those that belong to MPTCP sockets."""
    return {line.split()[3] for line in node.run(["ss", "-Htln"]).stdout.splitlines()}


def count_subflows(node: LiveNode, port: int) -> int:
    """Return the number of established TCP connections to *port* that are MPTCP subflows."""
    text = node.run(["ss", "-Htinm", "state", "established", "dport", "=", f":{port}"]).stdout
    return len(re.findall(r"tcp-ulp-mptcp", text))


def count_connections(node: LiveNode, port: int) -> int:
    """Return the number of established MPTCP connections to *port*."""
    lines = node.run(["ss", "-HMn", "state", "established", "dport", "=", f":{port}"]).stdout
    return len(lines.splitlines())


@contextmanager
def captured_syns(node: LiveNode, device: str, min_count: int) -> Iterator[list[tuple[int, set[int]]]]:
    """Capture segments with SYN; when the block ends, wait until at least *min_count* were captured.

    Then fill the list with (destination port, kinds of TCP options) of each SYN without ACK.
    """
    from scapy.layers.inet import TCP
    from scapy.utils import rdpcap

    path = node.directory / f"{node.name}-{device}.pcap"
    found: list[tuple[int, set[int]]] = []
    options = ["-Z", "root", "--immediate-mode", "-U", "-n", "-i", device, "-w", str(path)]
    tcpdump = node.popen(["tcpdump", *options, SYN_FILTER])
    wait_until(lambda: "listening on" in tcpdump.output(), "tcpdump listens", process=tcpdump)
    yield found
    wait_until(lambda: len(rdpcap(str(path))) >= min_count, f"{min_count} segments captured", process=tcpdump)
    tcpdump.signal(signal.SIGINT)
    tcpdump.wait(60)
    for packet in rdpcap(str(path)):
        segment = packet[TCP]
        if not segment.flags.A:
            found.append((segment.dport, set(option_kinds(bytes(segment)))))


def option_kinds(segment: bytes) -> Iterator[int]:
    """Yield the kinds of the options of a TCP segment (RFC 9293, 3.1)."""
    end, position = (segment[12] >> 4) * 4, 20
    while position < end and segment[position] != 0:
        yield segment[position]
        position += 1 if segment[position] == 1 else segment[position + 1]
