# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with capped traffic while the clock is changed by a day and restored, or the host gets another time zone.

Only the daemon's clock changes: a preloaded library adds the number of seconds in a file to the kernel's time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from faults import LONG_TIMEOUT, traffic
from throttler_site import Site, clients, connection, until

from mptcp_lab.testbed import Process
from mptcp_lab.testbed.commands import run
from mptcp_lab.testbed.services import program, throttler_mounts, wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("unchanged_kernel")]

DAY = 86_400
NOON = datetime(2026, 11, 18, 11, 0, tzinfo=UTC)
"""The daemon's time at its start: noon in Berlin on a Wednesday."""
OTHER_TIME_ZONE = Path("/usr/share/zoneinfo/Pacific/Auckland")
"""In this time zone, it is midnight at `NOON`, and Thursday begins."""
POLICY = """\
version: 1
time_zone: Europe/Berlin
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - name: spare-ethernet
    paths: [ethernet]
    throttle: {rate: 5 Mbit/s}
    lift_last: false
  - name: wednesday
    paths: [wifi]
    when: {days: [wed], hours: ["08:00-18:00"]}
    throttle: {rate: 5 Mbit/s}
    lift_last: false
"""
ALWAYS_CAPPED, CAPPED_IN_WINDOW = "10.77.1.2", "10.77.2.2"
CLOCK_SHIFT_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile long long *shift;

__attribute__((constructor)) static void begin(void)
{
	const char *name = getenv("CLOCK_SHIFT");
	int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
	void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*shift), PROT_READ, MAP_SHARED, file, 0);

	if (mapped == MAP_FAILED)
		abort();
	shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*next)(clockid_t, struct timespec *);
	int result;

	if (next == NULL)
		next = dlsym(RTLD_NEXT, "clock_gettime");
	result = next(clock, now);
	if (result == 0 && shift != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *shift;
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *where)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (where != NULL)
		*where = now.tv_sec;
	return now.tv_sec;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    """The library that shifts the clock by the seconds in the file named by CLOCK_SHIFT."""
    require("gcc")
    directory = tmp_path_factory.mktemp("clock")
    source, library = directory / "shift.c", directory / "shift.so"
    source.write_text(CLOCK_SHIFT_SOURCE)
    run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"])
    return library


@dataclass
class Clock:
    """The clock of one daemon."""

    file: Path

    def set(self, when: datetime) -> None:
        # Write in place, because the daemon has mapped the file into memory.
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("q", round(when.timestamp() - time.time())))


@pytest.fixture
def clock(site: Site) -> Clock:
    clock = Clock(site.testbed.directory / "clock-shift")
    clock.set(NOON)
    return clock


@contextmanager
def running_with_clock(site: Site, library: Path, clock: Clock, local_time: Path) -> Iterator[Process]:
    """Run a throttler that uses *clock*, and *local_time* as its /etc/localtime."""
    site.policy.write_text(POLICY)
    process = site.proxy.popen(
        [program("mptcp-throttler"), "run", "--config", str(site.config)],
        name=f"clock-{time.monotonic_ns()}",
        mounts={**throttler_mounts(site.proxy), "/etc/localtime": str(local_time)},
        env={"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(clock.file)},
    )
    wait_until(
        lambda: "throttling on" in process.output(), "the throttler works", timeout=LONG_TIMEOUT, process=process
    )
    try:
        yield process
    except BaseException:
        print(process.output())  # pytest prints this output with a failure.
        raise
    finally:
        code = process.stop(LONG_TIMEOUT)
    assert code == 0, process.output()
    assert "Traceback" not in process.output()


@pytest.fixture
def local_time(site: Site) -> Path:
    file = site.testbed.directory / "localtime"
    file.write_bytes(Path("/usr/share/zoneinfo/UTC").read_bytes())
    return file


def has_only_expected_caps(site: Site, *more: str) -> bool:
    """Return whether only `ALWAYS_CAPPED` and *more* are capped. Raises AssertionError if `ALWAYS_CAPPED` is not."""
    found = clients(site.entries())
    assert ALWAYS_CAPPED in found, found
    return found == sorted((ALWAYS_CAPPED, *more))


@pytest.mark.nightly(except_for=("iptables--1",))
@pytest.mark.parametrize("days", [1, -1])
def test_caps_follow_a_clock_changed_by_a_day_and_restored(
    site: Site, library: Path, clock: Clock, local_time: Path, days: int
) -> None:
    with running_with_clock(site, library, clock, local_time), connection(site) as ends, traffic(ends) as pulse:
        until(lambda: clients(site.entries()) == [ALWAYS_CAPPED, CAPPED_IN_WINDOW], timeout=LONG_TIMEOUT)
        for _ in range(2):
            trips_before = pulse.round_trips
            clock.set(datetime.fromtimestamp(NOON.timestamp() + days * DAY, UTC))
            until(lambda: has_only_expected_caps(site), timeout=LONG_TIMEOUT)
            clock.set(NOON)
            until(lambda: has_only_expected_caps(site, CAPPED_IN_WINDOW), timeout=LONG_TIMEOUT)
            until(lambda before=trips_before: pulse.round_trips > before, timeout=LONG_TIMEOUT)  # type: ignore[misc]


@pytest.mark.nightly
def test_new_local_time_zone_changes_no_time_window(site: Site, library: Path, clock: Clock, local_time: Path) -> None:
    """The time windows of a policy use the policy's own time zone."""
    if not OTHER_TIME_ZONE.exists():
        pytest.skip(f"NOT TESTED: there is no {OTHER_TIME_ZONE}")
    with running_with_clock(site, library, clock, local_time) as process, connection(site) as ends, traffic(ends):
        until(lambda: clients(site.entries()) == [ALWAYS_CAPPED, CAPPED_IN_WINDOW], timeout=LONG_TIMEOUT)
        local_time.write_bytes(OTHER_TIME_ZONE.read_bytes())
        # Check that the daemon sees the new zone, and that its C library applies it.
        shown = run(["nsenter", "--target", str(process.pid), "--mount", "date", "+%Z"]).stdout.strip()
        assert shown in ("NZDT", "NZST")
        for seconds in (0, 3600, 0):
            # The clock is also changed, within the window, so that the throttler decides about all connections again.
            clock.set(datetime.fromtimestamp(NOON.timestamp() + seconds, UTC))
            deadline = time.monotonic() + 2
            until(lambda: has_only_expected_caps(site, CAPPED_IN_WINDOW) and time.monotonic() > deadline, LONG_TIMEOUT)  # noqa: B023
        # The policy's zone applies: it is Tuesday, 23:00, in Berlin, although it is Wednesday, 11:00, in Auckland.
        clock.set(datetime(2026, 11, 17, 22, 0, tzinfo=UTC))
        until(lambda: has_only_expected_caps(site), timeout=LONG_TIMEOUT)
