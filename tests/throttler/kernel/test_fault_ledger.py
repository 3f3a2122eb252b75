"""A disk that is really full, or really read-only, under the ledger: said, nothing counted twice, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.kernel

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
