"""What the kernel is to have for any uplinks in any state."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mptcp_gateway.model import Access, Verdict, Way
from mptcp_gateway.plan import BEST_TABLE, FIRST_TABLE, Endpoint, best, planned

ORDER = ("dsl", "lte", "sat")
WAYS = [Way(uplink, version) for uplink in ORDER for version in (4, 6)]
RANK = (Verdict.GOOD, Verdict.UNTRIED, Verdict.PLAIN, Verdict.DEAD)


def access(way: Way, alone: bool) -> Access:
    number = ORDER.index(way.uplink)
    address = ip_address(f"10.{number}.0.2" if way.version == 4 else f"fd00:{number}::2")
    network = ip_network(f"10.{number}.0.0/24" if way.version == 4 else f"fd00:{number}::/64")
    return Access(f"u{number}", 10 + number, address, None if alone else network, None if alone else network[1])


states = st.dictionaries(st.sampled_from(WAYS), st.tuples(st.booleans(), st.sampled_from(RANK)))


@given(states)
def test_what_holds_for_all(state: dict[Way, tuple[bool, Verdict]]) -> None:
    found = {way: access(way, alone) for way, (alone, _) in state.items()}
    verdicts = {way: verdict for way, (_, verdict) in state.items()}
    wanted = planned(ORDER, found, verdicts)
    for way, each in found.items():
        # What leaves from its address leaves by its own device.
        (rule,) = [rule for rule in wanted.rules if rule.source == each.address]
        assert rule.table == FIRST_TABLE + ORDER.index(way.uplink)
        routes = [each for each in wanted.routes if (each.table, each.version) == (rule.table, way.version)]
        assert {route.index for route in routes} == {each.index}
        assert [route.gateway for route in routes if route.to is None] == [each.gateway]
        assert [route.to for route in routes if route.to is not None] == ([each.network] if each.network else [])
    for version in (4, 6):
        of_version = [way for way in found if way.version == version]
        chosen = best(ORDER, verdicts, version)
        assert (chosen is None) is (not of_version), "while there is a way, there is one to begin on"
        defaults = [each for each in wanted.routes if (each.table, each.version) == (BEST_TABLE, version)]
        if chosen is None:
            assert defaults == []
            continue
        keys = [(RANK.index(verdicts[way]), ORDER.index(way.uplink)) for way in of_version]
        assert (RANK.index(verdicts[chosen]), ORDER.index(chosen.uplink)) == min(keys)
        assert [each.index for each in defaults] == [found[chosen].index]
    alive = [way for way in found if verdicts[way] is not Verdict.DEAD]
    carrying = [way for way in alive or found if verdicts[way] is not Verdict.PLAIN]
    assert wanted.endpoints == {Endpoint(found[way].address, found[way].device) for way in carrying}
