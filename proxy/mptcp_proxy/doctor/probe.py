"""Tries kernel features out. To be run in a network namespace that goes away with the process; see ``gather``.

Prints one JSON object: feature to null where it works, else to the reason. Every feature is tried by the means by
which it will be used: pyroute2 for ipset, iptables-legacy for the rule, libnftables for nftables. What else the
throttler needs is tried by ``mptcp_common.throttler_trial``.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

from pyroute2.ipset import IPSet

from mptcp_common.throttler_needs import NFTABLES, loads
from mptcp_common.throttler_trial import TRIALS, attempt

from ..places import Role

_SOCKET = {Role.PROXY: "listener", Role.RELAY: "connection"}
_SETS = {socket.AF_INET: "mpxprobe4", socket.AF_INET6: "mpxprobe6"}
_NFT = """
table inet mpxprobe {
    map priorities {
        type ipv4_addr . inet_service . ipv4_addr . inet_service : classid
    }
    map marks {
        type ipv6_addr . inet_service . ipv6_addr . inet_service : mark
    }
    chain postrouting {
        type filter hook postrouting priority mangle
        meta priority set ip daddr . tcp dport . ip saddr . tcp sport map @priorities
        meta mark set ip6 daddr . tcp dport . ip6 saddr . tcp sport map @marks
    }
}
"""
_REPORT_PROTOCOL = {
    Role.PROXY: """
import socket, sys
listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
listener.bind(("::", 3128))
print(listener.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
""",
    # That nobody is there to be connected to does not matter.
    Role.RELAY: """
import socket, sys
connection = socket.socket()
connection.connect_ex(("127.0.0.1", 3128))
print(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
""",
}
_VARIABLE = {Role.PROXY: ("MPTCP_LISTEN_PORTS", "3128"), Role.RELAY: ("MPTCP_PARENTS", "127.0.0.1:3128")}


def _ipset() -> None:
    for family, name in _SETS.items():
        with IPSet() as ipset:
            ipset.create(name, stype="hash:ip,port,ip", family=family, counters=True, skbinfo=True)


def _iptables() -> None:
    for program, family in (("iptables-legacy", socket.AF_INET), ("ip6tables-legacy", socket.AF_INET6)):
        match = ["-t", "mangle", "-A", "POSTROUTING", "-p", "tcp"]
        target = ["-j", "SET", "--map-set", _SETS[family], "dst,dst,src", "--map-mark", "--map-prio"]
        answer = subprocess.run(
            [program, "-w", "5", *match, *target], capture_output=True, text=True, timeout=30, check=False
        )
        if answer.returncode != 0:
            raise RuntimeError(answer.stderr.strip().splitlines()[0] if answer.stderr else f"{program} failed")


def _nftables() -> None:
    library = ctypes.CDLL(next(name for name in NFTABLES if loads(name)))
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_error(context)
    if library.nft_run_cmd_from_buffer(context, _NFT.encode()) != 0:
        text: bytes = library.nft_ctx_get_error_buffer(context) or b"unknown error"
        raise RuntimeError(text.decode(errors="replace").strip().splitlines()[0])


def _mptcp() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()


def _shim(library: str, role: Role) -> None:
    with tempfile.TemporaryDirectory(prefix="mptcp-proxy-probe-") as directory:
        # As "run" does: LD_PRELOAD cannot hold every name.
        copy = shutil.copy(library, directory)
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _REPORT_PROTOCOL[role]],
            env={**os.environ, "LD_PRELOAD": copy, **dict([_VARIABLE[role]])},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    if answer.stdout.strip() != str(socket.IPPROTO_MPTCP):
        raise RuntimeError(answer.stderr.strip() or f"the {_SOCKET[role]} stayed plain TCP")


def main() -> None:
    tries: dict[str, Callable[[], None]] = {
        "mptcp": _mptcp,
    }
    role = Role(sys.argv[1])
    if role is Role.PROXY:
        tries |= {**TRIALS, "ipset": _ipset, "iptables": _iptables, "nftables": _nftables}
    if len(sys.argv) > 2:
        tries["shim"] = lambda: _shim(sys.argv[2], role)
    print(json.dumps(attempt(tries)))


if __name__ == "__main__":
    main()
