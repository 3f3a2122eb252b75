# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that addresses that come and go do not make Squid read its configuration each time."""

from __future__ import annotations

import itertools
from ipaddress import ip_network

import pytest

from mptcp_proxy.own_addresses import Lingering, Network, Spacing

HOME, GUEST = ip_network("10.0.0.1/32"), ip_network("10.9.9.9/32")
BOTH = frozenset({HOME, GUEST})


def test_an_address_that_flaps_is_told_once() -> None:
    lingering = Lingering[Network](10.0)
    told = [lingering.wanted({HOME}, 0.0)[0]]
    for second in range(1, 600):
        wanted, _ = lingering.wanted({HOME, GUEST} if second % 2 else {HOME}, float(second))
        if wanted != told[-1]:
            told.append(wanted)
    assert told == [{HOME}, {HOME, GUEST}]


def test_a_new_one_is_refused_at_once_and_one_that_went_soon_no_longer() -> None:
    lingering = Lingering[Network](10.0)
    assert lingering.wanted({HOME, GUEST}, 0.0) == (BOTH, None)
    assert lingering.wanted({HOME}, 1.0) == (BOTH, 11.0)
    assert lingering.wanted({HOME}, 10.9) == (BOTH, 11.0)
    assert lingering.wanted({HOME}, 11.0) == (frozenset({HOME}), None)


def test_one_that_was_there_for_long_stays_as_long_after_it_went() -> None:
    lingering = Lingering[Network](10.0)
    lingering.wanted({HOME, GUEST}, 0.0)
    assert lingering.wanted({HOME}, 3600.0) == (BOTH, 3610.0)
    assert lingering.wanted({HOME, GUEST}, 3605.0) == (BOTH, None)


def reloads(every: float, until: float) -> list[float]:
    """Return the times at which Squid is told, if a new address appears every *every* seconds."""
    spacing, told, wanted, now = Spacing(2.0, 60.0, 60.0), list[float](), -1.0, 0.0
    while now < until:
        if now % every == 0:
            wanted = max(wanted, now)
        if wanted >= 0 and spacing.earliest(now) <= now:
            spacing.done(now)
            told.append(now)
            wanted = -1.0
        now += 1.0
    return told


@pytest.mark.parametrize(("every", "most"), [(1.0, 65), (5.0, 65), (20.0, 65), (50.0, 75)])
def test_distinct_addresses_that_come_again_and_again_are_told_ever_more_seldom(every: float, most: int) -> None:
    """Defect: Squid was told of each address, once a second, and refuses clients for a moment each time."""
    told = reloads(every, 3600.0)
    assert told[0] == 0.0
    assert len(told) <= most
    assert min(later - earlier for earlier, later in itertools.pairwise(told[10:])) >= 60.0


def test_after_a_quiet_time_an_address_is_told_at_once_again() -> None:
    spacing = Spacing(2.0, 60.0, 60.0)
    assert spacing.earliest(5.0) == 5.0
    for now in (5.0, 7.0, 11.0, 19.0, 35.0):
        assert spacing.earliest(now) == now
        spacing.done(now)
    assert spacing.interval == 32.0
    assert spacing.earliest(36.0) == 67.0
    # This comes after a pause of twice the interval, which resets the interval.
    spacing.done(99.0)
    assert spacing.interval == 2.0
    assert reloads(120.0, 1000.0) == [0.0, 120.0, 240.0, 360.0, 480.0, 600.0, 720.0, 840.0, 960.0]
