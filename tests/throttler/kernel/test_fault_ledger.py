# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the ledger on a full disk, on a read-only disk, and with damaged pages. The faults are real, not simulated.

The throttler reports the fault, keeps its caps, counts no byte twice, and keeps counts that it can write later.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from faults import LONG_TIMEOUT, traffic
from small_disk import fill, small_disk
from throttler_site import (
    Site,
    clients,
    connected,
    connection,
    knows_both_subflows,
    listening,
    read_status,
    running,
    until,
)

from mptcp_lab.testbed.services import Throttler, program, throttler_mounts, write_throttler_config

pytestmark = pytest.mark.kernel

CAPPED = """\
version: 1
paths: {ethernet: {clients: [10.77.1.0/24]}}
rules:
  - name: spare-ethernet
    paths: [ethernet]
    throttle: {rate: 5 Mbit/s}
"""
COUNTED = f"""\
{CAPPED}  - name: volume
    budget: {{period: month, per: client, count: down, steps: [{{after: 5 GB, throttle: {{rate: 2 Mbit/s}}}}]}}
"""
DOWNLOAD_BYTES, CHUNK = 300_000, 10_000
"""Bytes of a download and of each piece. The sender waits for a piece to arrive before it sends the next piece."""
PROGRAM = """
import subprocess, sys
from pathlib import Path
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.policy.budget import Account, Usage
from mptcp_throttler.storage import Ledger

directory = Path(sys.argv[1])
ledger = Ledger(directory / "ledger.sqlite")
account = Account("rule", "10.0.0.1", 0)
counters = {number: (number, number) for number in range(100)}
usage = Usage(added={account: 1000}, counters=counters, closed=frozenset())

def write():
    try:
        ledger.write("boot", usage)
    except KernelError as error:
        print(error)
    print(ledger.read_usage([("rule", 0)])[account])

write()
filling = directory / "filling"
try:
    with filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
write()
filling.unlink()
write()
ledger.close()
subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
try:
    ledger = Ledger(directory / "ledger.sqlite")
    write()
except KernelError as error:
    print(error)
"""


def test_ledger_reports_a_full_and_a_read_only_disk(
    tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> None:
    require("root")
    directory = tmp_path_factory.mktemp("ledger")
    # The mount is in a mount namespace that ends with the program.
    script = 'mount -t tmpfs -o size=1m,mode=0700 tmpfs "$1" && exec "$2" -I -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(directory), sys.executable, PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ledger = f"ledger {directory}/ledger.sqlite"
    # For each write, the error if there is one, and then the bytes in the ledger.
    assert done.stdout.splitlines() == [
        "1000",
        f"{ledger}: database or disk is full",
        "1000",
        "2000",
        f"{ledger} cannot be opened: Read-only file system",
    ]


@pytest.fixture
def ledger_disk(site: Site, require: Callable[..., None]) -> Iterator[Path]:
    """A disk that contains only the ledger. The policy is not on it, so a test can always change the policy."""
    require("bpf-pacing")
    with small_disk(site.testbed.directory / "ledger-disk", 0o700) as ledger_disk:
        settings = {"netfilter": site.backend, "ledger": str(ledger_disk / "ledger.sqlite")}
        write_throttler_config(site.proxy, site.policy, settings=settings)
        yield ledger_disk


def download(site: Site, listener: socket.socket) -> None:
    """Download `DOWNLOAD_BYTES` over a new connection."""
    with connected(site, listener) as (client, proxy):
        for _ in range(DOWNLOAD_BYTES // CHUNK):
            proxy.sendall(bytes(CHUNK))
            received = 0
            while received < CHUNK:
                received += len(client.recv(CHUNK))


def used_bytes(site: Site) -> int:
    """Return the bytes counted in the ledger, without opening it for writing."""
    shown = site.throttler("quota", "show", "--json").stdout
    assert shown.startswith("["), shown
    return sum(each["used"] for each in json.loads(shown))


@pytest.mark.nightly
@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_full_disk_keeps_caps_and_usage_is_written_later(site: Site, ledger_disk: Path) -> None:
    site.policy.write_text(COUNTED)
    with running(site) as throttler, listening(site) as listener, connected(site, listener) as ends, traffic(ends):
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
        until(lambda: used_bytes(site) > 0, timeout=LONG_TIMEOUT)
        filling = fill(ledger_disk)
        until(lambda: read_status(throttler.socket)["ledger_error"] is not None, timeout=LONG_TIMEOUT)
        status = read_status(throttler.socket)
        assert status["ledger_error"] == f"ledger {ledger_disk}/ledger.sqlite: database or disk is full"
        assert "BUDGETS NOT WRITTEN: ledger " in site.throttler("status").stdout
        last_written = used_bytes(site)
        download(site, listener)
        assert "10.77.1.2" in clients(site.entries())
        assert used_bytes(site) == last_written
        # A reload of a policy with budgets needs the counts that could not be written.
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output(), timeout=LONG_TIMEOUT)
        assert "10.77.1.2" in clients(site.entries())
        filling.unlink()
        until(lambda: used_bytes(site) >= last_written + DOWNLOAD_BYTES, timeout=LONG_TIMEOUT)
        until(lambda: read_status(throttler.socket)["ledger_error"] is None, timeout=LONG_TIMEOUT)
        # Each message appears once, however often the throttler tried to write in between.
        output = throttler.process.output()
        assert output.count("budget usage will be written later") == 1, output
        assert output.count("writing budget usage works again") == 1, output
        # The entry of an ended connection is removed later.
        assert "10.77.1.2" in clients(site.entries())
        assert used_bytes(site) < last_written + 3 * DOWNLOAD_BYTES, "bytes were counted twice"


@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_budget_on_a_read_only_disk_is_refused_and_caps_stay(site: Site, ledger_disk: Path) -> None:
    site.policy.write_text(CAPPED)
    with running(site) as throttler, connection(site) as ends, traffic(ends):
        until(lambda: knows_both_subflows(throttler.socket), timeout=LONG_TIMEOUT)
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
        # Each mount has its own read-only flag, and the throttler has its own mount.
        remount = ["nsenter", "--target", str(throttler.process.pid), "--mount", "mount", "-o"]
        subprocess.run([*remount, "remount,ro", ledger_disk], check=True)
        site.policy.write_text(COUNTED)
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output(), timeout=LONG_TIMEOUT)
        assert (
            f"ledger {ledger_disk}/ledger.sqlite cannot be opened: Read-only file system" in throttler.process.output()
        )
        assert clients(site.entries()) == ["10.77.1.2"]
        subprocess.run([*remount, "remount,rw", ledger_disk], check=True)
        throttler.process.signal(signal.SIGHUP)
        until(lambda: read_status(throttler.socket)["reloads"]["accepted"] == 1, timeout=LONG_TIMEOUT)
        until(lambda: used_bytes(site) > 0, timeout=LONG_TIMEOUT)
        assert clients(site.entries()) == ["10.77.1.2"]


