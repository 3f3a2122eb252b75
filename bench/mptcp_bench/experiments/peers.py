# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxies that the experiments ``relay`` and ``mimbox-…`` compare, and how to start each of them.

Each proxy has one worker or thread, no cache, and persistent connections to the origin if it supports them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from mptcp_lab.testbed import TMPFS, LiveNode, Program
from mptcp_lab.testbed.commands import run
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import PROXY_PORT, SQUID_CONFIG, mptcp_command, start_program, start_proxy

from .relay_load import build


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """The parameters to start a proxy."""

    host: LiveNode
    directory: Path
    """The proxy's own empty directory."""
    origin: str
    """Address of the only web server."""
    multipath: bool
    """Whether the proxy's clients use MPTCP."""
    extra_config: str = ""
    """Lines to add to our squid.conf."""

    def write(self, name: str, template: str) -> Path:
        """Write *template* with the setup's values into the file *name*."""
        text = template.format(port=PROXY_PORT, directory=self.directory, origin=self.origin)
        target = self.directory / name
        target.write_text(text)
        return target

    def start(self, argv: Sequence[str], mounts: Mapping[str, str] | None = None, *, wrapped: bool = False) -> Program:
        """Start a proxy; return when it accepts connections. If *wrapped*, mptcpize(8) makes all its sockets MPTCP."""
        command = mptcp_command(argv) if wrapped else argv
        return start_program(self.host, command, Path(argv[0]).name, PROXY_PORT, end="kill_tree", mounts=mounts)


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that can be measured."""

    program: str
    """Name or path of the program; the compiler for a proxy that is compiled here."""
    start: Callable[[PeerSetup], Program]
    tunnels: bool = True
    """Whether it supports CONNECT."""
    multipath: bool = True
    """Whether it accepts MPTCP, with its own listener or by mptcpize(8)."""

    def lacking(self) -> str | None:
        """Return an error message if the program is not installed, otherwise None."""
        return missing(self.program)

    def version(self) -> str:
        """Return the program's version; empty if the program is not installed."""
        return _output(self.program, "-v").partition("\n")[0]


def _output(program: str, option: str) -> str:
    """Return the output of *program* with *option*; empty if it is not installed."""
    if missing(program):
        return ""
    ended = run([program, option], check=False)
    return ended.stdout or ended.stderr


# Debian's squid.conf, but without a cache, and with other paths for its files. It logs each request.
_SQUID = """\
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
"""


def _start_ours(setup: PeerSetup) -> Program:
    """Start our proxy with the shipped squid.conf."""
    config = setup.write("squid.conf", f"include {SQUID_CONFIG}\nworkers 1\n{setup.extra_config}")
    proxy = start_proxy(setup.host, config)
    # The proxy will be killed. Remove its PID file, or the next proxy would assume that this proxy still runs.
    (proxy.state / "squid.pid").unlink(missing_ok=True)
    (setup.directory / "cache.log").symlink_to(proxy.logs / "cache.log")
    return proxy.process


def _start_squid(setup: PeerSetup) -> Program:
    config = setup.write("squid.conf", _SQUID)
    setup.host.run(["chown", "-R", "proxy", str(setup.directory)])
    # Two Squids on one host would use the same /dev/shm/squid-*.
    mounts = {"/dev/shm": TMPFS, "/run/squid": TMPFS}
    return setup.start(["squid", "--foreground", "-f", str(config), "-n", "stock"], mounts)


# HAProxy has a fixed origin, and its clients cannot use CONNECT.
_HAPROXY = """\
global
    nbthread 1
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


def _start_haproxy(setup: PeerSetup) -> Program:
    argv = ["haproxy", "-db", "-f", str(setup.write("haproxy.cfg", _HAPROXY))]
    return setup.start(argv, wrapped=setup.multipath)


# For plain requests, nginx has a fixed origin. A tunnel goes to the client's target; its location is /.
# At its start, nginx creates the directories of temporary files. By default, these belong to the installed nginx.
# proxy_max_temp_file_size 0: by default, nginx stores data for a slow client in a file. Other proxies do not.
_NGINX = """\
daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile 20000;
error_log {directory}/error.log;
pid {directory}/nginx.pid;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 1000000000;
    tcp_nodelay on;
    upstream origin {{
        server {origin}:80;
        keepalive 1000;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 0.0.0.0:{port}MULTIPATH;
        listen [::]:{port}MULTIPATH;
        TUNNELS
        location / {{
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"""


def nginx_features(build: str) -> tuple[bool, bool]:
    """Return whether nginx can listen with MPTCP, and whether it supports CONNECT. *build*: output of ``nginx -V``."""
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", build)
    version = tuple(map(int, found.groups())) if found else (0, 0, 0)
    return version >= (1, 29, 7), version >= (1, 31, 0) and "--without-http_tunnel_module" not in build


def _start_nginx(setup: PeerSetup, listens: bool, tunnels: bool) -> Program:
    template = _NGINX.replace("MULTIPATH", " multipath" * listens)
    config = setup.write("nginx.conf", template.replace("TUNNELS", "location = / {{ tunnel_pass; }}" * tunnels))
    argv = ["nginx", "-p", str(setup.directory), "-e", "error.log", "-c", str(config)]
    return setup.start(argv, wrapped=setup.multipath and not listens)


def _start_splice(setup: PeerSetup) -> Program:
    """Start ``native/splice_relay.c``, which only copies data. It shows the upper limit of speed."""
    return setup.start([str(build("splice_relay", setup.host)), str(PROXY_PORT), setup.origin, "80"])


@cache
def peers() -> Mapping[str, Peer]:
    """Return all proxies by name. The features of nginx depend on the installed version."""
    listens, tunnels = nginx_features(_output("nginx", "-V"))
    return {
        "ours": Peer("squid", _start_ours),
        "squid": Peer("squid", _start_squid, multipath=False),
        "haproxy": Peer("haproxy", _start_haproxy, tunnels=False),
        "nginx": Peer("nginx", partial(_start_nginx, listens=listens, tunnels=tunnels), tunnels),
        "splice": Peer("gcc", _start_splice),
    }
