"""A disk that is really full, or really read-only, under the ledger: said, nothing counted twice, nothing lost."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import GENEROUS, traffic
from small_disk import fill, small_disk
from throttler_site import Site, clients, connected, connection, listening, running, until

from mptcp_lab.testbed.services import write_throttler_config
from mptcp_throttler.views.ask import ask

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
AMOUNT, PIECE = 300_000, 10_000
"""Bytes; a piece is waited for before the next."""
PROGRAM = """
import subprocess, sys
from pathlib import Path
from mptcp_throttler.policy.budget import Account, Counters
from mptcp_throttler.stages.budget import Usage
from mptcp_throttler.storage.budget_ledger import Ledger, LedgerError

directory = Path(sys.argv[1])
ledger = Ledger(directory / "ledger.sqlite")
account = Account("rule", "10.0.0.1", 0)
counters = {number: Counters(number, number) for number in range(100)}
usage = Usage(added={account: 1000}, counters=counters, closed=frozenset())

def write():
    try:
        ledger.write("boot", usage)
    except LedgerError as error:
        print(error)
    print(ledger.used([("rule", 0)])[account])

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
except LedgerError as error:
    print(error)
"""


def test_a_disk_that_is_full_or_read_only(
    tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> None:
    require("root")
    directory = tmp_path_factory.mktemp("ledger")
    # Its own mount namespace ends with the program.
    mounted = 'mount -t tmpfs -o size=1m,mode=0700 tmpfs "$1" && exec "$2" -I -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", mounted, "sh", str(directory), sys.executable, PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ledger = f"ledger {directory}/ledger.sqlite"
    assert done.stdout.splitlines() == [
        "1000",
        f"{ledger}: database or disk is full",
        "1000",
        "2000",
        f"{ledger}: Read-only file system",
    ]


@pytest.fixture
def disk(site: Site, require: Callable[..., None]) -> Iterator[Path]:
    """A disk for the ledger alone, and the policies of these tests beside it."""
    require("bpf-pacing")
    with small_disk(site.testbed.directory / "ledger-disk", 0o700) as disk:
        settings = {"netfilter": site.backend, "ledger": str(disk / "ledger.sqlite")}
        write_throttler_config(site.proxy, site.policy, settings=settings)
        yield disk


def carry(site: Site, listener: socket.socket) -> None:
    """Have `AMOUNT` bytes downloaded, over a connection of its own."""
    with connected(site, listener) as (client, proxy):
        for _ in range(AMOUNT // PIECE):
            proxy.sendall(bytes(PIECE))
            got = 0
            while got < PIECE:
                got += len(client.recv(PIECE))


def used(site: Site) -> int:
    """Return what the ledger has, which nobody opens for writing here."""
    return sum(each["used"] for each in json.loads(site.throttler("quota", "show", "--json").stdout))


@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_a_full_disk_beside_traffic(site: Site, disk: Path) -> None:
    site.policy.write_text(COUNTED)
    with running(site) as throttler, listening(site) as listener, connected(site, listener) as ends, traffic(ends):
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=GENEROUS)
        until(lambda: used(site) > 0, timeout=GENEROUS)
        filling = fill(disk)
        until(lambda: ask(throttler.socket)["ledger_error"] is not None, timeout=GENEROUS)
        status = ask(throttler.socket)
        assert status["ledger_error"] == f"ledger {disk}/ledger.sqlite: database or disk is full"
        assert "BUDGETS NOT WRITTEN: ledger " in site.throttler("status").stdout
        written = used(site)
        carry(site, listener)
        assert "10.77.1.2" in clients(site.entries())
        assert used(site) == written
        # A policy with budgets needs what is held back.
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output(), timeout=GENEROUS)
        assert "10.77.1.2" in clients(site.entries())
        filling.unlink()
        until(lambda: used(site) >= written + AMOUNT, timeout=GENEROUS)
        until(lambda: ask(throttler.socket)["ledger_error"] is None, timeout=GENEROUS)
        # Once, whatever was tried in between.
        said = throttler.process.output()
        assert said.count("what budgets count is written later") == 1, said
        assert said.count("what budgets count is written again") == 1, said
        # That of the connection which has ended goes later.
        assert "10.77.1.2" in clients(site.entries())
        assert used(site) < written + 3 * AMOUNT, "nothing counts twice"


@pytest.mark.parametrize("site", ["nftables"], indirect=True)
def test_a_budget_on_a_read_only_disk_is_refused_beside_traffic(site: Site, disk: Path) -> None:
    site.policy.write_text(CAPPED)
    with running(site) as throttler, connection(site) as ends, traffic(ends):
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=GENEROUS)
        # Whether it may be written is a property of the mount as well, and the throttler has its own.
        remount = ["nsenter", "--target", str(throttler.process.pid), "--mount", "mount", "-o"]
        subprocess.run([*remount, "remount,ro", disk], check=True)
        site.policy.write_text(COUNTED)
        throttler.process.signal(signal.SIGHUP)
        until(lambda: "policy not reloaded" in throttler.process.output(), timeout=GENEROUS)
        assert f"ledger {disk}/ledger.sqlite: Read-only file system" in throttler.process.output()
        assert clients(site.entries()) == ["10.77.1.2"]
        subprocess.run([*remount, "remount,rw", disk], check=True)
        throttler.process.signal(signal.SIGHUP)
        until(lambda: ask(throttler.socket)["reloads"]["accepted"] == 1, timeout=GENEROUS)
        until(lambda: used(site) > 0, timeout=GENEROUS)
        assert clients(site.entries()) == ["10.77.1.2"]
