# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the number of Squid's workers: the default, warnings about unsuitable numbers, and the lines for Squid."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from mptcp_proxy.configuration.check import check, processors, shared_directory, shared_memory
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.workers import (
    MAX_WORKERS,
    MIN_SHARED_MEMORY,
    Workers,
    reload_obstacle,
    requested_workers,
    shared_cache,
    shared_memory_problems,
    with_workers,
    without_workers,
    worker_problems,
)
from mptcp_proxy.places import Places, Role

CACHE_MEM = 256 << 20
"""Squid's default for cache_mem in bytes."""
ENOUGH_SHARED_MEMORY = MIN_SHARED_MEMORY + CACHE_MEM


def lines(*texts: str) -> list[PhysicalLine]:
    return [PhysicalLine("squid.conf", number, text) for number, text in enumerate(texts, 1)]


def texts(found: Sequence[PhysicalLine]) -> list[str]:
    return [line.text for line in found]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_default_is_one_worker_for_each_processor(count: int) -> None:
    found = requested_workers(
        list(statements(lines("via on", "# workers 3"), "n")), Role.PROXY, count, ENOUGH_SHARED_MEMORY
    )
    assert (found.count, found.reason) == (count, "one for each processor")


def test_default_is_limited_to_the_maximum() -> None:
    assert requested_workers([], Role.PROXY, 1000, ENOUGH_SHARED_MEMORY).count == MAX_WORKERS


def test_last_stated_number_that_applies_is_used() -> None:
    configuration = statements(lines("workers 3", "workers 5", "if false", "workers 7", "endif"), "n")
    assert requested_workers(list(configuration), Role.PROXY, 2, ENOUGH_SHARED_MEMORY).count == 5
    assert requested_workers(list(statements(lines("workers 3"), "n")), Role.RELAY, 2, ENOUGH_SHARED_MEMORY).count == 3


def test_default_of_a_relay_is_one_worker() -> None:
    assert requested_workers([], Role.RELAY, 4, ENOUGH_SHARED_MEMORY).count == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cache_dir ufs /var/spool 100 16 256", 1),
        ("cache_dir rock /var/spool 100", 4),
        ("auth_param digest program /bin/x", 1),
        ("auth_param basic program /bin/x", 4),
        ("delay_pools 2", 1),
        ("delay_pools 0", 4),
        ("client_delay_pools 1", 1),
    ],
)
def test_default_is_one_worker_if_a_setting_needs_it(text: str, count: int) -> None:
    found = requested_workers(list(statements(lines("via on", text), "n")), Role.PROXY, 4, ENOUGH_SHARED_MEMORY)
    assert found.count == count
    assert (" ".join(text.split()[:2]) in found.reason) == (count == 1)
    # An explicit number of the operator takes precedence.
    assert (
        requested_workers(list(statements(lines(text, "workers 4"), "n")), Role.PROXY, 4, ENOUGH_SHARED_MEMORY).count
        == 4
    )


def test_invalid_number_is_reported_with_its_line() -> None:
    configuration = list(
        statements(lines("workers 0", "workers -1", f"workers {MAX_WORKERS + 1}", "workers 2", "workers two"), "n")
    )
    found = list(worker_problems(configuration, 2))
    # Squid itself reports the word "two".
    assert [(p.line, p.warning) for p in found] == [(1, False), (2, False), (3, False)]
    assert str(found[0]) == (
        "squid.conf:1: workers 0: not a number of workers"
        " (allowed: 1 to 128; without this line: one for each processor, here 2)"
    )


def test_more_workers_than_processors_are_a_warning() -> None:
    (found,) = worker_problems(list(statements(lines("workers 3"), "n")), 2)
    assert found.warning
    assert str(found) == (
        "squid.conf:1: warning: workers 3: Squid may use only 2 processors, so more workers are not faster"
    )
    assert list(worker_problems(list(statements(lines("workers 2"), "n")), 2)) == []


@pytest.mark.parametrize(
    ("directives", "refused"),
    [
        (["cache_dir ufs /c 100 16 256", "workers 2"], True),
        (["workers 2", "cache_dir aufs /c 100 16 256"], True),
        (["cache_dir ufs /c 100 16 256", "workers 1"], False),
        (["cache_dir ufs /c 100 16 256", "workers 2", "workers 1"], False),
        (["cache_dir ufs /c 100 16 256"], False),
        (["cache_dir rock /c 100", "workers 2"], False),
        (["cache_dir ufs /c/${process_number} 100 16 256", "workers 2"], False),
        (["if ${process_number} = 1", "cache_dir ufs /c 100 16 256", "endif", "workers 2"], False),
        (["if false", "cache_dir ufs /c 100 16 256", "endif", "workers 2"], False),
    ],
)
def test_cache_that_several_workers_would_overwrite_is_refused(directives: list[str], refused: bool) -> None:
    """Squid 5.7 accepts it: one worker ends with "Failed to rename log file", the other uses the files of both."""
    found = list(worker_problems(list(statements(lines(*directives), "n")), 2))
    assert [(each.warning, "2 workers would overwrite each other's files" in each.text) for each in found] == [
        (False, True)
    ] * refused


