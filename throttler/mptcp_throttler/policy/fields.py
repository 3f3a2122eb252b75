"""Single values that only a policy has: directions, prefixes, time zones. The others: ``mptcp_common.fields``."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Network, ip_interface, ip_network
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from mptcp_common.problems import did_you_mean, shown
from mptcp_throttler.policy.model import Direction, Network

DIRECTIONS: Final = {
    "down": frozenset({Direction.DOWN}),
    "up": frozenset({Direction.UP}),
    "both": frozenset(Direction),
}
"""What an operator calls directions."""
_V4_MAPPED: Final = IPv6Network("::ffff:0:0/96")


def parse_prefix(value: object) -> Network:
    """Return an IPv4 or IPv6 prefix; a single address stands for itself alone."""
    advice = 'write an address or a prefix (e.g. "10.77.1.0/24" or "fd77:1::/64")'
    if not isinstance(value, str) or "%" in value:
        raise ValueError(f"{shown(value)} is not a prefix; {advice}")
    try:
        network = ip_network(value)
    except ValueError:
        try:
            interface = ip_interface(value)
        except ValueError:
            raise ValueError(f"{shown(value)} is not a prefix; {advice}") from None
        raise ValueError(
            f"{shown(value)} has bits set behind its prefix length; "
            f'write "{interface.network}" for the network or "{interface.ip}" for the one address'
        ) from None
    if isinstance(network, IPv6Network) and network.subnet_of(_V4_MAPPED):
        plain = ip_network((IPv4Address(network.network_address.packed[12:]), network.prefixlen - 96))
        raise ValueError(f'{shown(value)} is an IPv4 prefix in IPv6 form; write "{plain}"')
    return network


def parse_time_zone(value: object) -> ZoneInfo:
    """Return a zone of the IANA time zone database."""
    try:
        if isinstance(value, str):
            return ZoneInfo(value)
        guess = ""
    # ZoneInfo opens a file of that name: a directory or anything else it finds there is no time zone either.
    except (KeyError, ValueError, OSError):
        guess = did_you_mean(str(value), sorted(available_timezones()))
    raise ValueError(
        f"{shown(value)} is not a time zone{guess}; write Region/City as in the IANA database "
        '(e.g. "Europe/Athens"), or UTC'
    )
