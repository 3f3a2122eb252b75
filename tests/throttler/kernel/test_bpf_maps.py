# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for batch operations on BPF maps: drain returns each entry once, and the update of a full map fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mptcp_common.bpf import Bpf, Map
from mptcp_common.kernel_error import KernelError

pytestmark = pytest.mark.kernel

MAP_SIZE = 5000
"""Maximum number of entries. One batch of a drain cannot contain all of them."""


@pytest.fixture
def bpf() -> Iterator[Bpf]:
    bpf = Bpf()
    yield bpf
    bpf.close()


@pytest.fixture
def table(bpf: Bpf) -> Map:
    return bpf.hash_map("mptcp_test", 8, 12, MAP_SIZE)


def entries(count: int, first: int = 0) -> dict[bytes, bytes]:
    return {n.to_bytes(8, "little"): n.to_bytes(12, "little") for n in range(first, first + count)}


def update(bpf: Bpf, table: Map, new_entries: dict[bytes, bytes]) -> None:
    bpf.update_batch(table, b"".join(new_entries), b"".join(new_entries.values()))


def test_drain_returns_each_entry_once(bpf: Bpf, table: Map) -> None:
    assert list(bpf.drain(table)) == []
    update(bpf, table, {})
    update(bpf, table, entries(MAP_SIZE))
    update(bpf, table, {bytes(8): b"changed     "})
    assert dict(bpf.drain(table)) == entries(MAP_SIZE) | {bytes(8): b"changed     "}
    assert list(bpf.drain(table)) == []


def test_delete_removes_entries_and_ignores_unknown_keys(bpf: Bpf, table: Map) -> None:
    update(bpf, table, entries(100))
    bpf.delete_batch(table, b"".join(entries(200, first=50)))
    assert dict(bpf.drain(table)) == entries(50)


def test_update_of_full_map_is_an_error_and_keeps_entries(bpf: Bpf, table: Map) -> None:
    update(bpf, table, entries(MAP_SIZE - 10))
    with pytest.raises(KernelError, match=f"the BPF map mptcp_test is full: it has room for {MAP_SIZE} entries"):
        update(bpf, table, entries(20, first=MAP_SIZE))
    bpf.delete_batch(table, b"".join(entries(20)))
    update(bpf, table, entries(20, first=2 * MAP_SIZE))
    remaining = dict(bpf.drain(table))
    assert entries(MAP_SIZE - 30, first=20).items() <= remaining.items()
    assert entries(20, first=2 * MAP_SIZE).items() <= remaining.items()
