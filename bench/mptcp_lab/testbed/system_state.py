# SPDX-License-Identifier: GPL-2.0-or-later
"""Detect what a throttler leaves behind: kernel state of its network namespace, processes, BPF objects and files.

The tools of an operator print the dumps, which are compared as text, without counters. A failed dump differs from every
other dump, even from itself, because a state that was not read may have changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..agent.processes import descendants, end_of
from .features import missing
from .node import LiveNode

State = dict[str, str]
"""Text of each dump by its name."""
FAILED = "this dump failed: "
LINKS, SYSCTLS, QDISCS, CLASSES = "ip -d link show", "sysctls", "tc -d qdisc show", "tc -d class show"
PROCESSES, BPF, FILES = "processes", "BPF programs, maps and links", "files"


class Dump(NamedTuple):
    """A command that prints a part of the kernel's state."""

    name: str
    command: str
    feature: str = "root"
    """The feature that the command needs. Without it, nothing of this kind can exist."""


def _dump_of_each_device(command: str, hook: str = "") -> Dump:
    script = f'for dev in $(ls /sys/class/net); do echo "$dev:"; {command} dev "$dev" {hook} || exit; done'
    return Dump(f"{command} {hook}".strip(), f"({script})")


DUMPS = (
    *(Dump(line, line) for line in (LINKS, QDISCS, "ip route show table all", "ip -6 route show table all")),
    *(Dump(line, line) for line in ("ip rule show", "ip -6 rule show")),
    *(Dump(line, line, "mptcp-pm") for line in ("ip mptcp endpoint show", "ip mptcp limits show")),
    _dump_of_each_device(CLASSES),
    *(_dump_of_each_device("tc -d filter show", hook) for hook in ("", "ingress", "egress")),
    # Do not use -t, because it registers the named table, which then costs time for each packet.
    *(Dump(line, line, "iptables-legacy") for line in ("iptables-legacy-save", "ip6tables-legacy-save")),
    Dump("ipset save", "ipset save", "ipset"),
    Dump("nft list ruleset", "nft list ruleset", "nftables"),
)
"""The state that a throttler may change in a network namespace (docs/contract.md), and routes and rules, which it never
changes. The dump of links includes GSO limits and IFB devices."""
DIRECTORIES = (Path("/run/mptcp-throttler"), Path("/var/lib/mptcp-throttler"), Path("/sys/fs/bpf"))
"""Directories in which this host's throttler may leave files: its state, its ledger, pinned BPF objects."""
_COUNTERS = re.compile(r"\s(?:packets|bytes|refcnt|direct_packets_stat) \d+|(?<=\S) \[\d+:\d+\]")
_UNUSED_TABLE = re.compile(r"^\*\w+\n(?::\w+ ACCEPT\n)*COMMIT\n?", re.MULTILINE)
_ENDED = "-- ended with exit code "
_AFTER_DUMP = re.compile(rf"\n{_ENDED}(\d+)\n")
_SYSCTL_ROOT = Path("/proc/sys/net")


def kernel_state(node: LiveNode) -> State:
    """Return *node*'s kernel state as its tools print it, without counters. A failed dump has the error."""
    reasons = {dump.name: missing(dump.feature) for dump in DUMPS}
    state = {name: f"not dumped: {reason}" for name, reason in reasons.items() if reason is not None}
    dumps = [dump for dump in DUMPS if dump.name not in state]
    # Run all dumps in one shell, because entering a namespace takes longer than most dumps.
    script = "\n".join(f"{dump.command}; printf '\\n{_ENDED}%d\\n' $?" for dump in dumps)
    done = node.run(["sh", "-c", script])
    *parts, _ = _AFTER_DUMP.split(done.stdout)
    for dump, text, code in zip(dumps, parts[::2], parts[1::2], strict=True):
        failed = f"{FAILED}[{node.name}] {dump.name}: exit code {code}{end_of(done.stderr)}"
        # Sort routes, because a route that was removed and added again is last in its table.
        state[dump.name] = comparable_text(text, in_order=" route " not in dump.name) if code == "0" else failed
    state[SYSCTLS] = sysctls(node)
    return state


