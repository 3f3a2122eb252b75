# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the sampler: which subflows are sampled, by sweeps or look-ups, and which samples each consumer gets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.runtime import sampler as sampler_module
from mptcp_throttler.runtime.event_loop import LATE_SECONDS, RECENT_SECONDS, LoopDelayMeter
from mptcp_throttler.runtime.sampler import IDLE_SECONDS, PAUSE_RATIO, SLICE_SECONDS, Sampler
from mptcp_throttler.stages.stage import Samples


def subflow(number: int) -> FourTuple:
    return FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\1", number)


class FakeSockets:
    def __init__(self, count: int) -> None:
        self.by_four_tuple = {
            subflow(n): KernelSubflow(n, subflow(n), True, 0, 0, False, 0.0, cookie=n) for n in range(count)
        }
        self.lookups = 0
        self.dumps = 0
        self.broken = False

    def batches(self) -> Iterator[Sequence[KernelSubflow]]:
        self.dumps += 1
        if self.broken:
            raise KernelError("list TCP sockets: no")
        found = list(self.by_four_tuple.values())
        for start in range(0, len(found), 60):
            yield found[start : start + 60]

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, KernelSubflow]:
        self.lookups += len(four_tuples)
        return {each: self.by_four_tuple[each] for each in four_tuples if each in self.by_four_tuple}

    def close(self) -> None: ...


class FakeConsumer:
    interval, period, urgent_share = 0.02, 0.1, 0.1

    def __init__(
        self, watched: Collection[FourTuple] = (), urgent: Collection[FourTuple] = (), *, by_request: bool = True
    ) -> None:
        self._watched, self._urgent, self.by_request = watched, urgent, by_request
        self.samples: list[tuple[int, set[FourTuple], set[FourTuple], bool]] = []
        """Per call: number of requested subflows, the subflows, those with a socket, and whether all are included."""
        self.failures = 0

    def watches_any(self) -> bool:
        return bool(self._watched)

    def watched(self) -> Collection[FourTuple]:
        return self._watched

    def urgent(self) -> Collection[FourTuple]:
        return self._urgent

    def observe(self, samples: Samples) -> Iterator[None]:
        requested = samples.requested
        existing = {each for each in requested if each in samples.sockets}
        self.samples.append((len(requested), set(requested), existing, samples.complete))
        yield

    def sampling_failed(self, now: float) -> None:
        self.failures += 1


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def sample_once(sampler: Sampler) -> None:
    """Run one pass of the sampler, which otherwise repeats such passes."""
    await sampler.sample_watched()
    await sampler.look_up_urgent()


def sampler_of(sockets: FakeSockets, *consumers: FakeConsumer) -> Sampler:
    return Sampler(cast(KernelSockets, sockets), consumers, lambda: len(sockets.by_four_tuple), lambda outcome: None)


def test_no_socket_is_read_if_no_subflow_is_watched() -> None:
    sockets = FakeSockets(100)
    run(sample_once(sampler_of(sockets, FakeConsumer())))
    assert (sockets.dumps, sockets.lookups) == (0, 0)


def test_many_watched_subflows_are_read_by_one_sweep() -> None:
    sockets = FakeSockets(1000)
    # One of the urgent subflows is also watched, the other one is not.
    urgent = [subflow(79), subflow(99)]
    first = FakeConsumer([subflow(n) for n in range(80)], urgent)
    second = FakeConsumer([subflow(n) for n in range(990)])
    run(sample_once(sampler_of(sockets, first, second)))
    assert sockets.dumps == 1
    assert [count for count, _, _, complete in first.samples if complete] == [81]
    assert [count for count, _, _, _ in second.samples] == [990]


def test_cookies_come_from_the_latest_sweep_if_it_is_new_enough() -> None:
    sockets = FakeSockets(3)
    sampler = sampler_of(sockets, FakeConsumer([subflow(1)]))
    assert sampler.cookies(0.0) is None, "there are cookies before the first sweep"

    async def scenario() -> None:
        await sampler.sweep()
        sweep_time = sampler.latest_time
        assert sampler.cookies(sweep_time) == {0, 1, 2}
        await sample_once(sampler)
        assert sampler.cookies(sweep_time) == {0, 1, 2}
        assert sampler.cookies(sweep_time + 0.001) is None

    run(scenario())


