# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the splitter's BPF program, one packet at a time (BPF_PROG_TEST_RUN). A model predicts its choices."""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.bpf import Bpf
from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.kernel.packets import checksum, packet_of, parse_packet
from mptcp_tunnel.kernel.programs import JOINER, MAX_VIRTUAL_QUEUE, PATH_STATE, PROGRAMS, SPLITTER, STATE_HEAD, Programs
from mptcp_tunnel.model import MAX_PATHS, End, Ends, Mode, PathState, Split
from mptcp_tunnel.settings import MODES

pytestmark = pytest.mark.kernel
MS: Final = 1_000_000
REDIRECTED, DROPPED = 7, 2
"""The results TC_ACT_REDIRECT and TC_ACT_SHOT."""
ETHERNET: Final = {4: bytes(12) + b"\x08\x00", 6: bytes(12) + b"\x86\xdd"}
ADDRESSES: Final = {4: "10.0.0.{}", 6: "fd00::{}"}
LIGHT, EXPEDITED, NO_ROOM = 300, 46, 1 << 62
"""A packet with fewer bytes, or with this DSCP, is light. ``NO_ROOM`` is added to the cost of a path with a long queue.
"""
CHECKSUM_COMPLETE = 4
"""BPF_F_TEST_SKB_CHECKSUM_COMPLETE (linux/bpf.h), since Linux 6.17."""
CB_OFFSET, COPY_TAG = 48, 0x4D540000
"""Offset of cb in struct __sk_buff (linux/bpf.h), and the tag that marks a copied packet."""


class RunOptions(ctypes.Structure):
    """struct bpf_test_run_opts (bpf/bpf.h)."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("bytes_in", ctypes.c_uint32),
        ("bytes_out", ctypes.c_uint32),
        ("context_in", ctypes.c_char_p),
        ("context_out", ctypes.c_void_p),
        ("context_bytes_in", ctypes.c_uint32),
        ("context_bytes_out", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("more", ctypes.c_uint32 * 2),
    )


class TunnelState(NamedTuple):
    """The state that the splitter keeps for a tunnel."""

    sequence: int
    clock: int
    next_free: list[int]


class Kernel:
    """The loaded programs, not attached to any interface."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.bpf = programs, Bpf()

    def set_state(self, state: TunnelState) -> None:
        paths = b"".join(PATH_STATE.pack(each, 0, 0, 0, 0) for each in state.next_free)
        value = STATE_HEAD.pack(state.sequence, state.clock) + paths
        self.bpf.update_batch(self.programs.states, bytes(4), value)

    def read_state(self) -> TunnelState:
        value = self.bpf.lookup(self.programs.states, bytes(4))
        paths = PATH_STATE.iter_unpack(value[STATE_HEAD.size :])
        sequence, clock = STATE_HEAD.unpack_from(value)
        return TunnelState(sequence, clock, [each[0] for each in paths])

    def run(self, program: str, frame: bytes, tag: int = 0, has_checksum: bool = False) -> tuple[int, bytes]:
        """Run a program on a frame, with *tag* in cb[1]. Return its result and the changed frame.

        *has_checksum*: the frame comes from a device that has computed the sum of all its bytes. If this sum is wrong
        after the program, the kernel refuses the frame.
        """
        out, context = ctypes.create_string_buffer(2048), bytes(CB_OFFSET + 4) + struct.pack("=I", tag) + bytes(12)
        run = RunOptions(ctypes.sizeof(RunOptions), frame, ctypes.addressof(out), len(frame), len(out), context)
        run.context_bytes_in, run.repeat = len(context), 1
        run.flags = CHECKSUM_COMPLETE if has_checksum else 0
        code = self.bpf.library.bpf_prog_test_run_opts(self.programs.descriptors[program], ctypes.byref(run))
        if has_checksum and code == -errno.EINVAL:
            pytest.skip("the kernel is too old to test this")
        assert code == 0
        return run.result, out.raw[: run.bytes_out]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    programs = Programs(0, bytes(6), [])
    kernel = Kernel(programs)
    yield kernel
    kernel.bpf.close()
    programs.close()


