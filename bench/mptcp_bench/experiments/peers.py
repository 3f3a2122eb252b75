# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxies that the experiment ``relay`` compares with ours, and how each is started as the only one on a host.

Each proxy has one worker or thread unless all processors are asked for, no cache, an error log only (unless its default
differs), and persistent connections to the origin if it has them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from mptcp_lab.testbed import TMPFS, LiveNode, Program
from mptcp_lab.testbed.commands import run, undone_on_error
from mptcp_lab.testbed.services import PROXY_PORT, SQUID_CONFIG, accepts, mptcp_command, start_proxy, wait_until

from .relay_load import built

MODULES = "/usr/lib/apache2/modules"
REBUILT_SQUID = os.environ.get("MPTCP_BENCH_SQUID", "")
"""Another Squid program to run our proxy with. ``./run squid`` builds one that writes larger pieces."""


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What a proxy needs to know to start."""

    host: LiveNode
    directory: Path
    """The proxy's own empty directory."""
    origin: str
    """Address of the only web server. It has the same family as the clients' addresses."""
    workers: int
    multipath: bool
    """Whether its clients use MPTCP."""
    more: str = ""
    """Lines to add to our squid.conf."""

    def write(self, name: str, template: str, **values: object) -> Path:
        """Write *template* with *values* and the setup's own values into the file *name*."""
        origin = f"[{self.origin}]" if ":" in self.origin else self.origin
        text = template.format(port=PROXY_PORT, directory=self.directory, origin=origin, workers=self.workers, **values)
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def started(self, argv: Sequence[str], name: str, mounts: Mapping[str, str] | None = None) -> Program:
        """Start the proxy *name*; return when it accepts connections. Raises TestbedError, with the end of its log."""
        process = self.host.popen(argv, name=name, mounts=mounts or {})
        address = self.host.service_address()
        # After an error, kill the process to free the port for the next proxy.
        with undone_on_error(process.kill_tree):
            wait_until(
                lambda: accepts(self.host, address, PROXY_PORT),
                f"{name} answers on port {PROXY_PORT}",
                process=process,
                timeout=30,
            )
        return process

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """Return *argv*; for MPTCP clients wrapped by mptcpize(8), for all TCP sockets, even outgoing ones."""
        return mptcp_command(argv) if self.multipath else list(argv)


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that can be measured."""

    package: str
    """Debian's package that has it. For a proxy that is compiled here, the compiler's package."""
    needs: tuple[str, ...]
    """The programs (names) and files (paths) that it needs."""
    start: Callable[[PeerSetup], Program]
    tunnels: bool = True
    """Whether it supports CONNECT."""
    multipath: str = "wrapped"
    """How it accepts MPTCP: by its ``own`` listener, ``wrapped`` by mptcpize(8), or not at all (empty)."""
    asked: tuple[str, ...] = ()
    """The command that prints the proxy's version in the first line."""

    def lacking(self) -> str | None:
        """Return what is not installed, or None if everything is."""
        absent = [each for each in self.needs if not _installed(each)]
        return f"{' and '.join(absent)} not installed (Debian's package {self.package})" if absent else None

    def version(self) -> str:
        """Return the proxy's version; empty if no command prints it, or it is not installed."""
        said = _said(self.asked) if self.asked and not self.lacking() else ""
        return next(iter(said.strip().splitlines()), "")


def _installed(name: str) -> bool:
    """Return whether there is a file *name* or, for a name without directory, such a program."""
    if name.startswith("/"):
        return Path(name).exists()
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is not None


def _said(command: Sequence[str]) -> str:
    said = run(command, check=False)
    return said.stdout or said.stderr


# Debian's squid.conf, but without a cache, and with other places for its files. It logs each request.
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
workers {workers}
"""


def _start_ours(setup: PeerSetup, program: str = "", control: str | None = None) -> Program:
    """Start our proxy with the shipped squid.conf and the Squid *program*, if not the installed one."""
    config = setup.write("squid.conf", f"include {SQUID_CONFIG}\nworkers {{workers}}\n{setup.more}")
    # mptcp-proxy runs the first Squid in PATH.
    path = {"PATH": f"{Path(program).parent}:{os.environ.get('PATH', os.defpath)}"} if program else None
    proxy = start_proxy(setup.host, config, env=path, control=control)
    # The proxy will be killed. Remove its PID file, so that the next proxy does not believe that it still runs.
    (proxy.state / "squid.pid").unlink(missing_ok=True)
    (setup.directory / "cache.log").symlink_to(proxy.logs / "cache.log")
    return proxy.process


def _start_squid(setup: PeerSetup) -> Program:
    config = setup.write("squid.conf", _SQUID)
    setup.host.run(["chown", "-R", "proxy", str(setup.directory)])
    # Several workers meet in /run. Two Squids on one host would use the same /dev/shm/squid-*.
    mounts = {"/dev/shm": TMPFS, "/run/squid": TMPFS}
    return setup.started(["squid", "--foreground", "-f", str(config), "-n", "stock"], "squid", mounts)


# HAProxy has a fixed origin and no CONNECT.
_HAPROXY = """\
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


