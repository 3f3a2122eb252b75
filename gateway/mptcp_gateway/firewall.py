# SPDX-License-Identifier: GPL-2.0-or-later
"""The nftables rules that direct the packets of a home's devices. Pure. nft(8).

The rules pass a device's TCP connection to the forwarder (TPROXY). If an exception matches the connection, or if the
forwarder does not listen, the packets are routed and masqueraded as by any router. So if the forwarder ends, only the
connections that it carries are lost. Marks select the routing table (``plan``); each connection keeps its mark, so that
it stays on the uplink on which it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mptcp_gateway.model import MARK_MASK, Lan, Mark, uplink_mark

TABLE: Final = "mptcp_gateway"
FORWARDER_PORT: Final = 7720
_BYPASS: Final = 0x80000000
"""Bit in the mark of connections that bypass the forwarder and the tunnel."""

_LOCAL: Final = {
    4: "10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16, 224.0.0.0/3",
    6: "::1, fc00::/7, fe80::/10, ff00::/8",
}
"""Destinations that are never sent to a parent, because there, these addresses belong to other networks."""


def ruleset(lan: Lan, uplinks: Mapping[str, str]) -> str:
    """Return the text for ``nft -f`` that replaces the gateway's table. The sets ``names4`` and ``names6`` keep the
    elements that a name server added."""
    devices = {_quoted(device): uplink_mark(number) for number, device in enumerate(uplinks.values())}
    if lan.tunnel:
        devices[_quoted(lan.tunnel)] = int(Mark.TUNNEL)
    home = _set_of(map(_quoted, lan.devices))
    external = [each for each in devices if each.strip('"') not in lan.devices]
    chains = {
        "carry": ("filter hook prerouting priority mangle", _carry(lan, devices, home)),
        "pass": ("filter hook forward priority filter", _pass(lan, devices, home, external)),
        # Drop IPv6 redirects, which would send a device to another router; for IPv4, a sysctl disables them.
        "advise": ("filter hook output priority filter", [f"oifname {home} icmpv6 type nd-redirect drop"]),
        "leave": ("nat hook postrouting priority srcnat", _leave(devices, home)),
    }
    lines = []
    for version in (4, 6):
        # dnsmasq fills these sets (nftset=/example.com/4#inet#mptcp_gateway#names4).
        lines.append(f"  set names{version} {{ type ipv{version}_addr; }}")
    for name, (hook, rules) in chains.items():
        lines += [f"  chain {name} {{", f"    type {hook}; policy accept;", *(f"    {each}" for each in rules), "  }"]
    # Declare each chain before it is deleted, because it may not exist.
    old = (f"table inet {TABLE} {{ chain {name} {{ }}; }}\ndelete chain inet {TABLE} {name}\n" for name in chains)
    return f"{''.join(old)}table inet {TABLE} {{\n{''.join(f'{each}{chr(10)}' for each in lines)}}}\n"


REMOVAL: Final = f"table inet {TABLE}\ndelete table inet {TABLE}\n"
"""The text for ``nft -f`` that removes the gateway's table, if it exists."""


def _carry(lan: Lan, devices: Mapping[str, int], home: str) -> Iterable[str]:
    yield f"iifname != {home} return"
    yield f"tcp flags & (syn | ack) != syn socket transparent 1 {_set_mark(Mark.DELIVER)} accept"
    yield from (f"ct mark and {MARK_MASK:#x} == {mark:#x} {_set_mark(mark)} accept" for mark in devices.values())
    yield "fib daddr type { local, broadcast, anycast, multicast } accept"
    bypass = f"ct mark set ct mark or {_BYPASS:#x} accept"
    yield f"ip daddr {{ {_LOCAL[4]} }} {bypass}"
    yield f"ip6 daddr {{ {_LOCAL[6]} }} {bypass}"
    for version, ip in ((4, "ip"), (6, "ip6")):
        for field, members in (("saddr", lan.exempt_devices), ("daddr", lan.exempt_destinations)):
            addresses = [str(each) for each in members if each.version == version]
            if addresses:
                yield f"{ip} {field} {_set_of(addresses)} {bypass}"
        yield f"{ip} daddr @names{version} {bypass}"
    if lan.exempt_ports:
        yield f"th dport {_set_of(map(str, lan.exempt_ports))} {bypass}"
    if lan.tunnel:
        yield f"meta l4proto != tcp {_set_mark(Mark.TUNNEL)} accept"
    for version, target in ((4, "ip to 127.0.0.1"), (6, "ip6 to [::1]")):
        # The rule does not match if the forwarder does not listen.
        yield (
            f"meta nfproto ipv{version} tcp flags & (syn | ack) == syn tproxy {target}:{FORWARDER_PORT}"
            f" {_set_mark(Mark.DELIVER)} accept"
        )


def _pass(lan: Lan, devices: Mapping[str, int], home: str, external: Sequence[str]) -> Iterable[str]:
    if external:
        yield f"iifname {_set_of(external)} oifname {home} ct state new drop"
    yield f"oifname {_set_of(devices)} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu"
    forwarded = f"iifname {home} oifname {_set_of(devices)} ct mark and {_BYPASS:#x} == 0"
    if lan.quic_refused:
        yield f"{forwarded} udp dport 443 ct state new reject"
    if not lan.fail_open:
        yield f"{forwarded} meta l4proto tcp reject with tcp reset"
        if lan.tunnel:
            yield f"{forwarded} oifname != {_quoted(lan.tunnel)} meta l4proto != tcp reject"


def _leave(devices: Mapping[str, int], home: str) -> Iterable[str]:
    keep = 0xFFFFFFFF ^ MARK_MASK
    for device, mark in devices.items():
        yield f"iifname {home} oifname {device} ct mark set ct mark and {keep:#x} or {mark:#x} masquerade"


def _set_mark(mark: int) -> str:
    return f"meta mark set meta mark and {0xFFFFFFFF ^ MARK_MASK:#x} or {int(mark):#x}"


def _set_of(values: Iterable[str]) -> str:
    return f"{{ {', '.join(values)} }}"


def _quoted(device: str) -> str:
    return f'"{device}"'