@pytest.fixture
def make_disk_fail(site: Site, require: Callable[..., None]) -> Iterator[Callable[[], object]]:
    """A disk that contains only the ledger.

    Yields a function that triggers a file system error, which makes the disk read-only.
    """
    require("bpf-pacing")
    mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if mkfs is None:
        pytest.skip("no mkfs.ext4 (Debian: e2fsprogs)")
    image, ledger_disk = site.testbed.directory / "ledger-image", site.testbed.directory / "ledger-ext4"
    ledger_disk.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run([mkfs, "-q", "-O", "^has_journal", image], check=True)
    mount = subprocess.run(
        ["mount", "-o", "loop,errors=remount-ro", image, ledger_disk], check=False, capture_output=True
    )
    if mount.returncode:
        pytest.skip(f"this host mounts no ext4 from a file: {mount.stderr.decode().strip()}")
    try:
        ledger_disk.chmod(0o700)
        settings = {"netfilter": site.backend, "ledger": str(ledger_disk / "ledger.sqlite")}
        write_throttler_config(site.proxy, site.policy, settings=settings)
        device = subprocess.run(
            ["findmnt", "-no", "SOURCE", ledger_disk], check=True, capture_output=True, text=True
        ).stdout
        trigger = Path("/sys/fs/ext4", Path(device.strip()).name, "trigger_fs_error")
        yield lambda: trigger.write_text("a test", "ascii")
    finally:
        subprocess.run(["umount", "--lazy", ledger_disk], check=True)


@contextmanager
def kill_afterwards(throttler: Throttler) -> Iterator[Throttler]:
    """Kill the throttler at the end of the block, even if the test fails."""
    try:
        yield throttler
    finally:
        throttler.process.kill()


