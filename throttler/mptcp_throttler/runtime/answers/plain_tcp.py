"""Who uses the proxy by plain TCP: sockets on its ports that are no subflow known to the throttler.

The throttler tracks only MPTCP, so the answering child reads the kernel's lists of TCP sockets. An MPTCP connection
from the last milliseconds may appear in one answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from ipaddress import ip_address

from mptcp_common.tcp_table import ESTABLISHED, TABLES, sockets
from mptcp_throttler.mptcp.model import FourTuple, unmapped
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.views.answers import PlainTcp
from mptcp_throttler.views.words import address_text

log = logging.getLogger(__name__)


def plain_tcp(snapshot: Snapshot, most: int) -> PlainTcp | None:
    """Return the number of connections and the *most* busiest clients, by connections; None if unknown."""
    ports = frozenset(snapshot.settings.ownership.listen_ports)
    traffic = snapshot.engine.traffic
    clients: Counter[bytes] = Counter()
    for table in TABLES:
        try:
            with table.open() as lines:
                ours = (each for each in sockets(lines, ESTABLISHED) if each.local_port in ports)
                found = (unmapped(FourTuple(*each)) for each in ours)
                clients.update(each.remote for each in found if traffic.standing(each, Direction.DOWN) is None)
        except FileNotFoundError:
            continue  # a kernel without IPv6
        except OSError as error:
            log.warning("%s: %s; an answer does not say who uses plain TCP", table, error.strerror)
            return None
    for address in [each for each in clients if ip_address(each).is_loopback]:
        del clients[address]  # this host's own, such as queries for Squid's figures
    return {
        "connections": clients.total(),
        "total": len(clients),
        "clients": [
            {"client": address_text(address) or "", "connections": number}
            for address, number in clients.most_common(most)
        ],
    }
