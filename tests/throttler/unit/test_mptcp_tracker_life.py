"""The tracker on the wire, after the handshake: endings, priority, lingering connections, reuse of four-tuples."""

from __future__ import annotations

import pytest
from mptcp_dialogue import (
    ACK,
    ACTIVE,
    CHANGED,
    CLOSED,
    ENDED,
    OPENED,
    REFUSED,
    RST,
    Host,
    announced,
    feed,
    opened,
    states,
)

from mptcp_throttler.mptcp.model import SubflowState
from mptcp_throttler.mptcp.options import Malformed, MpFastclose, MpPrio, MpTcprst, RemoveAddr
from mptcp_throttler.mptcp.tracker import Tracker


class TestLaterLife:
    @pytest.mark.parametrize("first", ["client", "proxy"])
    def test_fins(self, tracker: Tracker, host: Host, first: str) -> None:
        path = opened(tracker, host)
        one, two = (path.fin(), path.proxy_fin()) if first == "client" else (path.proxy_fin(), path.fin())
        events = feed(tracker, one)
        assert [(event.kind.value, event.detail) for event in events] == [(CHANGED, f"FIN from the {first}")]
        assert tracker.connections[host.token].active == ()
        assert states(tracker, host) == {path.four_tuple: SubflowState.CLOSING}
        assert announced(tracker, two) == [CLOSED]
        assert states(tracker, host) == {}

    def test_reset_of_one_of_two(self, tracker: Tracker, host: Host) -> None:
        initial, path = opened(tracker, host), host.join()
        feed(tracker, *path.handshake())
        (event,) = feed(tracker, initial.rst(MpTcprst(1, 5)))
        assert (event.kind.value, event.detail) == (CLOSED, "RST from the client, MP_TCPRST reason 5")
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}

    def test_reset_while_closing(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.fin(), path.proxy_rst()) == [CHANGED, CLOSED]

    def test_fast_close_needs_the_key(self, tracker: Tracker, host: Host) -> None:
        initial, path = opened(tracker, host), host.join()
        feed(tracker, *path.handshake())
        assert announced(tracker, path.from_client(ACK, MpFastclose(host.client_key))) == []
        assert announced(tracker, path.from_client(ACK, MpFastclose(host.proxy_key))) == [CLOSED, CLOSED, ENDED]
        assert announced(tracker, initial.proxy_rst()) == []

    def test_fast_close_by_the_proxy(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.from_proxy(RST, MpFastclose(host.client_key))) == [CLOSED, ENDED]

    def test_nothing_follows_the_end(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        last = path.from_client(RST, MpFastclose(host.proxy_key), MpPrio(True, None))
        assert announced(tracker, last) == [CLOSED, ENDED]

    def test_priority_is_what_the_kernel_says(self, tracker: Tracker, host: Host) -> None:
        """It takes no option of RFC 6824's length, nor a segment with a wrong checksum; the wire shows either."""
        path = opened(tracker, host)
        for option in (MpPrio(True, None), MpPrio(True, path.remote_id)):
            assert announced(tracker, path.from_client(ACK, option), path.from_proxy(ACK, option)) == []
        assert not tracker.connections[host.token].subflows[0].backup

    def test_remove_addr_ends_nothing(self, tracker: Tracker, host: Host) -> None:
        initial, live, half_open = opened(tracker, host), host.join(), host.join("203.0.113.2")
        feed(tracker, *live.handshake(), half_open.syn(), half_open.syn_ack())
        gone = RemoveAddr((live.remote_id, half_open.remote_id, 0))
        assert announced(tracker, initial.from_client(ACK, gone)) == []
        assert announced(tracker, half_open.ack()) == [ACTIVE]
        assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}
        assert len(states(tracker, host)) == 3

    def test_malformed_options_are_counted(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.from_client(ACK, Malformed(1, "short", b""), Malformed(None, "long", b""))) == []
        assert tracker.counters.malformed == 2


