"""The desired state in the words of tc, ipset, iptables and nft: what ``plan`` prints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

from ..mptcp.model import FourTuple
from .model import (
    DEFAULT_MINOR,
    LINK_MINOR,
    MAX_ENTRIES,
    NFT_TABLE,
    RULE_COMMENT,
    SET_PREFIX,
    ClassSpec,
    Ownership,
    Target,
)

FULL_SPEED = 100_000_000_000
"""Rate of the link and default classes in bits/s: more than any link here has, so that only caps shape."""
FULL_SPEED_BURST = 256 * 1024
FULL_SPEED_QUANTUM = 60_000
"""Bytes."""


def traffic_control(interfaces: Iterable[str], classes: Mapping[int, ClassSpec], ownership: Ownership) -> Iterator[str]:
    """Yield the tc(8) commands that make the tree on each interface."""
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
            yield (
                f"tc qdisc replace dev {interface} parent {major}:{minor:x} handle {minor:x}: "
                f"pfifo limit {spec.queue_packets}"
            )


def iptables(entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
    """Yield the ipset(8) and iptables(8) commands that make the sets, their rules and *entries*."""
    for port in ownership.listen_ports:
        for version, family, command in ((4, "inet", "iptables-legacy"), (6, "inet6", "ip6tables-legacy")):
            name = f"{SET_PREFIX}-{version}-{port}"
            yield f"ipset create {name} hash:ip,port,ip family {family} maxelem {MAX_ENTRIES} counters skbinfo"
            yield (
                f"{command} -t mangle -A POSTROUTING -p tcp -m tcp --sport {port} -m comment --comment {RULE_COMMENT} "
                f"-j SET --map-set {name} dst,dst,src --map-mark --map-prio"
            )
    for four_tuple, target in sorted(entries.items()):
        remote, local = ip_address(four_tuple.remote), ip_address(four_tuple.local)
        yield (
            f"ipset add {SET_PREFIX}-{local.version}-{four_tuple.local_port} "
            f"{remote},tcp:{four_tuple.remote_port},{local} "
            f"skbmark 0x{target.mark:x}/0x{ownership.mark_mask:x} skbprio {ownership.htb_major:x}:{target.minor:x}"
        )


def nftables(entries: Mapping[FourTuple, Target], ownership: Ownership) -> Iterator[str]:
    """Yield the nft(8) commands that make our table and *entries*; repeated, they change nothing."""
    yield from nft_table(ownership)
    for target in sorted(set(entries.values()), key=lambda target: (target.minor, target.mark)):
        yield from nft_chain(target, ownership)
    for four_tuple, target in sorted(entries.items()):
        map_name = f"v{6 if four_tuple.is_ipv6 else 4}"
        yield f"add element inet {NFT_TABLE} {map_name} {{ {nft_key(four_tuple)} : jump {nft_chain_name(target)} }}"


def nft_table(ownership: Ownership) -> Iterator[str]:
    """Yield the commands that make the table, its maps and its chain."""
    ports = ", ".join(str(port) for port in ownership.listen_ports)
    yield f"add table inet {NFT_TABLE}"
    for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
        key = f"{kind} . inet_service . {kind} . inet_service"
        yield f"add map inet {NFT_TABLE} v{version} {{ type {key} : verdict; counter; }}"
    yield f"add chain inet {NFT_TABLE} postrouting {{ type filter hook postrouting priority mangle; policy accept; }}"
    yield f"flush chain inet {NFT_TABLE} postrouting"
    for version, ip in ((4, "ip"), (6, "ip6")):
        yield (
            f"add rule inet {NFT_TABLE} postrouting tcp sport {{ {ports} }} "
            f"{ip} daddr . tcp dport . {ip} saddr . tcp sport vmap @v{version}"
        )


def nft_chain(target: Target, ownership: Ownership) -> Iterator[str]:
    """Yield the commands that make the chain to which the entries of *target* jump."""
    name = nft_chain_name(target)
    keep = 0xFFFFFFFF ^ ownership.mark_mask
    yield f"add chain inet {NFT_TABLE} {name}"
    yield f"flush chain inet {NFT_TABLE} {name}"
    yield f"add rule inet {NFT_TABLE} {name} meta mark set meta mark & 0x{keep:08x} | 0x{target.mark:08x}"
    yield f'add rule inet {NFT_TABLE} {name} meta priority set "{ownership.htb_major:x}:{target.minor:x}"'


def nft_chain_name(target: Target) -> str:
    return f"class_{target.minor:x}_mark_{target.mark:x}"


def nft_key(four_tuple: FourTuple) -> str:
    """Return the map key of *four_tuple*: client address and port, proxy address and port."""
    remote, local = ip_address(four_tuple.remote), ip_address(four_tuple.local)
    return f"{remote} . {four_tuple.remote_port} . {local} . {four_tuple.local_port}"
