"""An address that comes and goes does not have Squid read its configuration each time."""

from __future__ import annotations

from ipaddress import ip_network

from mptcp_proxy.own_addresses import Lingering

HOME, GUEST = ip_network("10.0.0.1/32"), ip_network("10.9.9.9/32")


def test_an_address_that_flaps_is_told_once() -> None:
    lingering = Lingering(10.0)
    told = [lingering.wanted({HOME}, 0.0)[0]]
    for second in range(1, 600):
        wanted, _ = lingering.wanted({HOME, GUEST} if second % 2 else {HOME}, float(second))
        if wanted != told[-1]:
            told.append(wanted)
    assert told == [{HOME}, {HOME, GUEST}]


def test_a_new_one_is_refused_at_once_and_one_that_went_soon_no_longer() -> None:
    lingering = Lingering(10.0)
    assert lingering.wanted({HOME, GUEST}, 0.0) == ({HOME, GUEST}, None)
    assert lingering.wanted({HOME}, 1.0) == ({HOME, GUEST}, 11.0)
    assert lingering.wanted({HOME}, 10.9) == ({HOME, GUEST}, 11.0)
    assert lingering.wanted({HOME}, 11.0) == ({HOME}, None)


def test_one_that_was_there_for_long_stays_as_long_after_it_went() -> None:
    lingering = Lingering(10.0)
    lingering.wanted({HOME, GUEST}, 0.0)
    assert lingering.wanted({HOME}, 3600.0) == ({HOME, GUEST}, 3610.0)
    assert lingering.wanted({HOME, GUEST}, 3605.0) == ({HOME, GUEST}, None)