def whole_state(
    node: LiveNode, run: Path, *, more: Iterable[Path] = DIRECTORIES, except_for: Sequence[int] = ()
) -> State:
    """Return :func:`kernel_state` with processes, the BPF objects that they hold, and files.

    *run* is the directory that *node*'s throttler sees as /run/mptcp-throttler, *more* are further directories. The
    processes *except_for* and their descendants are left out: their number changes without a throttler, too.
    """
    state = kernel_state(node) | {FILES: _files((run, *more))}
    pids = set(map(int, node.run(["ip", "netns", "pids", node.namespace]).stdout.split()))
    for pid in except_for:
        pids -= {pid, *descendants(pid)}
    commands = {pid: _command_line(pid) for pid in sorted(pids)}
    # The command that lists the processes is one of these processes.
    listed = (command for command in commands.values() if command and "netns pids" not in command)
    state[PROCESSES] = "\n".join(sorted(listed))
    state[BPF] = "\n".join(f"{command}: {bpf}" for pid, command in commands.items() for bpf in _bpf(pid))
    return state


def sysctls(node: LiveNode) -> str:
    """Return the writable sysctls of *node*'s network namespace with their values, without kernel-wide sysctls."""
    lines = []
    with node.entered():
        for path in _paths(_SYSCTL_ROOT):
            name = ".".join(path.relative_to(_SYSCTL_ROOT.parent).parts)
            try:
                mode = path.stat().st_mode
                # Write-only files such as net.ipv4.route.flush are commands.
                if stat.S_ISREG(mode) and mode & 0o222 and mode & 0o444:
                    lines.append(f"{name} = {path.read_text().strip()}")
            except OSError as error:
                # Reading net.ipv6.conf.*.stable_secret fails with EIO until a value is set.
                lines.append(f"{name} = ({error.strerror})")
    return "\n".join(lines)


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the dumps that differ or failed, each with its texts before and after."""
    return [
        f"{name}:\n--- before\n{before.get(name, '')}\n--- after\n{after.get(name, '')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name) or before[name].startswith(FAILED)
    ]


def without_dumps(state: Mapping[str, str], *names: str) -> State:
    """Return *state* without the dumps *names*."""
    return {name: text for name, text in state.items() if name not in names}


def changed_sysctls(before: str, after: str) -> list[str]:
    """Return the names whose values differ between two texts of :func:`sysctls`, if both texts have the name."""
    old, new = (dict(line.partition(" = ")[::2] for line in each.splitlines()) for each in (before, after))
    return [name for name in old if name in new and old[name] != new[name]]


def comparable_text(text: str, *, in_order: bool = True) -> str:
    """Return *text* without comments, counters and empty iptables tables. Lines are sorted unless *in_order*."""
    lines = [_COUNTERS.sub("", line).rstrip() for line in text.splitlines() if not line.startswith("#")]
    return _UNUSED_TABLE.sub("", "\n".join(lines if in_order else sorted(lines)))


def _paths(directory: Path) -> list[Path]:
    """Return all files and directories below *directory*."""
    # os.walk, because Path.rglob raises an error if a directory vanishes during the search.
    return sorted(Path(folder, name) for folder, below, names in os.walk(directory) for name in below + names)


def _files(directories: Iterable[Path]) -> str:
    # The throttler never removes its empty lock file, which may already belong to its successor.
    return "\n".join(str(path) for each in directories for path in _paths(each) if path.name != "lock")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # The process has ended.
        return ""


def _bpf(pid: int) -> list[str]:
    """Return the BPF objects of process *pid*. An unpinned program or map exists as long as its descriptors."""
    targets = []
    # The process may end or close a descriptor during the reading.
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                targets.append(os.readlink(entry))
    return sorted(target for target in targets if target.startswith("anon_inode:bpf"))
