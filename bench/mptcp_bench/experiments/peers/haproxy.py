# SPDX-License-Identifier: GPL-2.0-or-later
"""HAProxy with a fixed origin and without CONNECT. Version 2.6 does not support MPTCP; mptcpize(8) adds it."""

from __future__ import annotations

from mptcp_lab.testbed import Program

from .model import PORT, Peer, PeerSetup, answers

_CONFIG = """\
global
    nbthread {workers}
    maxconn 5000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend clients
    bind :::{port} v4v6
    default_backend origin
backend origin
    server origin {origin}:80
"""


def _start(setup: PeerSetup) -> Program:
    text = _CONFIG.format(port=PORT, workers=setup.workers, origin=setup.origin_host)
    config = setup.write("haproxy.cfg", text)
    argv = setup.wrapped(["haproxy", "-db", "-f", str(config)])
    return answers(setup, setup.host.popen(argv, name="haproxy"), "HAProxy")


HAPROXY = Peer("haproxy", "haproxy", ("haproxy",), _start, tunnels=False, asked=("haproxy", "-v"))
