"""The resequencer: a program that holds packets of a netfilter queue until those before them have come.

It is in C (``resequencer/``). Without it, or where it ends, the queue lets packets pass as they come (``bypass``).
IPv4 alone: the number of a packet is in a field that IPv6 does not have.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.kernel.network import DEVICE
from mptcp_tunnel.model import End

PROGRAM: Final = Path(__file__).parents[1] / "resequencer/resequencer"
QUEUE: Final = 7712
_TABLE: Final = "mptcp_tunnel"
_NO_TABLE: Final = f"table inet {_TABLE}\ndelete table inet {_TABLE}\n"
_NFTABLES: Final = f"""\
{_NO_TABLE}table inet {_TABLE} {{
  chain resequence {{
    type filter hook prerouting priority raw - 100
    iifname "{DEVICE}" meta nfproto ipv4 meta l4proto udp queue flags bypass to {QUEUE}
  }}
}}
"""
_IPTABLES: Final = ("ip", "raw")
"""The table in which iptables keeps its rules, where it is built on nftables."""
_RULES_OF_CHAIN: Final = re.compile(r"chain (?!PREROUTING\b)|policy \w+;\n\t\t\S")
"""Another chain in it, or a rule."""
_RULE: Final = f"-i {DEVICE} -p udp -j NFQUEUE --queue-num {QUEUE} --queue-bypass".split()


class Resequencer:
    """The program, and the rule that gives it packets."""

    def __init__(self) -> None:
        """Raise KernelError where one of them cannot be had."""
        try:
            self._process = subprocess.Popen([PROGRAM, str(QUEUE)], stdin=subprocess.PIPE, text=True)
        except OSError as error:
            raise KernelError(f"start {PROGRAM}, which ./run makes: {error.strerror}") from error
        self._undo: tuple[Sequence[str], str] | None = None
        self._made_table = False
        """The table of iptables was not there before."""
        try:
            self._lead()
        except KernelError:
            self.close()
            raise

    def close(self) -> None:
        """End the program and remove the rule."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._undo is not None:
            with suppress(KernelError):
                _run(*self._undo)
            if self._made_table and not _RULES_OF_CHAIN.search(_listed()):
                with suppress(KernelError):
                    _run(["nft", "delete", "table", *_IPTABLES])

    def _lead(self) -> None:
        """Have packets queued: by nftables, or by iptables where this kernel's nftables has no queues."""
        try:
            _run(["nft", "-f", "-"], _NFTABLES)
            self._undo = ["nft", "-f", "-"], _NO_TABLE
        except KernelError as refused:
            chain = ["-t", "raw", "-w"]
            before = _listed()
            for program in ("iptables", "iptables-legacy"):
                remove = [program, *chain, "-D", "PREROUTING", *_RULE]
                with suppress(KernelError):
                    _run(remove)  # of one that was killed
                    before = before if _RULES_OF_CHAIN.search(_listed()) else ""
                with suppress(KernelError):
                    _run([program, *chain, "-A", "PREROUTING", *_RULE])
                    self._undo, self._made_table = (remove, ""), not before
                    return
            raise KernelError(f"queue packets that come by {DEVICE}: {refused}") from refused

    def tell(self, far: End, patience: int) -> None:
        """Have packets of the tunnel with that far end held for *patience* nanoseconds at most. Raises KernelError."""
        if far.address.version != 4:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{far.address} {far.port} {patience // 1000}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise KernelError(f"the resequencer has ended: {error.strerror}") from error


def _listed() -> str:
    try:
        return subprocess.run(["nft", "list", "table", *_IPTABLES], text=True, capture_output=True, check=False).stdout
    except OSError:
        return ""


def _run(command: Sequence[str], text: str = "") -> None:
    try:
        subprocess.run(command, input=text, text=True, capture_output=True, check=True)
    except OSError as error:
        raise KernelError(f"run {command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise KernelError(f"{command[0]}: {error.stderr.strip().partition(chr(10))[0]}") from error
