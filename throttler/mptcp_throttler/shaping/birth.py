"""What the subflows to come have from their first segment on, by the client's prefix. Pure.

Under a cap little is to wait on a subflow, for what waits there cannot go by another path, and its first segments are
to be few, for they leave before anything is known of the connection. Where the policy says by the client's address
alone that a path is capped, its subflows are accepted like that, and into the class of a cap that all clients share:
of hundreds that begin at a time the entries would come after the first segments. A client that is known to have a
single path is not, but for a bound on what waits that costs nothing: should a second path come up, the cap finds
little to drain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network

from mptcp_throttler.policy.anticipation import ANTICIPATED
from mptcp_throttler.policy.model import Direction, Kind, Network, PathMatch, Policy, Rule, ScopeKey, Share
from mptcp_throttler.shaping.model import MTU, Birth, SocketLimit

UNSENT_SECONDS = 0.001
"""What may wait under a cap, in time at its rate: one segment up to some 10 Mbit/s. The scheduler then assigns a
segment when one can leave, and everything else goes by other paths."""
INITIAL_WINDOW_SECONDS = 0.004
"""The initial window, in time at the cap's rate: many connections may begin at a time."""
MIN_WINDOW, MAX_WINDOW = 2, 10
"""Segments; the kernel's own is ten."""
AS_USUAL = Birth()
UNANTICIPATED = Birth(not_sent=65_536)
"""As much as the scheduler assigns at once: no less goodput up to 2 Gbit/s was seen."""


def unsent(rate: int) -> int:
    """Return how many bytes may wait on a subflow that is held at *rate* bits/s."""
    return max(1, int(rate / 8 * UNSENT_SECONDS))


def held(rate: int) -> SocketLimit:
    """Return the limits of a subflow that is held at *rate* bits/s."""
    return SocketLimit(rate, unsent(rate))


def under_cap(ceil: int, class_id: int | None = None) -> Birth:
    """Return with what a subflow begins under a cap of *ceil* bits/s."""
    window = max(MIN_WINDOW, int(ceil * INITIAL_WINDOW_SECONDS / 8 / MTU))
    return Birth(unsent(ceil), window if window < MAX_WINDOW else None, class_id)


def births(
    policy: Policy, open_rules: Sequence[bool], class_of: Callable[[ScopeKey], int | None]
) -> dict[Network, Birth]:
    """Return what the client prefixes of *policy* get while those of its rules hold whose hours are open.

    *class_of* returns the handle of a cap's class, None where there is none yet.
    """
    if policy.dry_run:
        return {}
    rules = [rule for rule, is_open in zip(policy.rules, open_rules, strict=True) if is_open and _answers(rule)]
    found: dict[Network, Birth] = {}
    for path in policy.paths:
        rule = _capping(path, rules) if _by_address_alone(path) else None
        birth = AS_USUAL
        if rule is not None and rule.throttle is not None:
            shared = rule.throttle.share is Share.PATH
            class_id = class_of(ScopeKey(rule.name, Share.PATH)) if shared else None
            birth = under_cap(rule.throttle.ceil, class_id) if policy.anticipate else UNANTICIPATED
        for network in path.clients or ():
            found.setdefault(network, birth)
    # Without any cap there is nothing to do; with one, the other prefixes are exceptions within it.
    return found if any(birth != AS_USUAL for birth in found.values()) else {}


def of_clients(single: Mapping[bytes, bool]) -> dict[Network, Birth | None]:
    """Return what client addresses get: by whether each is known to have a single path."""
    return {ip_network(address): UNANTICIPATED if is_single else None for address, is_single in single.items()}


def _answers(rule: Rule) -> bool:
    return Direction.DOWN in rule.directions and rule.answers(Kind.THROTTLE)


def _by_address_alone(path: PathMatch) -> bool:
    others = (path.interfaces, path.remote_ids, path.initial, path.backup)
    return path.clients is not None and all(each is None for each in others)


def _capping(path: PathMatch, rules: Sequence[Rule]) -> Rule | None:
    """Return the rule that decides about every connection on a path; None where there is none, or not for every one."""
    first = next((rule for rule in rules if rule.paths is None or path.name in rule.paths), None)
    if first is None or first.clients is not None or first.least(Kind.THROTTLE) > ANTICIPATED:
        return None
    return first
