# SPDX-License-Identifier: GPL-2.0-or-later
"""Our proxy, with its shipped squid.conf, and Debian's Squid with Debian's configuration.

Ours runs with the installed Squid, and also with the Squid program that MPTCP_BENCH_SQUID names, if it is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mptcp_lab.testbed import TMPFS, Program
from mptcp_lab.testbed.services import SQUID_CONFIG, start_proxy

from .model import PORT, Peer, PeerSetup, answers

# Debian's squid.conf, but without a cache, and with other places for its files. It logs each request.
_STOCK = """\
http_port {port}
acl clients src 10.0.0.0/8 fc00::/7
acl tunnel_ports port 443
http_access deny CONNECT !tunnel_ports
http_access allow clients
http_access deny all
cache deny all
access_log daemon:{directory}/access.log squid
cache_log {directory}/cache.log
coredump_dir {directory}
pid_filename none
netdb_filename none
pinger_enable off
cache_effective_user proxy
shutdown_lifetime 0 seconds
workers {workers}
"""


def _start_ours(setup: PeerSetup, env: Mapping[str, str] | None = None, control: str | None = None) -> Program:
    config = setup.write("squid.conf", f"include {SQUID_CONFIG}\nworkers {setup.workers}\n{setup.more}")
    proxy = start_proxy(setup.host, config, env=env, control=control)
    # The proxy will be killed. Remove its PID file, so that the next proxy does not believe that it still runs.
    (proxy.state / "squid.pid").unlink(missing_ok=True)
    (setup.directory / "cache.log").symlink_to(proxy.logs / "cache.log")
    return proxy.process


def _start_rebuilt(setup: PeerSetup) -> Program:
    # mptcp-proxy runs the first Squid in PATH.
    return _start_ours(setup, {"PATH": f"{Path(_REBUILT).parent}:{os.environ.get('PATH', os.defpath)}"})


def _start_keeping(setup: PeerSetup) -> Program:
    return _start_ours(setup, control="keep")


def _start_stock(setup: PeerSetup) -> Program:
    text = _STOCK.format(port=PORT, directory=setup.directory, workers=setup.workers)
    config = setup.write("squid.conf", text)
    setup.host.run(["chown", "-R", "proxy", str(setup.directory)])
    # Several workers meet in /run. Two Squids on one host would use the same /dev/shm/squid-*.
    mounts = {"/dev/shm": TMPFS, "/run/squid": TMPFS}
    argv = ["squid", "--foreground", "-f", str(config), "-n", "stock"]
    return answers(setup, setup.host.popen(argv, name="squid", mounts=mounts), "Squid")


_REBUILT = os.environ.get("MPTCP_BENCH_SQUID", "")
OURS = Peer("ours", "squid", ("squid",), _start_ours, multipath="own", asked=("squid", "-v"))
KEEPING = Peer("ours-keep", "squid", ("squid",), _start_keeping, multipath="own", asked=("squid", "-v"))
"""Our proxy with the host's congestion control towards clients, instead of BBR."""
REBUILT = Peer(
    "ours-rebuilt",
    "squid, rebuilt by ./run squid",
    (_REBUILT or "the program that MPTCP_BENCH_SQUID is to name",),
    _start_rebuilt,
    multipath="own",
    asked=(_REBUILT, "-v"),
)
"""Our proxy with the Squid that MPTCP_BENCH_SQUID names. ``./run squid`` builds one that writes larger pieces."""
SQUID = Peer("squid", "squid", ("squid",), _start_stock, multipath="", asked=("squid", "-v"))
