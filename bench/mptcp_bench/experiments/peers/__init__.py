"""The proxies that ours is measured beside, each started alone on a host, as the experiment ``relay`` wants it.

A module for each kind says what of it is needed and how it is started; ``model`` what all have in common. What they
share: one thread or worker unless all cores are asked for, no cache, no log but that of errors unless that is how it
comes, connections to the origin kept and used again where it can do that.
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