def ends(version: int, number: int, port: int) -> Ends:
    """Return the ends of a flow on path *number*, or, if *number* is 0, of the flow that enters the tunnel."""
    near, far = (ip_address(ADDRESSES[version].format(each)) for each in (2 * number + 1, 2 * number + 2))
    return Ends(End(near, 51820), End(far, port))


class Frame(NamedTuple):
    size: int
    service: int = 0
    """DSCP and ECN."""
    is_copy_of: int | None = None
    """The path that carries the original, if this frame is a copy."""
    may_be_fragmented: bool = False

    @property
    def is_light(self) -> bool:
        return self.size < LIGHT or self.service >> 2 == EXPEDITED

    def packed(self, flow: Ends, number: int = 0) -> bytes:
        """Return the frame as bytes, with sequence *number* in its IP header."""
        version = flow.local.address.version
        packet = bytearray(packet_of(flow, bytes(self.size - (14 + 28 if version == 4 else 14 + 48))))
        if version == 4:
            packet[6] = 0 if self.may_be_fragmented else 0x40
            packet[1], packet[4:6] = self.service, number.to_bytes(2, "big")
            packet[10:12] = struct.pack("!H", checksum(bytes(packet[:20])))
        else:
            packet[0] |= self.service >> 4
            packet[1] |= self.service << 4 & 0xF0
            packet[2:4] = number.to_bytes(2, "big")
        return ETHERNET[version] + bytes(packet)


def choose_path(
    split: Split, paths: list[PathState], state: TunnelState, frame: Frame, now: int, measured: int
) -> int | None:
    """Return the path for a frame at *now*, or None if it is dropped.

    *measured*: the time at which the queue lengths of *paths* were measured.
    """
    size = frame.size
    costs = dict[int, float]()
    for index, path in enumerate(paths):
        wait = max(0, state.next_free[index] - now)
        if not path.alive or index == frame.is_copy_of:
            continue
        if split.mode is Mode.ONE:
            costs[index] = index
        elif split.mode is Mode.WEIGHTS:
            costs[index] = max(state.next_free[index], state.clock)
        elif split.mode is Mode.ORDER:
            costs[index] = index if wait <= split.spill else NO_ROOM + wait + growth(split, index, path, size)
        else:
            waiting_time = max(wait, measured + path.queue - now)
            arrival = waiting_time + path.delay
            end = waiting_time + growth(split, index, path, size) + min(path.delay, split.spill)
            costs[index] = (arrival if frame.is_light else end) + (NO_ROOM if wait > MAX_VIRTUAL_QUEUE else 0)
    best = min(costs, key=lambda index: (costs[index], index), default=None)
    if best is not None and split.queue and not frame.is_light:
        wait = max(0, state.next_free[best] - now)
        return best if wait + growth(split, best, paths[best], size) <= split.queue else None
    return best


def growth(split: Split, index: int, path: PathState, size: int) -> int:
    """Return by how much a frame raises ``next_free`` of its path.

    This is its sending time in ns, or in mode WEIGHTS its bytes divided by the share of the path.
    """
    share = split.share(index)
    return size * round((8e9 / path.rate if share is None else 1 / share) * 1024) >> 10


def random_path(random: Random, version: int, number: int) -> PathState:
    return PathState(
        ends(version, number + 1, 4500 + number),
        interface=100 + number,
        next_hop=ip_address(ADDRESSES[version].format(200)),
        alive=random.random() < 0.75,
        rate=random.choice([64e3, 1e6, 5e6, 10e6, 1e8, 1e10]),
        delay=random.randrange(0, 120 * MS),
        queue=random.randrange(0, 60 * MS),
    )


