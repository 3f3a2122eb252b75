# SPDX-License-Identifier: GPL-2.0-or-later
"""Apache's mod_proxy: one process of the event MPM, with a thread for each active request or tunnel.

Apache cannot be limited to one thread. If all cores are requested, it has a process for each. Version 2.4 does not
support MPTCP, so mptcpize(8) adds it.
"""

from __future__ import annotations

from mptcp_lab.testbed import Program

from .model import PORT, Peer, PeerSetup, answers

MODULES = "/usr/lib/apache2/modules"
THREADS = 1000
"""Threads per process. A tunnel occupies one, even if it is idle."""
_CONFIG = """\
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
# TCP_DEFER_ACCEPT: no second subflow is ever accepted, for the third ACK of a join has no data.
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
# Without a worker of its own an origin's connections are not kept (mod_proxy, "Workers").
<Proxy "http://{origin}">
    ProxySet enablereuse=on max=1000
</Proxy>
"""


def _start(setup: PeerSetup) -> Program:
    text = _CONFIG.format(
        port=PORT, directory=setup.directory, modules=MODULES, origin=setup.origin_host,
        workers=setup.workers, threads=THREADS, all_threads=THREADS * setup.workers,
    )  # fmt: skip
    config = setup.write("apache.conf", text)
    argv = setup.wrapped(["apache2", "-D", "FOREGROUND", "-f", str(config)])
    return answers(setup, setup.host.popen(argv, name="apache"), "Apache")


APACHE = Peer("apache", "apache2-bin", ("apache2", f"{MODULES}/mod_proxy_connect.so"), _start, asked=("apache2", "-v"))
