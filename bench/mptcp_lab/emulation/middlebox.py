# SPDX-License-Identifier: GPL-2.0-or-later
"""A middlebox on a path: the arguments of our program and the netfilter rules for it. Pure.

The program (``native/middlebox/``) gets the IPv4 TCP packets that the hop forwards in both directions, and sends the
packets that the middlebox makes of them. IPv6 is not changed. The path's delay and loss come after the middlebox.
"""

from __future__ import annotations

from pathlib import Path as File

from .userspace import Rules, by_iptables

SOURCES = tuple(sorted((File(__file__).parent / "native" / "middlebox").glob("*.c")))
QUEUES = {"up": 2, "down": 3}


def arguments(behaviour: str) -> tuple[str, ...]:
    """Return the arguments of the middlebox program for *behaviour*."""
    return (behaviour, str(QUEUES["up"]), str(QUEUES["down"]))


def rules(devices: dict[str, str]) -> tuple[Rules, ...]:
    """Return rules that queue forwarded packets, the best first; *devices* has the sending devices by direction."""
    forwarded = "; ".join(
        [
            "type filter hook forward priority mangle",
            *(
                f'oifname "{device}" meta nfproto ipv4 meta l4proto tcp queue num {QUEUES[n]}'
                for n, device in devices.items()
            ),
        ]
    )
    nftables = Rules((("nft", f"table inet middlebox {{ chain forward {{ {forwarded}; }}; }}"),), ())
    tables = ((program, "--wait", "-t", "mangle") for program in ("iptables-legacy", "iptables"))
    return (nftables, *(by_iptables([table], devices, QUEUES, ("forward",), "-p", "tcp") for table in tables))
