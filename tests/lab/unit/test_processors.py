# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for processor usage computed from /proc/stat."""

from __future__ import annotations

import os

import pytest

from mptcp_lab.agent.processors import Usage, parse, usage

TICK = os.sysconf("SC_CLK_TCK")
STAT = "cpu  {user} 0 {system} {idle} {disk} 0 0 {stolen} {user} 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
PRESSURE = "some avg10=49.07 avg60=54.26 avg300=50.15 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"


def stat(*, user: int = 0, system: int = 0, idle: int = 0, disk: int = 0, stolen: int = 0) -> str:
    return STAT.format(user=user, system=system, idle=idle, disk=disk, stolen=stolen)


def test_usage_is_the_share_of_time_between_two_readings() -> None:
    before = parse(10.0, stat(user=100, system=100, idle=100, disk=100, stolen=100), PRESSURE.format(5_000_000))
    after = parse(20.0, stat(user=140, system=110, idle=130, disk=110, stolen=110), PRESSURE.format(9_000_000))
    # The user time already contains the guest time.
    assert usage(before, after) == Usage(stolen=0.1, idle=0.4, waiting=0.4)


@pytest.mark.parametrize(
    ("used", "busy"),
    [
        (Usage(0.0, 0.9, 0.05, 0.05), False),
        (Usage(0.0, 0.2, 0.45, 0.5), False),
        (Usage(0.0, 0.2, 0.55, 0.5), True),
        (Usage(0.0, 0.0, 1.0, 0.7), True),
        (Usage(0.0, 0.0, None, 0.7), True),
        # Other programs used almost no time, or their time is unknown.
        (Usage(0.0, 0.0, 1.0, 0.02), False),
        (Usage(0.0, 0.0, 1.0, None), False),
        (Usage(0.2, 0.7, 0.1, 0.0), True),
        (Usage(0.2, 0.7, None), True),
    ],
)
def test_processors_are_busy_when_others_took_them(used: Usage, busy: bool) -> None:
    assert used.busy is busy


def test_time_of_other_programs_is_what_ours_did_not_take() -> None:
    before = parse(0.0, stat(user=100), None, own=7.0)
    after = parse(1.0, stat(user=200, system=40, idle=60), None, own=7.0 + 60 / TICK)
    assert usage(before, after).others == pytest.approx(0.4)
    # Interrupts and idle time belong to no program, and a process's time may exceed the counted ticks.
    assert usage(before, parse(1.0, stat(user=110, idle=90), None, own=7.0 + 20 / TICK)).others == 0
    assert usage(before, parse(1.0, stat(user=200), None)).others is None


def test_full_processor_is_not_hidden_by_idle_ones() -> None:
    def text(first: int, second: int) -> str:
        """Return /proc/stat with these user ticks of two processors, each with 100 ticks in all."""
        each = ((f"cpu{number}", user) for number, user in enumerate((first, second)))
        lines = (f"{name} {user} 0 0 {100 - user} 0 0 0 0 0 0" for name, user in each)
        return "\n".join([f"cpu  {first + second} 0 0 {200 - first - second} 0 0 0 0 0 0", *lines, "intr 5"])

    nothing = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"
    found = usage(parse(0.0, nothing, None), parse(1.0, text(100, 0), None))
    assert (found.idle, found.least_idle) == (0.5, 0.0)
    found = usage(parse(0.0, nothing, None), parse(1.0, text(50, 50), None))
    assert (found.idle, found.least_idle) == (0.5, 0.5)
    # A processor that was switched on between the readings is missing in the first reading.
    alone = nothing.rpartition("cpu1")[0]
    assert usage(parse(0.0, alone, None), parse(1.0, text(20, 90), None)).least_idle == 0.8
    assert usage(parse(0.0, "cpu  0 0 0 0 0 0 0 0\n", None), parse(1.0, text(20, 90), None)).least_idle is None