@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_usage_is_reported_lost_if_the_disk_becomes_read_only(site: Site, make_disk_fail: Callable[[], object]) -> None:
    site.policy.write_text(COUNTED)
    with ExitStack() as stack:
        listener = stack.enter_context(listening(site))
        stack.enter_context(traffic(stack.enter_context(connected(site, listener))))
        throttler = stack.enter_context(kill_afterwards(site.start()))
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
        until(lambda: used_bytes(site) > 0, timeout=LONG_TIMEOUT)
        make_disk_fail()
        until(lambda: read_status(throttler.socket)["ledger_error"] is not None, timeout=LONG_TIMEOUT)
        assert read_status(throttler.socket)["ledger_error"].endswith(
            ("disk I/O error", "attempt to write a readonly database")
        )
        download(site, listener)
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output(), timeout=LONG_TIMEOUT)
        assert "10.77.1.2" in clients(site.entries())
        output = throttler.process.output()
        assert output.count("budget usage will be written later") == 1, output
        throttler.process.signal(signal.SIGTERM)
        assert throttler.process.wait(60) == 1
        output = throttler.process.output()
        assert "the last budget usage is lost" in output, output
        assert "Traceback" not in output, output
    assert "4d50" not in site.proxy.run(["tc", "qdisc", "show"]).stdout, "the throttler left its qdiscs"


def overwrite_pages(ledger: Path) -> bytes:
    """Overwrite all pages of the database except the first. Return their previous content."""
    with closing(sqlite3.connect(ledger, timeout=10, isolation_level=None)) as database:
        ((page,),) = database.execute("PRAGMA page_size").fetchall()
        until(lambda: move_log_into_ledger(database, ledger), timeout=LONG_TIMEOUT)
        before = ledger.read_bytes()[page:]
        assert before
        with ledger.open("r+b") as file:
            file.seek(page)
            file.write(b"\xa5" * len(before))
            file.flush()
        database.execute("ROLLBACK")
    make_processes_read_again(ledger)
    return before


def move_log_into_ledger(database: sqlite3.Connection, ledger: Path) -> bool:
    """Move all pages from the write-ahead log into *ledger*. Return whether that succeeded.

    If so, no other process can write before the ROLLBACK.
    """
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("BEGIN IMMEDIATE")
    if not ledger.with_name(ledger.name + "-wal").stat().st_size:
        return True
    database.execute("ROLLBACK")
    return False


def repair(ledger: Path, pages: bytes) -> None:
    with ledger.open("r+b") as file:
        file.seek(-len(pages), os.SEEK_END)
        file.write(pages)
    make_processes_read_again(ledger)


def make_processes_read_again(ledger: Path) -> None:
    """Change the first page, so that every process that has the database open reads all pages again."""
    with closing(sqlite3.connect(ledger, timeout=10, isolation_level=None)) as database:
        ((version,),) = database.execute("PRAGMA user_version").fetchall()
        database.execute(f"PRAGMA user_version = {version + 1}")


@pytest.mark.nightly
@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_damaged_pages_keep_caps_and_usage_is_written_after_repair(site: Site, ledger_disk: Path) -> None:
    ledger = ledger_disk / "ledger.sqlite"
    site.policy.write_text(COUNTED)
    with running(site) as throttler, listening(site) as listener, connected(site, listener) as ends, traffic(ends):
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
        download(site, listener)
        until(lambda: used_bytes(site) > DOWNLOAD_BYTES, timeout=LONG_TIMEOUT)
        last_written, pages = used_bytes(site), overwrite_pages(ledger)
        until(lambda: read_status(throttler.socket)["ledger_error"] is not None, timeout=LONG_TIMEOUT)
        assert read_status(throttler.socket)["ledger_error"] == f"ledger {ledger}: database disk image is malformed"
        assert site.throttler("quota", "show").returncode == 1
        download(site, listener)
        assert "10.77.1.2" in clients(site.entries())
        repair(ledger, pages)
        until(lambda: read_status(throttler.socket)["ledger_error"] is None, timeout=LONG_TIMEOUT)
        until(lambda: used_bytes(site) >= last_written + DOWNLOAD_BYTES, timeout=LONG_TIMEOUT)
        output = throttler.process.output()
        assert output.count("budget usage will be written later") == 1, output
        assert used_bytes(site) < last_written + 2 * DOWNLOAD_BYTES, "bytes were counted twice"


@pytest.mark.nightly
@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_throttler_does_not_start_with_damaged_pages(site: Site, ledger_disk: Path) -> None:
    ledger = ledger_disk / "ledger.sqlite"
    site.policy.write_text(COUNTED)
    with running(site), listening(site) as listener:
        download(site, listener)
        until(lambda: used_bytes(site) >= DOWNLOAD_BYTES, timeout=LONG_TIMEOUT)
    last_written, before, pages = used_bytes(site), site.kernel_dump(), overwrite_pages(ledger)
    argv = [program("mptcp-throttler"), "run", "--config", str(site.config)]
    process = site.proxy.popen(argv, name="damaged", mounts=throttler_mounts(site.proxy))
    assert process.wait(60) == 1
    assert f"ledger {ledger}: database disk image is malformed" in process.output()
    assert "Traceback" not in process.output()
    assert site.kernel_dump() == before
    repair(ledger, pages)
    with running(site):
        assert used_bytes(site) == last_written
