# SPDX-License-Identifier: GPL-2.0-or-later
"""Traffic Server, in its own directory. Version 9.2 supports MPTCP only of another kernel, so mptcpize(8) adds it.

By default its listener accepts a connection when data has arrived (TCP_DEFER_ACCEPT). Such a listener never accepts a
second subflow, because the third ACK of a join has no data.
"""

from __future__ import annotations

from mptcp_lab.testbed import Program

from .model import PORT, Peer, PeerSetup, answers

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
CONFIG proxy.config.body_factory.template_sets_dir STRING {root}/etc/body_factory
CONFIG proxy.config.admin.user_id STRING #-1
"""
_ALLOWED = """\
ip_allow:
  - apply: in
    ip_addrs: [0/0, ::/0]
    action: allow
    methods: ALL
"""
_ROOT = """\
prefix: {root}
exec_prefix: {root}
bindir: {root}/bin
sbindir: {root}/bin
sysconfdir: {root}/etc
datadir: {root}/share
includedir: {root}/include
libdir: {root}/lib
libexecdir: {root}/modules
localstatedir: {root}/var
runtimedir: {root}/run
logdir: {root}/log
mandir: {root}/man
infodir: {root}/info
cachedir: {root}/cache
"""
_EMPTY = ("storage.config", "plugin.config", "remap.config", "logging.yaml", "ssl_multicert.config", "sni.yaml")


def _start(setup: PeerSetup) -> Program:
    root = setup.directory
    for folder in ("bin", "etc", "share", "lib", "modules", "var", "run", "log", "cache"):
        (root / folder).mkdir()
    setup.write("etc/records.config", _RECORDS.format(port=PORT, workers=setup.workers, root=root))
    setup.write("etc/ip_allow.yaml", _ALLOWED)
    for name in _EMPTY:
        setup.write(f"etc/{name}", "")
    # Traffic Server does not start without templates of error pages.
    setup.write("etc/body_factory/default/.body_factory_info", "Content-Language: en\nContent-Charset: utf-8\n")
    layout = setup.write("runroot.yaml", _ROOT.format(root=root))
    # Traffic Server resolves its own address. Without name servers it would wait for ten seconds.
    own = (setup.host.service_address(family) for family in (4, 6))
    hosts = setup.write("hosts", "127.0.0.1 localhost\n" + "".join(f"{address} proxy.test\n" for address in own))
    argv = setup.wrapped(["traffic_server", f"--run-root={layout}"])
    process = setup.host.popen(argv, name="traffic-server", mounts={"/etc/hosts": str(hosts)})
    return answers(setup, process, "Traffic Server")


TRAFFIC_SERVER = Peer(
    "traffic-server", "trafficserver", ("traffic_server",), _start, asked=("traffic_server", "--version")
)