def _start_haproxy(setup: PeerSetup) -> Program:
    config = setup.write("haproxy.cfg", _HAPROXY)
    return setup.started(setup.wrapped(["haproxy", "-db", "-f", str(config)]), "haproxy")


# For plain requests nginx has one fixed origin. A tunnel goes where its client asks; its request has the path /.
# proxy_max_temp_file_size 0: by default nginx writes data for a slow client to a file. Other proxies slow the origin.
_NGINX = """\
daemon off;
user root;
worker_processes {workers};
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
        listen 0.0.0.0:{port}{multipath};
        listen [::]:{port}{multipath};
        {tunnels}
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


def nginx_of(build: str) -> Peer:
    """Return nginx as a peer, with what its *build*, the output of ``nginx -V``, says that it can do.

    Its listeners accept MPTCP since 1.29.7. It has CONNECT since 1.31.0, unless it was built without that module.
    """
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", build)
    version = tuple(map(int, found.groups())) if found else (0, 0, 0)
    own = version >= (1, 29, 7)
    tunnels = version >= (1, 31, 0) and "--without-http_tunnel_module" not in build

    def start(setup: PeerSetup) -> Program:
        config = setup.write(
            "nginx.conf",
            _NGINX,
            multipath=" multipath" if own else "",
            tunnels="location = / { tunnel_pass; }" if tunnels else "",
        )
        argv = ["nginx", "-p", str(setup.directory), "-e", "error.log", "-c", str(config)]
        return setup.started(argv if own else setup.wrapped(argv), "nginx")

    return Peer("nginx", ("nginx",), start, tunnels, "own" if own else "wrapped", ("nginx", "-v"))


# By default Traffic Server's listener accepts a connection when data has arrived (TCP_DEFER_ACCEPT). Such a listener
# never accepts a second subflow, because the third ACK of a join has no data.
_RECORDS = """\
CONFIG proxy.config.http.server_ports STRING {port} {port}:ipv6
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT {workers}
CONFIG proxy.config.accept_threads INT 0
CONFIG proxy.config.http.cache.http INT 0
CONFIG proxy.config.reverse_proxy.enabled INT 0
CONFIG proxy.config.url_remap.remap_required INT 0
CONFIG proxy.config.url_remap.pristine_host_hdr INT 1
CONFIG proxy.config.http.connect_ports STRING 443
CONFIG proxy.config.http.insert_request_via_str INT 0
CONFIG proxy.config.http.insert_response_via_str INT 0
CONFIG proxy.config.http.keep_alive_no_activity_timeout_in INT 60
CONFIG proxy.config.net.defer_accept INT 0
CONFIG proxy.config.net.connections_throttle INT 15000
CONFIG proxy.config.log.logging_enabled INT 0
CONFIG proxy.config.diags.show_location INT 0
CONFIG proxy.config.body_factory.template_sets_dir STRING {directory}/etc/body_factory
CONFIG proxy.config.admin.user_id STRING #-1
"""
_ALLOWED = """\
ip_allow:
  - apply: in
    ip_addrs: [0/0, ::/0]
    action: allow
    methods: ALL
