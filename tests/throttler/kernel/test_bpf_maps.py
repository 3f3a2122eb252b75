"""BPF maps, many entries at a time: what is set is taken out once, and a full map is an error in words."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mptcp_throttler.kernel.bpf import Bpf, Map
from mptcp_throttler.kernel.known_map import KnownMap
from mptcp_throttler.kernel.ports import KernelError

pytestmark = pytest.mark.kernel

ROOM = 5000
"""More than are taken out at a time."""


@pytest.fixture(params=["many at a time", "one by one"])
def bpf(request: pytest.FixtureRequest) -> Iterator[Bpf]:
    bpf = Bpf()
    # As on a kernel before 5.6.
    bpf._batches = request.param == "many at a time"
    yield bpf
    bpf.close()


@pytest.fixture
def table(bpf: Bpf) -> Map:
    return bpf.hash_map("mptcp_test", 8, 12, ROOM)


def entries(count: int, first: int = 0) -> dict[bytes, bytes]:
    return {n.to_bytes(8, "little"): n.to_bytes(12, "little") for n in range(first, first + count)}


def update(bpf: Bpf, table: Map, what: dict[bytes, bytes]) -> None:
    bpf.update_batch(table, b"".join(what), b"".join(what.values()))


def test_what_was_set_is_taken_out_once(bpf: Bpf, table: Map) -> None:
    assert list(bpf.drain(table)) == []
    update(bpf, table, {})
    update(bpf, table, entries(ROOM))
    update(bpf, table, {bytes(8): b"changed     "})
    assert dict(bpf.drain(table)) == entries(ROOM) | {bytes(8): b"changed     "}
    assert list(bpf.drain(table)) == []


def test_what_is_forgotten_is_gone_and_unknown_keys_are_fine(bpf: Bpf, table: Map) -> None:
    update(bpf, table, entries(100))
    bpf.delete_batch(table, b"".join(entries(200, first=50)))
    assert dict(bpf.drain(table)) == entries(50)


def test_a_full_map_is_an_error_in_words_and_keeps_what_it_has(bpf: Bpf, table: Map) -> None:
    update(bpf, table, entries(ROOM - 10))
    with pytest.raises(KernelError, match=f"the BPF map mptcp_test is full: it has room for {ROOM} entries"):
        update(bpf, table, entries(20, first=ROOM))
    bpf.delete_batch(table, b"".join(entries(20)))
    update(bpf, table, entries(20, first=2 * ROOM))
    left = dict(bpf.drain(table))
    assert entries(ROOM - 30, first=20).items() <= left.items()
    assert entries(20, first=2 * ROOM).items() <= left.items()


@pytest.mark.parametrize("kind", ["hash_map", "prefix_map"])
def test_a_glance_costs_the_same_however_many_entries_there_are(bpf: Bpf, kind: str) -> None:
    many = 100_000
    table = getattr(bpf, kind)("mptcp_test", 20, 12, many + 10)
    known = KnownMap(bpf, table)
    ours = {(128).to_bytes(4, "little") + n.to_bytes(16, "big"): n.to_bytes(12, "little") for n in range(many)}
    known.update(ours)
    assert not known.looks_changed()
    costs = []
    for _ in range(50):
        began = time.thread_time()
        assert not known.looks_changed()
        costs.append(time.thread_time() - began)
    print(f"a glance at {many} entries takes {1e6 * min(costs):.0f} µs")
    assert min(costs) < 0.001
    key = next(iter(ours))
    bpf.delete_batch(table, key)
    if known._memory is None:
        pytest.skip("this kernel does not tell how many entries a map has (Linux 6.4 does)")
    assert known.looks_changed()
    bpf.update_batch(table, b"\x80" + bytes(3) + b"\xff" * 16, bytes(12))
    bpf.update_batch(table, key, ours[key])
    assert known.looks_changed()
