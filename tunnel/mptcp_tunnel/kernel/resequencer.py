# SPDX-License-Identifier: GPL-2.0-or-later
"""The resequencer: a program that holds packets of a netfilter queue until the packets before them have arrived.

The program is written in C (``resequencer/``). If it is not running, the queue passes packets in the order of arrival
(``bypass``). A packet's number is in IPv4's identification field, or in IPv6's flow label.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.programs import run
from mptcp_tunnel.kernel.network import DEVICE
from mptcp_tunnel.model import End

log = logging.getLogger(__name__)
PROGRAM: Final = Path(__file__).parents[1] / "resequencer/resequencer"
QUEUE: Final = 7712
_MARK, _PATH_MASK = 0x4D540000, 0xFFFFFFF8
"""The mark of a joined packet with a number, and the mask without the path's number (``kernel/programs/tunnel.h``)."""
_TABLE: Final = "mptcp_tunnel"
_CHAIN: Final = "resequence"
_NO_TABLE: Final = f"table inet {_TABLE}\ndelete table inet {_TABLE}\n"
_NFTABLES: Final = f"""\
{_NO_TABLE}table inet {_TABLE} {{
  chain {_CHAIN} {{
    type filter hook prerouting priority raw - 100
    iifname "{DEVICE}" meta mark & {_PATH_MASK:#x} == {_MARK:#x} queue flags bypass to {QUEUE}
  }}
}}
"""
_IPTABLES: Final = {"iptables": ("ip", "raw"), "ip6tables": ("ip6", "raw")}
"""For each program, the nftables table that iptables-nft uses."""
_IN_USE: Final = re.compile(r"chain (?!PREROUTING\b)|policy \w+;\n\t\t\S")
"""Matches if the table has another chain, or any rule."""
_RULE: Final = (
    f"-i {DEVICE} -m mark --mark {_MARK:#x}/{_PATH_MASK:#x} -j NFQUEUE --queue-num {QUEUE} --queue-bypass".split()
)


class Resequencer:
    """The program, and the rule that queues packets for it."""

    def __init__(self) -> None:
        """Raises KernelError."""
        self._process = _start()
        self._undo_commands: list[tuple[Sequence[str], str]] = []
        self._rules: list[tuple[Sequence[str], Sequence[str], str]] = []
        """For each rule: the command that tests whether it exists, the command that adds it, and that command's
        input."""
        self._created_tables: list[tuple[str, str]] = []
        """Tables of iptables that the rules created."""
        try:
            self._add_rules()
        except KernelError:
            self.close()
            raise

    def close(self) -> None:
        """End the program and remove the rule."""
        self._end()
        for command, text in self._undo_commands:
            with suppress(KernelError):
                run(*command, text=text)
        for table in self._created_tables:
            if not _IN_USE.search(_table_listing(table)):
                with suppress(KernelError):
                    run("nft", "delete", "table", *table)

    def repair(self) -> bool:
        """Restore removed rules, and restart the program if it has ended. Return whether the program was restarted; a
        restarted program does not know the tunnels. Raises KernelError."""
        for exists, add, text in self._rules:
            try:
                run(*exists)
            except KernelError as error:
                log.warning("packets were no longer queued: %s; the rule is restored", error)
                run(*add, text=text)
        if self._process.poll() is None:
            return False
        log.warning("the resequencer ended with status %s; it is restarted", self._process.returncode)
        self._end()
        self._process = _start()
        return True

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the program has already ended
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _add_rules(self) -> None:
        """Queue packets with a rule of nftables, or of iptables if this kernel's nftables has no queues."""
        try:
            run("nft", "-f", "-", text=_NFTABLES)
            self._undo_commands.append((["nft", "-f", "-"], _NO_TABLE))
            exists = ["nft", "list", "chain", "inet", _TABLE, _CHAIN]
            self._rules.append((exists, ["nft", "-f", "-"], _NFTABLES))
        except KernelError as refused:
            for name, table in _IPTABLES.items():
                if self._add_iptables_rule(name, table):
                    continue
                if name == "iptables":
                    raise KernelError(f"queue packets from {DEVICE}: {refused}") from refused
                log.warning("queue IPv6 packets from %s: %s; they pass in the order of arrival", DEVICE, refused)

    def _add_iptables_rule(self, name: str, table: tuple[str, str]) -> bool:
        chain = ["-t", "raw", "-w"]
        listing_before = _table_listing(table)
        for program in (name, f"{name}-legacy"):
            remove = [program, *chain, "-D", "PREROUTING", *_RULE]
            with suppress(KernelError):
                run(*remove)  # a killed daemon may have left the rule
                listing_before = listing_before if _IN_USE.search(_table_listing(table)) else ""
            with suppress(KernelError):
                add, exists = ([program, *chain, each, "PREROUTING", *_RULE] for each in ("-A", "-C"))
                run(*add)
                self._undo_commands.append((remove, ""))
                self._rules.append((exists, add, ""))
                if not listing_before:
                    self._created_tables.append(table)
                return True
        return False

    def set_hold_time(self, far_end: End, hold_time: int) -> None:
        """Let the program hold packets that come from the far end for at most *hold_time* nanoseconds. Raises
        KernelError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{far_end.address} {far_end.port} {hold_time // 1000}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise KernelError(f"the resequencer has ended: {error.strerror}") from error


def _start() -> subprocess.Popen[str]:
    try:
        return subprocess.Popen([PROGRAM, str(QUEUE)], stdin=subprocess.PIPE, text=True)
    except OSError as error:
        raise KernelError(f"start {PROGRAM}, which ./run builds: {error.strerror}") from error


def _table_listing(table: tuple[str, str]) -> str:
    with suppress(KernelError):
        return run("nft", "list", "table", *table)
    return ""