"""
_PLACES = {
    "bindir": "bin", "sbindir": "bin", "sysconfdir": "etc", "datadir": "share",
    "includedir": "include", "libdir": "lib", "libexecdir": "modules", "localstatedir": "var", "runtimedir": "run",
    "logdir": "log", "mandir": "man", "infodir": "info", "cachedir": "cache",
}  # fmt: skip
"""Where Traffic Server has its files, below its own directory."""
_EMPTY = ("storage.config", "plugin.config", "remap.config", "logging.yaml", "ssl_multicert.config", "sni.yaml")


def _start_traffic_server(setup: PeerSetup) -> Program:
    """Start Traffic Server in its own directory. Version 9.2 supports MPTCP only of another kernel."""
    for place in _PLACES.values():
        (setup.directory / place).mkdir(exist_ok=True)
    setup.write("etc/records.config", _RECORDS)
    setup.write("etc/ip_allow.yaml", _ALLOWED)
    for name in _EMPTY:
        setup.write(f"etc/{name}", "")
    # Traffic Server does not start without templates of error pages.
    setup.write("etc/body_factory/default/.body_factory_info", "Content-Language: en\nContent-Charset: utf-8\n")
    below = "".join(f"{key}: {{directory}}/{place}\n" for key, place in _PLACES.items())
    layout = setup.write("runroot.yaml", "prefix: {directory}\nexec_prefix: {directory}\n" + below)
    # Traffic Server resolves its own address. Without name servers it would wait for ten seconds.
    own = "".join(f"{setup.host.service_address(family)} proxy.test\n" for family in (4, 6))
    hosts = setup.write("hosts", f"127.0.0.1 localhost\n{own}")
    argv = setup.wrapped(["traffic_server", f"--run-root={layout}"])
    return setup.started(argv, "traffic-server", {"/etc/hosts": str(hosts)})


# mod_proxy cannot be limited to one thread: a process of the event MPM has one for each active request or tunnel.
# AcceptFilter: with TCP_DEFER_ACCEPT no second subflow is ever accepted, as the third ACK of a join has no data.
# Without a worker of its own an origin's connections are not kept (mod_proxy, "Workers").
_APACHE = """\
ServerRoot {directory}
ServerName proxy.test
PidFile {directory}/apache.pid
DefaultRuntimeDir {directory}
Mutex file:{directory}
ErrorLog {directory}/error.log
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
LoadModule proxy_connect_module {modules}/mod_proxy_connect.so
User www-data
Group www-data
ServerLimit {workers}
StartServers {workers}
ThreadLimit {threads}
ThreadsPerChild {threads}
MaxRequestWorkers {all_threads}
AcceptFilter http none
Listen 0.0.0.0:{port}
Listen [::]:{port}
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 60
ProxyRequests On
ProxyVia Off
AllowCONNECT 443
<Proxy *>
    Require all granted
</Proxy>
<Proxy "http://{origin}">
    ProxySet enablereuse=on max=1000
</Proxy>
"""


def _start_apache(setup: PeerSetup) -> Program:
    threads = 1000
    config = setup.write("apache.conf", _APACHE, modules=MODULES, threads=threads, all_threads=threads * setup.workers)
    return setup.started(setup.wrapped(["apache2", "-D", "FOREGROUND", "-f", str(config)]), "apache")


def _start_splice(setup: PeerSetup) -> Program:
    """Start ``native/splice_relay.c``, which does the least that a relay can do. It is a limit, not a proxy."""
    return setup.started([str(built("splice_relay", setup.host)), str(PROXY_PORT), setup.origin, "80"], "splice")


@cache
def peers() -> dict[str, Peer]:
    """Return all proxies by name. What nginx can do depends on the installed version."""
    squid, modules = ("squid", "-v"), ("apache2", f"{MODULES}/mod_proxy_connect.so")
    rebuilt = REBUILT_SQUID or "the program that MPTCP_BENCH_SQUID is to name"
    return {
        "ours": Peer("squid", ("squid",), _start_ours, multipath="own", asked=squid),
        # With the host's congestion control towards clients, instead of BBR.
        "ours-keep": Peer("squid", ("squid",), partial(_start_ours, control="keep"), multipath="own", asked=squid),
        "ours-rebuilt": Peer(
            "squid, rebuilt by ./run squid",
            (rebuilt,),
            partial(_start_ours, program=REBUILT_SQUID),
            multipath="own",
            asked=(REBUILT_SQUID, "-v"),
        ),
        "squid": Peer("squid", ("squid",), _start_squid, multipath="", asked=squid),
        "haproxy": Peer("haproxy", ("haproxy",), _start_haproxy, tunnels=False, asked=("haproxy", "-v")),
        "nginx": nginx_of(_said(("nginx", "-V")) if _installed("nginx") else ""),
        "traffic-server": Peer(
            "trafficserver", ("traffic_server",), _start_traffic_server, asked=("traffic_server", "--version")
        ),
        "apache": Peer("apache2-bin", modules, _start_apache, asked=("apache2", "-v")),
        "splice": Peer("gcc", ("gcc",), _start_splice, multipath="own"),
    }