@pytest.mark.parametrize(
    ("text", "running_workers", "refused"),
    [
        ("delay_pools 1", 2, True),
        ("cache_dir ufs /c 100 16 256", 2, True),
        ("delay_pools 1", 1, False),
        ("via on", 2, False),
    ],
)
@pytest.mark.parametrize("workers_line", ["# nothing", "workers 1"])
def test_setting_for_one_worker_is_refused_at_a_reload_of_several(
    text: str, running_workers: int, refused: bool, workers_line: str
) -> None:
    requested = requested_workers(
        list(statements(lines("via on", text, workers_line), "n")), Role.PROXY, 4, ENOUGH_SHARED_MEMORY
    )
    problem = reload_obstacle(requested, running_workers)
    if refused:
        words = f"{' '.join(text.split()[:2])}: each of the 2 workers would have its own; restart the proxy"
        assert str(problem) == f"squid.conf:2: {words}"
    else:
        assert problem is None


def test_reload_accepts_a_setting_for_one_worker_if_several_are_stated() -> None:
    configuration = list(statements(lines("delay_pools 1", "workers 2"), "n"))
    assert reload_obstacle(requested_workers(configuration, Role.PROXY, 4, ENOUGH_SHARED_MEMORY), 3) is None
    assert reload_obstacle(Workers(4), 2) is None


def test_stated_number_is_replaced_with_a_number_in_the_first_line() -> None:
    original = lines("via on", "workers \\", "  2", "http_port 3128 \\")
    without_directive = without_workers(original, list(statements(original, "n")))
    assert texts(without_directive) == ["via on", "", "", "http_port 3128 \\"]
    assert texts(with_workers(without_directive, 1)) == ["workers 1", *texts(without_directive)]


@pytest.mark.parametrize(
    ("original", "expected_lines"),
    [
        (["http_port 3128"], ["http_port 3128 worker-queues"]),
        (["  http_port ${service_name}:1 a # b"], ["http_port ${service_name}:1 worker-queues a # b"]),
        (["https_port\t[::1]:3128 x"], ["https_port\t[::1]:3128 worker-queues x"]),
        (["http_port \\", "# c", " 3128 \\", " a"], ["", "", "", "http_port 3128 worker-queues a"]),
        (["http_port 1 worker-queues"], ["http_port 1 worker-queues"]),
        (["#http_port 1", "icp_port 0"], ["#http_port 1", "icp_port 0"]),
    ],
)
def test_ports_of_several_workers_get_the_option_worker_queues(original: list[str], expected_lines: list[str]) -> None:
    # By default, Squid waits an hour before it again restarts a worker that ended several times.
    assert texts(with_workers(lines(*original), 2)) == [
        "workers 2",
        "hopeless_kid_revival_delay 10 seconds",
        *expected_lines,
    ]
    assert texts(with_workers(lines(*original), 1)) == ["workers 1", *original]


def test_reload_keeps_the_number_of_running_workers(tmp_path: Path) -> None:
    file = tmp_path / "squid.conf"
    file.write_text("workers 1\nhttp_port 3128\n")
    checked = check(file, "n", None)
    assert checked.workers.count == 1
    first_lines = "workers 3\nhopeless_kid_revival_delay 10 seconds\n"
    assert checked.render(3).decode() == f"{first_lines}\nhttp_port 3128 worker-queues\n"


def test_only_usable_processors_are_counted() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert processors() == len(before)


def test_default_is_one_worker_without_space_for_shared_memory() -> None:
    found = requested_workers([], Role.PROXY, 4, MIN_SHARED_MEMORY - 1)
    assert (found.count, found.reason) == (1, "/dev/shm has no space for the shared memory of several workers")
    assert requested_workers(list(statements(lines("workers 4"), "n")), Role.PROXY, 4, 0).count == 4


def test_free_shared_memory_is_measured(tmp_path: Path) -> None:
    assert shared_memory("n", tmp_path / "nowhere") == 0
    assert shared_memory("n", Path("/proc/self")) > 1 << 40, "a file system without a size counts as full"
    file_system = os.statvfs(tmp_path)
    assert shared_memory("n", tmp_path) == pytest.approx(file_system.f_bavail * file_system.f_frsize, rel=0.1)
    assert shared_memory("n") > MIN_SHARED_MEMORY


def test_own_segments_of_an_instance_count_as_free_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    free = shared_memory("n", tmp_path)
    segment = tmp_path / "n-cache_mem_space.shm"
    segment.write_bytes(bytes(1_000_000))
    assert shared_memory("n", tmp_path) == free + 512 * segment.stat().st_blocks
    assert shared_memory("other", tmp_path) == free


