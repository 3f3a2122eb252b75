"""How many clients there are, as connections come, change and end."""

from __future__ import annotations

from fake_kernel import four_tuple
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.mptcp.model import Connection, Subflow, SubflowState
from mptcp_throttler.telemetry.clients import Clients


def connection(token: int, *clients: str, initial: bool = True) -> Connection:
    subflows = [
        Subflow(four_tuple(client), SubflowState.ACTIVE, initial and not place, 0, place, False, "w0", 0.0)
        for place, client in enumerate(clients)
    ]
    return Connection(token, tuple(subflows), 0.0)


_change = st.tuples(
    st.integers(1, 4),
    st.one_of(st.none(), st.lists(st.sampled_from(["10.1.0.1", "10.1.0.2", "fd00::1"]), max_size=2)),
    st.booleans(),
)


@given(st.lists(_change, max_size=40))
def test_each_address_that_has_a_connection_is_one(changes: list[tuple]) -> None:  # type: ignore[type-arg]
    clients, there = Clients(), dict[int, Connection]()
    for token, addresses, initial in changes:
        there.pop(token, None)
        now = None if addresses is None else connection(token, *addresses, initial=initial)
        if now is not None:
            there[token] = now
        clients.decided(token, now, (), (), 0.0)
        assert len(clients) == len({each.client for each in there.values()})
