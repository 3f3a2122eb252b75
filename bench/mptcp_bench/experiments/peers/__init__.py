# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxies that ours is compared with. Each runs as the only one on a host, as the experiment ``relay`` needs it.

Each kind of proxy has a module with its requirements and its start. ``model`` has the common parts. Each proxy has one
thread or worker unless all cores are requested, no cache, only an error log (if that is not against its default), and
persistent connections to the origin if it supports them.
"""

from .apache import APACHE
from .haproxy import HAPROXY
from .model import PORT, Peer, PeerSetup, answers
from .nginx import NGINX
from .splice import SPLICE
from .squid import KEEPING, OURS, REBUILT, SQUID
from .traffic_server import TRAFFIC_SERVER

__all__ = ["PEERS", "PORT", "Peer", "PeerSetup", "answers"]

PEERS = {peer.name: peer for peer in (OURS, KEEPING, REBUILT, SQUID, HAPROXY, NGINX, TRAFFIC_SERVER, APACHE, SPLICE)}