def test_loop_runs_while_missing_subflows_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching the samples for ten thousand subflows takes milliseconds."""
    monkeypatch.setattr(sampler_module, "SLICE_SECONDS", 0.0)

    class CountingDict(dict[FourTuple, KernelSubflow]):
        lookups = max_lookups = 0

        def __contains__(self, key: object) -> bool:
            self.lookups += 1
            self.max_lookups = max(self.max_lookups, self.lookups)
            return super().__contains__(key)

    class IdleConsumer(FakeConsumer):
        def observe(self, samples: Samples) -> Iterator[None]:
            yield

    count = 20 * sampler_module.CHECK_CHUNK
    sockets = FakeSockets(count)
    sampler = sampler_of(sockets, IdleConsumer([subflow(number) for number in range(count)]))
    sampler.latest = counting = CountingDict()

    async def scenario() -> None:
        async def reset_counts() -> None:
            while True:
                counting.lookups = 0
                await asyncio.sleep(0)

        resets = asyncio.create_task(reset_counts())
        await sampler.sweep()
        resets.cancel()

    run(scenario())
    assert 0 < counting.max_lookups <= sampler_module.CHECK_CHUNK


def test_few_watched_subflows_are_looked_up() -> None:
    sockets = FakeSockets(1000)
    consumer = FakeConsumer([subflow(1), subflow(5000)])
    run(sample_once(sampler_of(sockets, consumer)))
    assert (sockets.dumps, sockets.lookups) == (0, 2)
    assert consumer.samples == [(2, {subflow(1), subflow(5000)}, {subflow(1)}, True)], (
        "wrong samples: only one of the two subflows has a socket"
    )


def test_subflows_watched_by_several_consumers_are_looked_up_once() -> None:
    sockets = FakeSockets(1000)
    consumers = [FakeConsumer([subflow(n) for n in range(400)]) for _ in range(3)]
    run(sampler_of(sockets, *consumers).sample_watched())
    assert (sockets.dumps, sockets.lookups) == (0, 400)


def test_urgent_subflows_are_looked_up_between_sweeps() -> None:
    sockets = FakeSockets(1000)
    consumer = FakeConsumer(urgent=[subflow(3)])
    run(sample_once(sampler_of(sockets, consumer)))
    assert consumer.samples == [(1, {subflow(3)}, {subflow(3)}, False)]
    assert sockets.dumps == 0


def test_tracker_gets_the_batches_of_the_same_sweep() -> None:
    sockets = FakeSockets(150)
    consumer = FakeConsumer([subflow(1)])
    batches: list[int] = []
    run(sampler_of(sockets, consumer).sweep(lambda piece: batches.append(len(piece))))
    assert batches == [60, 60, 30]
    assert sockets.dumps == 1
    assert len(consumer.samples) == 1


def test_failed_sweep_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    sockets = FakeSockets(1000)
    sockets.broken = True
    consumer = FakeConsumer([subflow(n) for n in range(1000)])

    async def scenario() -> None:
        task = asyncio.create_task(sampler_of(sockets, consumer).run())
        async with asyncio.timeout(60):
            while not consumer.failures:  # noqa: ASYNC110 - no event exists for this
                await asyncio.sleep(0.001)
        task.cancel()

    run(scenario())
    assert consumer.failures == 1
    assert f"list TCP sockets: no; sampling again in {IDLE_SECONDS:g} s" in caplog.text


def test_loop_delay_meter_keeps_the_longest_and_the_recent_delay() -> None:
    meter = LoopDelayMeter()
    meter.record(1.0, 2 * LATE_SECONDS)
    meter.record(2.0, 0.001)
    assert meter.as_json() == {"longest": 0.1, "recent": 0.1, "late": 1}
    meter.record(1.5 + RECENT_SECONDS, 0.002)
    assert meter.as_json() == {"longest": 0.1, "recent": 0.002, "late": 1}


def test_long_sweeps_do_not_delay_urgent_look_ups() -> None:
    sockets = FakeSockets(1000)
    consumer = FakeConsumer([subflow(n) for n in range(900)], urgent=[subflow(3)])
    sampler = sampler_of(sockets, consumer)

    async def scenario() -> None:
        await sampler.sweep()
        sampler.sweep_seconds = 10.0
        await sample_once(sampler)

    run(scenario())
    assert [complete for _, _, _, complete in consumer.samples] == [True, False]


def test_urgent_subflows_are_looked_up_during_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "SLICE_SECONDS", 0.0)
    sockets = FakeSockets(1000)
    all_subflows = [subflow(n) for n in range(900)]
    stage = FakeConsumer(all_subflows, urgent=[subflow(3)], by_request=False)
    transitions = FakeConsumer(all_subflows, urgent=[subflow(3)])
    sampler = sampler_of(sockets, transitions, stage)

    async def scenario() -> None:
        sweep = asyncio.create_task(sampler.sweep())
        while subflow(3) not in sampler.latest:  # noqa: ASYNC110 - no event exists for this
            await asyncio.sleep(0)
        await sampler.look_up_urgent()
        assert not sweep.done()
        await sweep

    run(scenario())
    assert [(count, complete) for count, _, _, complete in transitions.samples] == [(1, False), (899, True)], (
        "the sweep's sample counted, although it is older than the look-up"
    )
    assert [(count, complete) for count, _, _, complete in stage.samples] == [(900, True)], (
        "the stage got a sample during the sweep"
    )


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.parametrize("uses_sweep", [True, False])
def test_subflow_that_joins_during_sampling_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, by_request: bool, uses_sweep: bool
) -> None:
    monkeypatch.setattr(sampler_module, "SLICE_SECONDS", 0.0)
    sockets = FakeSockets(1000)
    count = 900 if uses_sweep else 200
    consumer = FakeConsumer([subflow(n) for n in range(count)], by_request=by_request)
    sampler = sampler_of(sockets, consumer)
    sampler._count_sockets = lambda: 1000

    async def scenario() -> None:
        sampling = asyncio.create_task(sampler.sample_watched())
        while not (sampler.latest or sockets.lookups):  # noqa: ASYNC110 - no event exists for this
            await asyncio.sleep(0)
        joined = subflow(5000)
        sockets.by_four_tuple[joined] = sockets.by_four_tuple[subflow(0)]._replace(four_tuple=joined)
        consumer._watched = [*consumer._watched, joined, subflow(6000)]
        assert not sampling.done()
        await sampling

    # The dump has already passed the new subflow's position in the kernel's table.
    listed = list(sockets.by_four_tuple.values())
    monkeypatch.setattr(sockets, "batches", lambda: (listed[at : at + 60] for at in range(0, 1000, 60)))
    run(scenario())
    ((_, requested, found, _),) = consumer.samples
    assert {subflow(5000), subflow(6000)} <= requested
    assert found == {subflow(5000), *(subflow(n) for n in range(count))}, "not exactly the subflow 6000 lacks a sample"


def test_consumer_gets_the_samples_of_a_subflow_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "SLICE_SECONDS", 0.0)
    sockets = FakeSockets(1000)
    values: dict[str, list[tuple[float, int]]] = {"transitions": [], "stage": []}

    class RecordingConsumer(FakeConsumer):
        def __init__(self, name: str, by_request: bool) -> None:
            super().__init__([subflow(n) for n in range(900)], urgent=[subflow(3)], by_request=by_request)
            self._name = name

        def observe(self, samples: Samples) -> Iterator[None]:
            for each in samples.requested:
                if each == subflow(3):
                    values[self._name].append((samples.time, samples.sockets[each].bytes_acked))
            yield
            yield

    sampler = sampler_of(sockets, RecordingConsumer("transitions", True), RecordingConsumer("stage", False))

    def acknowledge_more() -> None:
        old = sockets.by_four_tuple[subflow(3)]
        sockets.by_four_tuple[subflow(3)] = old._replace(bytes_acked=old.bytes_acked + 1)

    async def scenario() -> None:
        for state in sampler._states:
            state.next_urgent = 0.0
        sweep = asyncio.create_task(sampler.sweep())
        while not sweep.done():
            acknowledge_more()
            await asyncio.sleep(0)
            for state in sampler._states:
                state.next_urgent = 0.0
            await sampler.look_up_urgent()
        acknowledge_more()  # On a slow machine, the next look-up is due immediately.
        await sampler.look_up_urgent()

    run(scenario())
    assert len(values["transitions"]) > len(values["stage"]) >= 1
    for samples in values.values():
        assert samples == sorted(samples)
        assert len({octets for _, octets in samples}) == len(samples), "a sample is not newer than the previous one"


def test_urgent_subflow_need_not_be_watched() -> None:
    consumer = FakeConsumer([subflow(1)], urgent=[subflow(3)], by_request=False)
    consumer.interval = 60.0
    run(sample_once(sampler_of(FakeSockets(1000), consumer)))
    assert [(requested, complete) for _, requested, _, complete in consumer.samples] == [
        ({subflow(1)}, True),
        ({subflow(3)}, False),
    ]


def test_subflow_that_becomes_urgent_during_a_sweep_is_looked_up_next() -> None:
    consumer = FakeConsumer()
    sampler = sampler_of(FakeSockets(10), consumer)

    async def scenario() -> None:
        async with sampler._states[0].lock:
            consumer._urgent = [subflow(3)]
            await sampler.look_up_urgent()
            assert not consumer.samples
        assert sampler._pause_to_urgent() <= 0
        await sampler.look_up_urgent()
        assert len(consumer.samples) == 1

    run(scenario())


def test_sweep_with_pauses_pauses_in_proportion_to_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    original_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await original_sleep(0)

    sampler = sampler_of(FakeSockets(50_000), FakeConsumer([subflow(1)]))

    async def scenario() -> None:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await sampler.sweep()
        assert set(pauses) == {0.0}
        pauses.clear()
        await sampler.sweep(with_pauses=True)

    run(scenario())
    # The zeros are yields without a pause.
    real_pauses = [seconds for seconds in pauses if seconds]
    assert real_pauses
    assert min(real_pauses) >= PAUSE_RATIO * SLICE_SECONDS
