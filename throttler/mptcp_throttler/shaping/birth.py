"""What the subflows to come have from their first segment on, by the client's prefix. Pure.

Under a cap little is to wait on a subflow, for what waits there cannot go by another path, and its first segments are
to be few, for they leave before anything is known of the connection. Where the policy says by the client's address
alone that a path is capped, its subflows are accepted like that, and into the class of a cap that all clients share:
of hundreds that begin at a time the entries would come after the first segments. A client that is known to have a
single path is not, but for a bound on what waits that costs nothing: should a second path come up, the cap finds
little to drain.

The small bound is taken back from a socket that leaves a cap with a soft start; one that comes to none has it for its
first 450 kB (``kernel/sockets/programs``). So it is given to prefixes alone of which, by the policy, every subflow
comes to such a cap. One that falls at once gives its class alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_network
from typing import Final

from mptcp_throttler.mptcp.model import mapped
from mptcp_throttler.policy.anticipation import ANTICIPATED
from mptcp_throttler.policy.model import Direction, Kind, Onset, PathMatch, Policy, Rule, Share
from mptcp_throttler.policy.values import Network, Prefixes
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.model import MTU, Birth, SocketLimit

UNSENT_SECONDS = 0.001
"""What may wait under a cap, in time at its rate: one segment up to some 10 Mbit/s. The scheduler then assigns a
segment when one can leave, and everything else goes by other paths."""
INITIAL_WINDOW_SECONDS = 0.004
"""The initial window, in time at the cap's rate: many connections may begin at a time."""
MIN_WINDOW, MAX_WINDOW = 2, 10
"""Segments; the kernel's own is ten."""
AS_USUAL = Birth()
REST_AT_ONCE: Final = 1_000_000
"""Bits/s. Under caps up to here one piece takes half a second and more: such a subflow rests from its beginning, until
the others are seen to carry too little."""
LARGE_BOUND = 65_536
"""Bytes. As much as the scheduler assigns at once: no less goodput up to 2 Gbit/s was seen."""
UNANTICIPATED = Birth(not_sent=LARGE_BOUND)
_ALL_IPV4: Final = ip_network("0.0.0.0/0")
_AROUND_IPV4: Final = tuple(ip_network((mapped(bytes(4)), 96)).supernet(new_prefix=length) for length in range(96))
"""The IPv6 prefixes that have all IPv4-mapped addresses in them, ``::/0`` for one."""


def unsent(rate: int) -> int:
    """Return how many bytes may wait on a subflow that is held at *rate* bits/s."""
    return max(1, int(rate / 8 * UNSENT_SECONDS))


def held(rate: int) -> SocketLimit:
    """Return the limits of a subflow that is held at *rate* bits/s."""
    return SocketLimit(rate, unsent(rate))


def under_cap(ceil: int, class_id: int | None = None, *, rests: bool = False) -> Birth:
    """Return with what a subflow begins under a cap of *ceil* bits/s. *rests*: this host can wake one that rests."""
    window = max(MIN_WINDOW, int(ceil * INITIAL_WINDOW_SECONDS / 8 / MTU))
    return Birth(unsent(ceil), window if window < MAX_WINDOW else None, class_id, rests and ceil <= REST_AT_ONCE)


def births(
    policy: Policy, open_rules: Sequence[bool], class_of: Callable[[ScopeKey], int | None], *, rests: bool = False
) -> dict[Network, Birth]:
    """Return what the client prefixes of *policy* get while those of its rules hold whose hours are open.

    *class_of* returns the handle of a cap's class, None where there is none yet. *rests* is as for :func:`under_cap`.
    """
    rules = [rule for rule, is_open in zip(policy.rules, open_rules, strict=True) if is_open and _answers(rule)]
    paths = policy.paths.values()
    decided = _Decided(paths, rules)
    found: dict[Network, Birth] = {}
    for path in paths:
        rule, number = _capping(path, rules) if _by_address_alone(path) else (None, 0)
        birth = AS_USUAL if rule is None else _under(rule, policy.anticipate, class_of, rests=rests)
        for network in path.clients or ():
            found.setdefault(network, AS_USUAL if rule is None or decided.before(network, number) else birth)
    # They are looked up with IPv4 addresses mapped into IPv6, and a policy's IPv6 prefix is for no IPv4 client.
    if any(found.get(network, AS_USUAL) != AS_USUAL for network in _AROUND_IPV4):
        found.setdefault(_ALL_IPV4, AS_USUAL)
    # Without any cap there is nothing to do; with one, the other prefixes are exceptions within it.
    return found if any(birth != AS_USUAL for birth in found.values()) else {}


def of_clients(single: Mapping[bytes, bool]) -> dict[Network, Birth | None]:
    """Return what client addresses get: by whether each is known to have a single path."""
    return {ip_network(address): UNANTICIPATED if is_single else None for address, is_single in single.items()}


def _answers(rule: Rule) -> bool:
    return Direction.DOWN in rule.direction and rule.answers(Kind.THROTTLE)


def _by_address_alone(path: PathMatch) -> bool:
    return path.model_fields_set == {"clients"}


def _capping(path: PathMatch, rules: Sequence[Rule]) -> tuple[Rule | None, int]:
    """Return the rule that caps every subflow on a path, None where it leaves some connections alone or there is none,
    and its place in *rules*."""
    for number, rule in enumerate(rules):
        if rule.paths is not None and path.name not in rule.paths:
            continue
        conditional = not all(each.is_certain(ANTICIPATED) for each in rule.conditions(Kind.THROTTLE))
        return (None if conditional or rule.throttle is None else rule), number
    return None, 0


def _under(rule: Rule, anticipates: bool, class_of: Callable[[ScopeKey], int | None], *, rests: bool) -> Birth:
    """Return with what the subflows that *rule* caps begin."""
    throttle = rule.throttle
    assert throttle is not None
    if not anticipates:
        return UNANTICIPATED
    class_id = class_of(ScopeKey(rule.name, Share.PATH)) if throttle.share is Share.PATH else None
    if throttle.onset is not Onset.SOFT:
        return Birth(class_id=class_id)
    return under_cap(throttle.ceil, class_id, rests=rests)


class _Decided:
    """Which rule is the first that decides about something on the paths of a prefix's clients."""

    def __init__(self, paths: Collection[PathMatch], rules: Sequence[Rule]) -> None:
        places: dict[str, int] = {}
        for place, rule in enumerate(rules):
            for name in rule.paths or ():
                places.setdefault(name, place)
        deciding = sorted((path for path in paths if path.name in places), key=lambda path: places[path.name])
        self._of_all = min((places[path.name] for path in deciding if path.clients is None), default=math.inf)
        self._of = Prefixes((network, places[path.name]) for path in deciding for network in path.clients or ())
        """Of each prefix the first."""

    def before(self, network: Network, place: int) -> bool:
        """Tell whether a rule above that at *place* decides about clients of all of *network*. Of what is in a path in
        part, that part has a birth of its own."""
        return self._of_all < place or any(each < place for each in self._of.around(network))
