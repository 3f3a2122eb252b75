# SPDX-License-Identifier: GPL-2.0-or-later
"""Initial options (docs/soft-start.md): settings of new subflows' sockets from the first segment on, by client prefix.
Pure.

If the client's address suffices to decide that a path is capped, the kernel accepts its subflows with a small bound on
unsent data and few initial segments. Under a path cap, they also begin in the cap's class: if hundreds began at a time,
their entries would come too late. A cap with an immediate onset sets only the class. A client known to have a single
path gets only a large bound on unsent data: if a second path appears, little data must drain before the cap begins.

A socket that never gets a soft cap keeps the small bound for its first 450 kB (``kernel/sockets/programs``), so only
prefixes whose subflows all get a soft cap have the small bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_network
from typing import Final

from mptcp_throttler.mptcp.model import map_to_ipv6
from mptcp_throttler.policy.anticipation import ANTICIPATED_PATHS
from mptcp_throttler.policy.conditions import PathMatch
from mptcp_throttler.policy.model import Direction, Kind, Onset, Policy, Rule, Share
from mptcp_throttler.policy.values import Network, Prefixes
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.model import MTU, InitialOptions

UNSENT_SECONDS = 0.001  # bound on unsent data, as time at the cap's rate: one segment up to about 10 Mbit/s
INITIAL_WINDOW_SECONDS = 0.004  # initial window, as time at the cap's rate: short, because many may begin together
MIN_WINDOW, MAX_WINDOW = 2, 10  # limits of the initial window, segments; the kernel's default is 10
DEFAULT_OPTIONS = InitialOptions()
MAX_REST_RATE: Final = 1_000_000
"""Bits/s. Up to this rate, one assignment takes 0.5 s or more: a join rests until the other subflows are too slow."""
LARGE_BOUND = 65_536  # Bytes: one assignment of the scheduler. Measured: no loss of goodput up to 2 Gbit/s.
UNANTICIPATED = InitialOptions(not_sent=LARGE_BOUND)
_ALL_IPV4: Final = ip_network("0.0.0.0/0")
_ALL_MAPPED: Final = ip_network((map_to_ipv6(bytes(4)), 96))
_IPV4_SUPERNETS: Final = tuple(_ALL_MAPPED.supernet(new_prefix=length) for length in range(96))
"""The IPv6 prefixes that contain all IPv4-mapped addresses, such as ``::/0``."""


def unsent_bound(rate: int) -> int:
    """Return the bound on unsent bytes of a subflow at *rate* bits/s."""
    return max(1, int(rate / 8 * UNSENT_SECONDS))


def options_under_cap(ceil: int, class_id: int | None = None, *, rests: bool = False) -> InitialOptions:
    """Return the initial options under a cap of *ceil* bits/s. *rests*: this host can wake a resting subflow."""
    window = max(MIN_WINDOW, int(ceil * INITIAL_WINDOW_SECONDS / 8 / MTU))
    return InitialOptions(
        unsent_bound(ceil), window if window < MAX_WINDOW else None, class_id, rests and ceil <= MAX_REST_RATE
    )


def initial_options(
    policy: Policy, open_rules: Sequence[bool], class_of: Callable[[ScopeKey], int | None], *, rests: bool = False
) -> dict[Network, InitialOptions]:
    """Return the initial options by client prefix, under those rules of *policy* that are in force now (*open_rules*).
    *class_of* returns the handle of a cap's class, None if the cap has none yet. *rests*: see ``options_under_cap``."""
    rules = [
        rule
        for rule, is_open in zip(policy.rules, open_rules, strict=True)
        if is_open and Direction.DOWN in rule.direction and rule.defines(Kind.THROTTLE)
    ]
    order: dict[str, int] = {}  # by path, the number of the first rule that names it
    for number, rule in enumerate(rules):
        for name in rule.paths or ():
            order.setdefault(name, number)
    paths = sorted((path for path in policy.paths.values() if path.name in order), key=lambda path: order[path.name])
    first_without_clients = min((order[path.name] for path in paths if path.clients is None), default=math.inf)
    by_prefix = Prefixes((network, order[path.name]) for path in paths for network in path.clients or ())
    result: dict[Network, InitialOptions] = {}
    for path in policy.paths.values():
        options, number = DEFAULT_OPTIONS, 0
        if path.model_fields_set == {"clients"}:
            options, number = _path_options(path, rules, policy.anticipate, class_of, rests)
        for network in path.clients or ():
            # An earlier rule may decide about the whole network; smaller networks have their own settings.
            earlier = first_without_clients < number or any(each < number for each in by_prefix.values_around(network))
            result.setdefault(network, DEFAULT_OPTIONS if earlier else options)
    # The look-up maps IPv4 addresses into IPv6, but an IPv6 prefix of a policy must not match IPv4 clients.
    if any(result.get(network, DEFAULT_OPTIONS) != DEFAULT_OPTIONS for network in _IPV4_SUPERNETS):
        result.setdefault(_ALL_IPV4, DEFAULT_OPTIONS)
    # Prefixes without settings matter only as exceptions within a prefix that has settings.
    return result if any(options != DEFAULT_OPTIONS for options in result.values()) else {}


def add_exceptions(
    options: Mapping[Network, InitialOptions], networks: Collection[Network]
) -> dict[Network, InitialOptions]:
    """Return *options* with exceptions for clients in *networks*, which get no settings."""
    if not options or not networks:
        return dict(options)
    exceptions = Prefixes((each, True) for each in networks)
    excepted = [each for each in options if any(exceptions.values_around(each))]
    return dict(options) | dict.fromkeys([*excepted, *networks], DEFAULT_OPTIONS)


def _path_options(
    path: PathMatch, rules: Sequence[Rule], anticipate: bool, class_of: Callable[[ScopeKey], int | None], rests: bool
) -> tuple[InitialOptions, int]:
    """Return the initial options of a path that is defined only by clients, and the number of its first rule."""
    for number, rule in enumerate(rules):
        if rule.paths is not None and path.name not in rule.paths:
            continue
        throttle = rule.throttle
        if throttle is None or not rule.conditions(Kind.THROTTLE).hold_always(ANTICIPATED_PATHS):
            return DEFAULT_OPTIONS, number
        if not anticipate:
            return UNANTICIPATED, number
        class_id = class_of(ScopeKey(rule.name, Share.PATH)) if throttle.share is Share.PATH else None
        if throttle.landing is not Onset.SOFT:
            return InitialOptions(class_id=class_id), number
        return options_under_cap(throttle.ceil, class_id, rests=rests), number
    return DEFAULT_OPTIONS, 0
