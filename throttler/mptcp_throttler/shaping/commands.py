# SPDX-License-Identifier: GPL-2.0-or-later
"""Formats the desired state as commands of tc and nft, which ``plan`` prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.conditions import PathMatch
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.shaping.model import (
    DEFAULT_MINOR,
    FIRST_MINOR,
    LAST_MINOR,
    LINK_MINOR,
    MTU,
    NFT_TABLE,
    PLAIN_TCP_TABLE,
    SEGMENT_SECONDS,
    SMALL_PACKET,
    UPLOAD_DEVICE,
    ClassSpec,
    Ownership,
    Target,
)

FULL_SPEED = 100_000_000_000  # bits/s of the link and default classes: above any real link, so only caps limit traffic
FULL_SPEED_BURST = 256 * 1024  # bytes
FULL_SPEED_QUANTUM = 60_000  # bytes
TBF_RATE = 32_000_000_000  # bits/s, about a tbf's maximum: the tbf must split large segments, and not limit the rate
TBF_STEP = 4000  # bytes per microsecond at ``TBF_RATE``: a tbf's burst is a multiple of it


def tbf_burst(spec: ClassSpec) -> int:
    """Return the size in bytes of the largest segment that a leaf of *spec* does not split."""
    return -(-int(spec.ceil / 8 * SEGMENT_SECONDS) // TBF_STEP) * TBF_STEP


def traffic_control(
    interfaces: Iterable[str], classes: Mapping[int, ClassSpec], ownership: Ownership, direction: Direction
) -> Iterator[str]:
    """Yield the tc(8) commands that create the tree of classes on each interface."""
    major = f"{ownership.htb_major:x}"
    for interface in interfaces:
        yield f"tc qdisc replace dev {interface} root handle {major}: htb default 0x{DEFAULT_MINOR:x}"
        for minor, parent in ((LINK_MINOR, f"{major}:"), (DEFAULT_MINOR, f"{major}:{LINK_MINOR:x}")):
            yield (
                f"tc class replace dev {interface} parent {parent} classid {major}:{minor:x} htb rate {FULL_SPEED}bit "
                f"burst {FULL_SPEED_BURST}b cburst {FULL_SPEED_BURST}b quantum {FULL_SPEED_QUANTUM}"
            )
        for minor, spec in sorted(classes.items()):
            yield (
                f"tc class replace dev {interface} parent {major}:{LINK_MINOR:x} classid {major}:{minor:x} "
                f"htb rate {spec.rate}bit ceil {spec.ceil}bit burst {spec.burst}b cburst {spec.cburst}b "
                f"quantum {spec.quantum}"
            )
            leaf = f"pfifo limit {spec.queue_packets}"
            if direction is Direction.UP:
                leaf = f"tbf rate {TBF_RATE}bit burst {tbf_burst(spec)}b limit {spec.queue_packets * MTU}"
            yield f"tc qdisc replace dev {interface} parent {major}:{minor:x} handle {minor:x}: {leaf}"


def upload_device(classes: Mapping[int, ClassSpec], ownership: Ownership) -> Iterator[str]:
    """Yield the ip(8) and tc(8) commands that create the IFB device and its tree of classes."""
    yield f"ip link add name {UPLOAD_DEVICE} type ifb"
    yield f"ip link set dev {UPLOAD_DEVICE} up"
    yield from traffic_control([UPLOAD_DEVICE], classes, ownership, Direction.UP)


@dataclass(frozen=True, slots=True)
class NftTable:
    """One of our two nftables tables. The table for downloads marks and classifies packets to the clients; the table
    for uploads, on *interfaces*, sends packets from the clients through the IFB device."""

    ownership: Ownership
    interfaces: Sequence[str] = ()

    @property
    def family(self) -> str:
        return "netdev" if self.interfaces else "inet"

    @property
    def name(self) -> str:
        """Family and name, as in nft(8) commands."""
        return f"{self.family} {NFT_TABLE}"

    def table(self, present: Container[str] | None = None) -> Iterator[str]:
        """Yield the idempotent commands that create the table, its maps and its base chains. Interfaces that are not
        *present* are omitted: nftables refuses a chain on a missing interface."""
        yield f"add table {self.name}"
        for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
            key = f"{kind} . inet_service . {kind} . inet_service"
            yield f"add map {self.name} v{version} {{ type {key} : verdict; counter; }}"
        for chain, interface in self.base_chains(present).items():
            yield from self._base_chain_commands(chain, interface)

    def base_chains(self, present: Container[str] | None = None) -> dict[str, str | None]:
        """Return the names of the base chains, each with its interface, if the chain has one."""
        if not self.interfaces:
            return {"postrouting": None}
        return {
            nft_ingress_chain_name(interface): interface
            for interface in self.interfaces
            if present is None or interface in present
        }

    def obsolete_chains(self, hooked: Mapping[str, str | None], present: Container[str]) -> list[str]:
        """Return the existing base chains that must be deleted before :meth:`table` runs. *hooked* has the interface of
        each chain, None if the chain has none or several. A chain cannot move to another interface: before Linux 6.4
        the kernel refuses that, and newer kernels hook the chain to both interfaces."""
        new = self.base_chains()
        return [name for name, dev in hooked.items() if name not in new or (new[name] in present and new[name] != dev)]

    def _base_chain_commands(self, chain: str, interface: str | None) -> Iterator[str]:
        hook, client, proxy = f'ingress device "{interface}" priority filter', "s", "d"  # source and destination
        if interface is None:
            hook, client, proxy = "postrouting priority mangle", "d", "s"
        ports = f"tcp {proxy}port {{ {', '.join(map(str, self.ownership.listen_ports))} }}"
        classes = "-".join(f"{self.ownership.htb_major:x}:{minor:x}" for minor in (FIRST_MINOR, LAST_MINOR))
        yield f"add chain {self.name} {chain} {{ type filter hook {hook}; policy accept; }}"
        yield f"flush chain {self.name} {chain}"
        for version, ip in ((4, "ip"), (6, "ip6")):
            if interface is None:
                yield (
                    f"add rule {self.name} {chain} meta nfproto ipv{version} {ports} "
                    f"meta length <= {SMALL_PACKET[version]} meta priority {classes} meta priority set 0:0"
                )
            key = " . ".join(f"{ip} {side}addr . tcp {side}port" for side in (client, proxy))
            yield f"add rule {self.name} {chain} {ports} meta length > {SMALL_PACKET[version]} {key} vmap @v{version}"

    def chain(self, target: Target) -> Iterator[str]:
        """Yield the commands that create the chain to which the entries of *target* jump."""
        name = nft_chain_name(target)
        yield f"add chain {self.name} {name}"
        yield f"flush chain {self.name} {name}"
        mark, priority = _mark_and_priority(target, self.ownership)
        if not self.interfaces:
            yield f"add rule {self.name} {name} {mark}"
        yield f"add rule {self.name} {name} {priority}"
        if self.interfaces:
            yield f'add rule {self.name} {name} fwd to "{UPLOAD_DEVICE}"'

    def shell_commands(self, entries: Mapping[FourTuple, Target]) -> Iterator[str]:
        """Yield the nft(8) commands that create the whole table with *entries*."""
        lines = list(self.table())
        for target in sorted(set(entries.values()), key=lambda target: (target.minor, target.mark)):
            lines += self.chain(target)
        for four_tuple, target in sorted(entries.items()):
            name, key = f"v{6 if four_tuple.is_ipv6 else 4}", nft_key(four_tuple)
            lines.append(f"add element {self.name} {name} {{ {key} : jump {nft_chain_name(target)} }}")
        return (f"nft '{line}'" for line in lines)


def plain_tcp_table(caps: Sequence[tuple[Target, PathMatch]], ownership: Ownership) -> Iterator[str]:
    """Yield the nft(8) commands that create the table of *caps* on plain TCP, if there are any. Plain TCP is recognized
    by the lack of an MPTCP option: all packets of capped subflows have an MPTCP option."""
    if not caps:
        return
    table = f"inet {PLAIN_TCP_TABLE}"
    ports = ", ".join(map(str, ownership.listen_ports))
    yield f"add table {table}"
    yield f"add chain {table} postrouting {{ type filter hook postrouting priority mangle + 1; policy accept; }}"
    for number, (target, path) in enumerate(caps):
        names = ", ".join(f'"{each}"' for each in path.interfaces or ())
        interface_match = "" if path.interfaces is None else f"oifname {{ {names} }} "
        for version, ip in ((4, "ip"), (6, "ip6")):
            client_match = f"meta nfproto ipv{version} "
            if path.clients is not None:
                prefixes = ", ".join(str(each) for each in path.clients if each.version == version)
                if not prefixes:
                    continue
                client_match = f"{ip} daddr @clients{number}v{version} "
                set_type = f"type ipv{version}_addr; flags interval; auto-merge;"
                yield f"add set {table} clients{number}v{version} {{ {set_type} elements = {{ {prefixes} }} }}"
            yield (
                f"add rule {table} postrouting {interface_match}tcp sport {{ {ports} }} {client_match}"
                f"meta length > {SMALL_PACKET[version]} tcp option 30 missing "
                f"{' '.join(_mark_and_priority(target, ownership))}"
            )


def _mark_and_priority(target: Target, ownership: Ownership) -> tuple[str, str]:
    """Return two nft(8) statements: one sets our bits of a packet's mark, the other the packet's class."""
    mark = f"meta mark set meta mark & 0x{0xFFFFFFFF ^ ownership.mark_mask:08x} | 0x{target.mark:08x}"
    return mark, f'meta priority set "{ownership.htb_major:x}:{target.minor:x}"'


def nft_ingress_chain_name(interface: str) -> str:
    """Return the name of the chain on *interface*. Characters that nft(8) forbids in names become /HEX/, which is
    unambiguous, because no interface name contains a slash."""
    return "ingress_" + re.sub(r"[^A-Za-z0-9_.-]", lambda match: f"/{ord(match[0]):x}/", interface)


def nft_chain_name(target: Target) -> str:
    return f"class_{target.minor:x}_mark_{target.mark:x}"


def nft_key(four_tuple: FourTuple) -> str:
    """Return the map key of *four_tuple*: client address and port, proxy address and port."""
    remote, local = ip_address(four_tuple.remote), ip_address(four_tuple.local)
    return f"{remote} . {four_tuple.remote_port} . {local} . {four_tuple.local_port}"
