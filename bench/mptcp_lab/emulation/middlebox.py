# SPDX-License-Identifier: GPL-2.0-or-later
"""A middlebox on a path: the arguments and rules of our program. Pure.

The program (``native/middlebox/``) gets the IPv4 TCP packets that the hop forwards, both ways, and sends on what the
box makes of them; IPv6 passes untouched. The path's delay and loss come after the box.
"""

from __future__ import annotations

from pathlib import Path as File

from .userspace import Rules, by_iptables

SOURCES = tuple(sorted((File(__file__).parent / "native" / "middlebox").glob("*.c")))
QUEUES = {"up": 2, "down": 3}


def arguments(behaviour: str) -> tuple[str, ...]:
    """Return the program's arguments."""
    return (behaviour, str(QUEUES["up"]), str(QUEUES["down"]))


def rules(devices: dict[str, str]) -> tuple[Rules, ...]:
    """Return the rules to try, best first, that queue forwarded packets; *devices*: sending devices by direction."""
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
