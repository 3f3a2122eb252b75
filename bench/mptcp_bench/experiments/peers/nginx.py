# SPDX-License-Identifier: GPL-2.0-or-later
"""nginx, which is not a forward proxy: it sends all requests to one fixed origin, and has no CONNECT.

Version 1.22 does not support MPTCP, so mptcpize(8) adds it.
"""

from __future__ import annotations

from mptcp_lab.testbed import Program

from .model import PORT, Peer, PeerSetup, answers

# proxy_max_temp_file_size 0: by default nginx writes data for a slow client to a file. Other proxies slow the origin.
_CONFIG = """\
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
        listen 0.0.0.0:{port};
        listen [::]:{port};
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


def _start(setup: PeerSetup) -> Program:
    text = _CONFIG.format(port=PORT, workers=setup.workers, origin=setup.origin_host, directory=setup.directory)
    config = setup.write("nginx.conf", text)
    argv = setup.wrapped(["nginx", "-p", str(setup.directory), "-e", "error.log", "-c", str(config)])
    return answers(setup, setup.host.popen(argv, name="nginx"), "nginx")


NGINX = Peer("nginx", "nginx", ("nginx",), _start, tunnels=False, asked=("nginx", "-v"))