def test_files_of_other_users_with_names_of_segments_do_not_count_as_free_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Defect: links to large files and other users' files counted as free space, and workers ended on a full disk."""
    status = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    free = shared_memory("n", tmp_path)
    large = tmp_path / "large"
    large.write_bytes(bytes(1_000_000))
    (tmp_path / "n-link.shm").symlink_to(large)
    assert shared_memory("n", tmp_path) == free
    large.rename(tmp_path / "n-file.shm")
    assert shared_memory("n", tmp_path) > free
    # The owner is neither root, nor the calling user, nor Squid's user.
    other_owner = list((tmp_path / "n-file.shm").stat())
    other_owner[stat.ST_UID] = 54321
    monkeypatch.setattr(Path, "lstat", lambda _: os.stat_result(other_owner))
    assert shared_memory("n", tmp_path) == free


def test_shared_memory_directory_is_that_of_the_running_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mptcp_proxy.configuration.check.pid_in", lambda *_: os.getpid())
    assert shared_directory(Places("n")) == Path(f"/proc/{os.getpid()}/root/dev/shm")
    monkeypatch.setattr("mptcp_proxy.configuration.check.pid_in", lambda *_: None)
    assert shared_directory(Places("n")) == Path("/dev/shm")


@pytest.mark.parametrize(
    ("directives", "size"),
    [
        ([], CACHE_MEM),
        (["cache_mem 64 MB"], 64 << 20),
        (["cache_mem 1.5 GB"], 3 << 29),
        (["cache_mem 4096"], 4096),
        (["cache_mem 10 pigs"], CACHE_MEM),
        (["cache_mem 1 GB", "cache_mem 2 KB"], 2048),
        (["cache_mem 0"], 0),
        (["cache deny check_page", "cache deny all"], 0),
        (["cache deny check_page"], CACHE_MEM),
        (["cache allow big", "cache deny all"], CACHE_MEM),
        (["if ${process_number} = 1", "cache deny all", "endif"], CACHE_MEM),
        (["no_cache deny all"], 0),
        (["memory_cache_shared off"], 0),
        (["cache deny all", "shared_memory_locking on"], CACHE_MEM),
    ],
)
def test_size_of_the_shared_cache_follows_the_directives(directives: list[str], size: int) -> None:
    """Defect: the computed space was too small for a cache, and SIGBUS ended workers on a full disk."""
    configuration = list(statements(lines(*directives), "n"))
    assert shared_cache(configuration) == size
    found = requested_workers(configuration, Role.PROXY, 4, MIN_SHARED_MEMORY + size)
    assert found.count == 4
    if size:
        found = requested_workers(configuration, Role.PROXY, 4, MIN_SHARED_MEMORY + size - 1)
        assert (found.count, found.reason) == (1, "/dev/shm has no space for cache_mem, which several workers share")


@pytest.mark.parametrize("file", ["squid.conf", "relay-squid.conf"])
def test_shipped_files_cache_nothing_by_default(file: str) -> None:
    shipped = (Path(__file__).parents[3] / "conf" / file).read_text()
    assert shared_cache(list(statements(lines(*shipped.splitlines()), "n"))) == 0
    cached = shipped.replace("\ncache deny all", "\n#cache deny all")
    assert shared_cache(list(statements(lines(*cached.splitlines()), "n"))) == 64 << 20


def test_too_little_shared_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = list(statements(lines("cache_mem 64 MB", "workers 2"), "n"))
    (found,) = shared_memory_problems(configuration, 64_000_000)
    assert found.warning
    assert str(found) == (
        "squid.conf:2: warning: workers 2: their shared memory and cache_mem may take 75 MB of /dev/shm,"
        " which has 64 MB; Squid ends when /dev/shm is full"
        " (allowed: memory_cache_shared off, less cache_mem, workers 1, or more free space)"
    )
    assert list(shared_memory_problems(configuration, 76_000_000)) == []
    uncached = list(statements(lines("cache deny all", "workers 2"), "n"))
    assert [str(each) for each in shared_memory_problems(uncached, 1_000_000)] == [
        "squid.conf:2: warning: workers 2: their shared memory may take 8 MB of /dev/shm, which has 1 MB;"
        " Squid ends when /dev/shm is full (allowed: workers 1, or more free space)"
    ]
    for configured in (["workers 1"], [], ["workers two"]):
        assert list(shared_memory_problems(list(statements(lines(*configured), "n")), 0)) == []
    status = os.statvfs("/dev/shm")
    # 15,000 free blocks of 4096 bytes.
    small = os.statvfs_result(
        (status.f_bsize, 4096, 15_000, 15_000, 15_000, *status[5:8], status.f_flag, status.f_namemax)
    )
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    file = tmp_path / "squid.conf"
    file.write_text("http_port 3128\nworkers 2\n")
    assert any("their shared memory and cache_mem" in each.text for each in check(file, "n", None).problems)


def test_read_only_shared_memory_has_no_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs("/dev/shm")
    read_only = os.statvfs_result((*status[:8], status.f_flag | os.ST_RDONLY, status.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    assert shared_memory("n") == 0
