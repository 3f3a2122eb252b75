"""Which released sockets are to be sampled, whatever happened to them before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from test_rate_transition import IDLE
from test_shaping_plan import subflow

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.shaping.releases import MAX_RECHECK_SECONDS, Limits, Releases
from mptcp_throttler.shaping.send_buffers import SendBuffers

SOCKETS = [subflow(number) for number in range(4)]
LIMITED = IDLE._replace(max_pacing_rate=1_000)

numbers = st.integers(0, len(SOCKETS) - 1)
steps = st.one_of(
    st.tuples(st.sampled_from(["begin", "await", "still limited", "taken", "gone", "capped"]), numbers),
    st.tuples(st.just("hurry"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 700)),
)


@given(st.lists(steps, max_size=60))
def test_due_are_those_whose_time_has_come_and_no_others(taken: list[tuple[str, int]]) -> None:
    subject, result, now = Releases(SendBuffers()), Limits({}, []), 0.0
    for step, number in taken:
        each = SOCKETS[number % len(SOCKETS)]
        if step == "wait":
            now += number / 10
        elif step == "begin":
            subject.begin(each, 1 + number, True, now, result)
        elif step == "await":
            subject.await_sample(each, now)
        elif step == "hurry":
            subject.hurry(now, 0.05)
        elif each in subject:
            limit = LIMITED if step == "still limited" else IDLE
            sample = None if step == "gone" else sampled(each, subject._released[each].cookie, limit)
            subject.check(each, sample, now, result, capped=step == "capped")
        assert set(subject.due(now)) == {name for name, each in subject._released.items() if each.due <= now}
        assert len(subject.due(now)) == len(set(subject.due(now)))
    # Of what came to an end nothing is kept for longer than the longest pause.
    for each in SOCKETS:
        if each in subject:
            subject.check(each, None, now, result, capped=False)
    subject.due(now + MAX_RECHECK_SECONDS)
    assert (subject._released, subject._waiting, subject._due) == ({}, [], {})


def sampled(name: FourTuple, cookie: int, tcp: TcpInfo) -> KernelSubflow:
    return KernelSubflow(1, name, True, 0, 0, False, 0.0, cookie=cookie or 9, tcp=tcp)
