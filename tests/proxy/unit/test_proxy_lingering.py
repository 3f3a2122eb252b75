# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Squid does not read its configuration for each change of flapping addresses."""

from __future__ import annotations

import itertools
from ipaddress import ip_network

import pytest

from mptcp_proxy.own_addresses import Lingering, Network, Spacing

HOME, GUEST = ip_network("10.0.0.1/32"), ip_network("10.9.9.9/32")
BOTH = frozenset({HOME, GUEST})


def test_squid_gets_a_flapping_address_once() -> None:
    lingering = Lingering[Network](seconds=10.0)
    lists = [lingering.update({HOME}, 0.0)[0]]
    for second in range(1, 600):
        listed, _ = lingering.update({HOME, GUEST} if second % 2 else {HOME}, float(second))
        if listed != lists[-1]:
            lists.append(listed)
    assert lists == [{HOME}, {HOME, GUEST}]


def test_new_address_is_denied_immediately_and_a_deleted_address_lingers() -> None:
    lingering = Lingering[Network](seconds=10.0)
    # The result also has the time when the next lingering address expires.
    assert lingering.update({HOME, GUEST}, 0.0) == (BOTH, None)
    assert lingering.update({HOME}, 1.0) == (BOTH, 11.0)
    assert lingering.update({HOME}, 10.9) == (BOTH, 11.0)
    assert lingering.update({HOME}, 11.0) == (frozenset({HOME}), None)


def test_long_lived_address_lingers_as_long_as_a_short_lived_address() -> None:
    lingering = Lingering[Network](seconds=10.0)
    lingering.update({HOME, GUEST}, 0.0)
    assert lingering.update({HOME}, 3600.0) == (BOTH, 3610.0)
    assert lingering.update({HOME, GUEST}, 3605.0) == (BOTH, None)


def reload_times(interval: float, until: float) -> list[float]:
    """Return the times before *until* at which Squid reloads if a new address appears every *interval* seconds."""
    spacing, times, changed_at, now = Spacing(minimum=2.0, maximum=60.0, quiet=60.0), list[float](), -1.0, 0.0
    while now < until:
        if now % interval == 0:
            changed_at = max(changed_at, now)
        if changed_at >= 0 and spacing.earliest(now) <= now:
            spacing.record(now)
            times.append(now)
            changed_at = -1.0
        now += 1.0
    return times


@pytest.mark.parametrize(("interval", "max_reloads"), [(1.0, 65), (5.0, 65), (20.0, 65), (50.0, 75)])
def test_reloads_for_many_new_addresses_become_rarer(interval: float, max_reloads: int) -> None:
    """Defect: Squid reloaded for each new address, up to once a second, and refused clients during each reload."""
    times = reload_times(interval, 3600.0)
    assert times[0] == 0.0
    assert len(times) <= max_reloads
    assert min(later - earlier for earlier, later in itertools.pairwise(times[10:])) >= 60.0


def test_reload_is_immediate_again_after_a_quiet_time() -> None:
    spacing = Spacing(minimum=2.0, maximum=60.0, quiet=60.0)
    assert spacing.earliest(5.0) == 5.0
    for now in (5.0, 7.0, 11.0, 19.0, 35.0):
        assert spacing.earliest(now) == now
        spacing.record(now)
    assert spacing.interval == 32.0
    assert spacing.earliest(36.0) == 67.0
    # A pause of twice the interval resets the interval.
    spacing.record(99.0)
    assert spacing.interval == 2.0
    assert reload_times(120.0, 1000.0) == [0.0, 120.0, 240.0, 360.0, 480.0, 600.0, 720.0, 840.0, 960.0]