@given(seed=st.integers(0, 1 << 32))
def test_splitter_chooses_the_path_of_the_model(kernel: Kernel, seed: int) -> None:
    random = Random(seed)
    split, version = MODES[random.choice(sorted(MODES))], random.choice([4, 6])
    paths = [random_path(random, version, number) for number in range(random.randint(1, MAX_PATHS))]
    queue = 0 if split.mode is Mode.WEIGHTS else random.choice([0, 10, 100]) * MS
    weights, duplicate = tuple(random.choices(range(1, 1001), k=4)), random.random() < 0.5
    split = replace(split, weights=weights, duplicate=duplicate, queue=queue)
    inside, daemon_has_ended = ends(version, 0, 51820), random.random() < 0.25
    measured = time.monotonic_ns()
    # If the daemon has updated nothing for 5 s, the splitter considers all paths alive.
    measured -= 6000 * MS if daemon_has_ended else 0
    with mock.patch("time.monotonic_ns", return_value=measured):
        kernel.programs.set_tunnel(0, inside, paths, split, split.queue)
    if daemon_has_ended:
        paths, split = [each._replace(alive=True) for each in paths], replace(split, queue=0)
    for _ in range(40):
        size, service = random.choice([80, 299, 300, random.randint(80, 1500)]), random.choice([0, 3, 0x88, 0xB8, 0xBB])
        copied = random.randrange(MAX_PATHS) if random.random() < 0.25 else None
        frame = Frame(size, service, copied, random.random() < 0.5)
        check_one_packet(kernel, inside, split, paths, frame, random, measured)


