# SPDX-License-Identifier: GPL-2.0-or-later
"""Change an MTU for some time without losing IPv6.

If the MTU is below 1280 bytes (RFC 8200, 5), the kernel removes all IPv6 addresses and routes of the interface, and
does not restore them (``addrconf_notify`` of net/ipv6/addrconf.c).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from .host import Host

_SET = """\
ip -6 address save dev "$1" >"$2.address" && ip -6 route save table all type unicast dev "$1" >"$2.route" &&
ip link set dev "$1" mtu "$3"
"""
_UNDO = """\
ip link set dev "$1" mtu "$3" || exit 1
for object in address route; do
    [ ! -s "$2.$object" ] || ip -6 $object restore <"$2.$object" || exit 1
done
"""


def mtu(host: Host, device: str, value: int) -> AbstractContextManager[None]:
    """Set the MTU of *host*'s *device* to *value* bytes until the end of the scope."""
    before = host.run(["cat", f"/sys/class/net/{device}/mtu"]).stdout.strip()
    if before == str(value):
        return nullcontext()
    saved = str(host.directory / f"{host.name}-{device}")

    def argv(script: str, size: object) -> list[str]:
        return ["sh", "-c", script, "sh", device, saved, str(size)]

    return host.changed(argv(_SET, value), argv(_UNDO, before))
