# SPDX-License-Identifier: GPL-2.0-or-later
"""Program that runs the throttler and kills it with SIGKILL after one of its changes to the kernel.

    python killing_throttler.py WORDS NUMBER ARGUMENT...

The first SIGHUP starts the count. The process kills itself after the NUMBER-th change whose description contains
WORDS. Changes are: each request about a class or set entry (netlink), each run of nftables commands, and each update of
a BPF map. The ARGUMENTs are passed to mptcp-throttler. The last line of output names the change.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from mptcp_common.bpf import Bpf, Map
from mptcp_common.netlink import NetlinkSocket
from mptcp_throttler.cli import main
from mptcp_throttler.kernel.netfilter.nftables import LibNftables
from mptcp_throttler.runtime.daemon import Daemon


class KillSwitch:
    """Counts changes after it was armed, and kills the process at the change with the given number."""

    def __init__(self, words: str, number: int) -> None:
        self.is_armed = False
        self._words, self._remaining = words, number

    def count_change(self, change: str) -> None:
        if self.is_armed and self._words in change:
            self._remaining -= 1
            if not self._remaining:
                print(f"killed after: {change}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


def run(words: str, number: str, *arguments: str) -> NoReturn:
    switch = KillSwitch(words, int(number))
    send, nft, update, reload = (
        NetlinkSocket.requests,
        LibNftables.run,
        Bpf.update_batch,
        Daemon.reload,
    )

    def requests(
        self: NetlinkSocket, batch: Sequence[tuple[int, int, bytes]], action: str, ignore: Sequence[int] = ()
    ) -> None:
        for each in batch:
            send(self, [each], action, ignore)
            switch.count_change(action)

    def run_commands(self: LibNftables, commands: str, operation: str) -> str:
        output = nft(self, commands, operation)
        if not commands.startswith("list "):
            switch.count_change(operation)
        return output

    def update_batch(self: Bpf, table: Map, keys: bytes, values: bytes) -> None:
        update(self, table, keys, values)
        switch.count_change(f"update the map {table.name}")

    def arm_and_reload(self: Daemon) -> None:
        switch.is_armed = True
        reload(self)

    NetlinkSocket.requests, LibNftables.run, Bpf.update_batch = requests, run_commands, update_batch  # type: ignore[method-assign]
    Daemon.reload = arm_and_reload  # type: ignore[method-assign]
    sys.exit(main(arguments))


if __name__ == "__main__":
    run(*sys.argv[1:])