class TestWithoutSubflows:
    def test_a_connection_lingers_for_a_join_to_find(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.rst()) == [CLOSED]
        assert tracker.expire(host.time + 9) == []
        host.time += 9
        join = host.join()
        assert announced(tracker, *join.handshake()) == [ACTIVE]
        assert tracker.expire(host.time + 60) == []

    def test_and_closes_if_none_comes(self, tracker: Tracker, host: Host) -> None:
        feed(tracker, opened(tracker, host).rst())
        (event,) = tracker.expire(host.time + 10)
        assert (event.kind.value, event.token) == (ENDED, host.token)
        assert not any(tracker.table_sizes.values())
        assert announced(tracker, host.join().syn()) == [REFUSED]

    def test_it_waits_for_a_join_under_way(self, tracker: Tracker, host: Host) -> None:
        feed(tracker, opened(tracker, host).rst())
        host.time += 9
        join = host.join()
        feed(tracker, join.syn(), join.syn_ack())
        assert tracker.expire(host.time + 5) == []
        assert announced(tracker, join.ack()) == [ACTIVE]

    def test_a_join_that_fails_gains_no_time(self, tracker: Tracker, host: Host) -> None:
        feed(tracker, opened(tracker, host).rst())
        ended = host.time
        host.time += 9
        join = host.join()
        assert announced(tracker, join.syn(), join.proxy_rst()) == [REFUSED]
        assert len(tracker.expire(ended + 10)) == 1

    def test_a_token_may_return_after_its_connection(self, tracker: Tracker, host: Host) -> None:
        feed(tracker, opened(tracker, host).rst())
        assert announced(tracker, *host.initial(port=40001).handshake()) == [ENDED, OPENED, ACTIVE]

    def test_but_not_while_it_lives(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, *host.initial(port=40001).handshake()) == []
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}


class TestReuse:
    def test_a_syn_disturbs_no_live_subflow(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        for attempt in (path.again().syn(), path.again().plain_syn(), Host("attacker").initial().syn()):
            assert announced(tracker, attempt) == []
            assert len(tracker.connections[host.token].active) == 1

    def test_the_answer_to_it_does(self, tracker: Tracker, host: Host) -> None:
        """The client rebooted: same addresses and ports, another connection; no FIN, no RST."""
        path = opened(tracker, host)
        rebooted = Host("rebooted", host.time)
        new = rebooted.initial().again()
        events = feed(tracker, new.syn(), new.syn_ack(), new.ack())
        assert [(event.kind.value, event.token) for event in events] == [
            (CLOSED, host.token),
            (OPENED, rebooted.token),
            (ACTIVE, rebooted.token),
        ]
        assert new.four_tuple == path.four_tuple

    def test_an_answer_without_mptcp_does_as_well(self, tracker: Tracker, host: Host) -> None:
        new = opened(tracker, host).again()
        assert announced(tracker, new.plain_syn(), new.plain_syn_ack()) == [CLOSED]
        assert tracker.table_sizes["subflows"] == 0

    def test_a_new_attempt_replaces_a_syn_without_answer(self, tracker: Tracker, host: Host) -> None:
        old = host.initial()
        new = old.again()
        assert announced(tracker, old.syn(), *new.handshake()) == [OPENED, ACTIVE]
        assert tracker.table_sizes["subflows"] == 1

    def test_a_new_attempt_does_not_disturb_an_answered_one(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn(), path.syn_ack(), path.again().syn(), path.ack()) == [OPENED, ACTIVE]

    def test_quick_reuse_of_a_port(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        second = Host("second", host.time)
        again = second.initial().again()
        assert announced(tracker, path.fin(), path.proxy_fin(), *again.handshake()) == [CHANGED, CLOSED, OPENED, ACTIVE]
        assert announced(tracker, path.proxy_rst()) == [CLOSED], "a RST is believed, whatever its sequence number"

    def test_a_join_on_a_tuple_once_refused(self, tracker: Tracker, host: Host) -> None:
        path = host.join()
        assert announced(tracker, path.syn()) == [REFUSED]
        opened(tracker, host)
        assert announced(tracker, *path.handshake()) == [ACTIVE]

    def test_a_join_to_another_connection_takes_the_tuple_over(self, tracker: Tracker, host: Host) -> None:
        other = Host("other", host.time)
        opened(tracker, host)
        assert announced(tracker, *other.initial("198.51.100.2").handshake()) == [OPENED, ACTIVE]
        assert announced(tracker, *host.join().handshake()) == [ACTIVE]
        assert announced(tracker, *other.join().again().handshake()) == [CLOSED, ACTIVE]