def check_one_packet(
    kernel: Kernel, inside: Ends, split: Split, paths: list[PathState], frame: Frame, random: Random, measured: int
) -> None:
    now, wait = time.monotonic_ns(), random.choice([12, 200]) * MS
    next_free = [now + random.randint(-wait // 4, wait) for _ in range(MAX_PATHS)]
    before = TunnelState(random.choice([0, 7, 0xFFFE, 0xFFFF, 0x1FFFF]), now, next_free)
    kernel.set_state(before)
    start = time.monotonic_ns()
    result, out = kernel.run(
        SPLITTER, frame.packed(inside), 0 if frame.is_copy_of is None else COPY_TAG | frame.is_copy_of
    )
    end = time.monotonic_ns()
    after = kernel.read_state()
    times = [start + (end - start) * part // 16 for part in range(17)]
    possible = {choose_path(split, paths, before, frame, each, measured) for each in times}
    if possible == {None} or (None in possible and result == DROPPED):
        assert result == DROPPED, "the frame was not dropped"
        assert after == before, "a dropped frame changed the state"
        return
    packet = parse_packet(out[14:])
    assert result == REDIRECTED, "the frame was dropped"
    assert packet is not None
    outside = Ends(packet.ends.remote, packet.ends.local)  # parse_packet returns the receiver's view
    path = [each.outside for each in paths].index(outside)
    assert path in possible
    queued, has_weights = growth(split, path, paths[path], frame.size), split.mode is Mode.WEIGHTS
    start_of_frame = max(before.clock if has_weights else start, next_free[path])
    assert (
        start_of_frame + queued
        <= after.next_free[path]
        <= (start_of_frame if has_weights else max(end, next_free[path])) + queued
    )
    assert after.clock == (start_of_frame if has_weights else before.clock)
    assert [*after.next_free[:path], next_free[path], *after.next_free[path + 1 :]] == next_free
    number = 0 if frame.is_light else (before.sequence + 1) & 0xFFFF or 1
    with_dont_fragment = frame._replace(may_be_fragmented=False)
    assert out == with_dont_fragment.packed(outside, number), "ends, number, don't-fragment bit or checksums are wrong"


@given(weights=st.lists(st.integers(1, 100), min_size=2, max_size=4), dead=st.integers(0, 3), seed=st.integers(0, 99))
def test_bytes_follow_the_weights_after_a_path_was_dead(
    kernel: Kernel, weights: list[int], dead: int, seed: int
) -> None:
    split, inside = Split(Mode.WEIGHTS, weights=tuple(weights)), ends(4, 0, 51820)
    states = [
        PathState(ends(4, index + 1, 4500), 100 + index, ip_address("10.0.0.200"), rate=10 ** (5 + index))
        for index in range(len(weights))
    ]
    kernel.set_state(TunnelState(0, 0, [0] * MAX_PATHS))
    random = Random(seed)
    for alive in (set(range(len(weights))), {*range(len(weights))} - {dead}, set(range(len(weights)))):
        paths = [each._replace(alive=index in alive) for index, each in enumerate(states)]
        kernel.programs.set_tunnel(0, inside, paths, split)
        before = [each.sent_bytes for each in kernel.programs.counters(0)]
        total = 0
        for _ in range(200):
            size = random.randrange(70, 1500)
            assert kernel.run(SPLITTER, Frame(size).packed(inside))[0] == REDIRECTED
            total += size
            sent = [each.sent_bytes - old for each, old in zip(kernel.programs.counters(0), before, strict=True)]
            alive_weight = sum(weights[index] for index in alive)
            for index in range(len(weights)):
                expected = total * weights[index] / alive_weight if index in alive else 0
                difference = sent[index] - expected
                assert abs(difference) <= 2 * 1500 * len(weights), f"path {index} got {difference:.0f} bytes too many"


@pytest.mark.parametrize("version", [4, 6])
def test_packet_of_an_unconfigured_tunnel_is_dropped(kernel: Kernel, version: int) -> None:
    """Defect: the packet was sent to port 0 of the address 0.0.0.0."""
    outside, inside = ends(version, 1, 4501), ends(version, 0, 51820)
    arriving = Frame(1000).packed(Ends(outside.remote, outside.local), 7)
    kernel.programs.set_outside_ends({outside: (version, 3)})
    assert kernel.run(JOINER, arriving)[0] == DROPPED
    kernel.programs.set_tunnel(version, inside, [], Split())
    joined = Frame(1000).packed(Ends(inside.remote, inside.local), 7)
    assert kernel.run(JOINER, arriving) == (REDIRECTED, joined)


@pytest.mark.parametrize("version", [4, 6])
def test_programs_keep_a_device_checksum_correct(kernel: Kernel, version: int) -> None:
    """Defect: for IPv6 the checksum was wrong, and the kernel logged a fault of the device."""
    inside, outside = ends(version, 5, 51820), ends(version, 6, 4500)
    path = PathState(outside, 100, ip_address(ADDRESSES[version].format(200)))
    kernel.programs.set_tunnel(5, inside, [path], Split())
    kernel.programs.set_outside_ends({outside: (5, 0)})
    kernel.set_state(TunnelState(0, 0, [0] * MAX_PATHS))
    arriving = Ends(outside.remote, outside.local)
    for program, frame in ((SPLITTER, Frame(1000).packed(inside)), (JOINER, Frame(1000).packed(arriving, 7))):
        assert kernel.run(program, frame, has_checksum=True)[0] == REDIRECTED


def test_paths_that_swap_addresses_keep_both_entries(kernel: Kernel) -> None:
    """Defect: when the second path's old address was removed, the first path's new entry was deleted."""
    tunnel = 9
    first, second = (ends(4, number, 4590) for number in (11, 12))
    kernel.programs.set_tunnel(tunnel, ends(4, 13, 51820), [], Split())
    kernel.programs.set_outside_ends({first: (tunnel, 0), second: (tunnel, 1)})
    for path, before, after in ((0, first, second), (1, second, first)):
        kernel.programs.remove_outside_ends(before, (tunnel, path))
        kernel.programs.set_outside_ends({after: (tunnel, path)})
    for arriving in (first, second, second):
        assert kernel.run(JOINER, Frame(1000).packed(Ends(arriving.remote, arriving.local), 7))[0] == REDIRECTED
    assert [each.received_packets for each in kernel.programs.counters(tunnel)[:2]] == [2, 1]
    kernel.programs.remove_outside_ends(first, (tunnel, 1))
    assert kernel.run(JOINER, Frame(1000).packed(Ends(first.remote, first.local), 7))[0] != REDIRECTED


def test_map_of_another_size_is_refused() -> None:
    bpf = Bpf()
    table = bpf.array("test_states", STATE_HEAD.size + MAX_PATHS * PATH_STATE.size - 8, 1)
    with pytest.raises(KernelError, match=r"mptcp_tunnel\.o was built for another version; rebuild it with run"):
        bpf.load(PROGRAMS / "mptcp_tunnel.o", bytes(8204), {"states": table}, Path("./run"))
    bpf.close()
