# SPDX-License-Identifier: GPL-2.0-or-later
"""Detect the state that a throttler leaves: kernel state of its network namespace, processes, BPF objects and files.

The usual tools of an operator print the dumps, which are compared as text, without counters. A failed dump differs from
every other dump, even from itself, because a state that was not read may have changed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..agent.processes import descendants
from .commands import TestbedError, said
from .features import missing
from .node import LiveNode

State = dict[str, str]
"""Text of each dump by its name."""
FAILED = "this dump failed: "
LINKS, SYSCTLS, QDISCS, CLASSES = "ip -d link show", "sysctls", "tc -d qdisc show", "tc -d class show"
PROCESSES, BPF, FILES = "processes", "BPF programs, maps and links", "files"


@dataclass(frozen=True, slots=True)
class Dump:
    """A command that prints a part of the kernel's state."""

    name: str
    argv: Sequence[str]
    feature: str
    """The feature (``features``) that the command needs. Without the feature, nothing of this kind can exist, and
    the dump is skipped."""


def _of_each_device(command: str, hook: str = "") -> Dump:
    script = f'for dev in $(ls /sys/class/net); do echo "$dev:"; {command} dev "$dev" {hook} || exit; done'
    return Dump(f"{command} {hook}".strip(), ("sh", "-c", script), "root")


def _command(line: str, feature: str = "root") -> Dump:
    return Dump(line, tuple(line.split()), feature)


DUMPS = (
    _command(LINKS),
    _command("ip route show table all"),
    _command("ip -6 route show table all"),
    _command("ip rule show"),
    _command("ip -6 rule show"),
    _command("ip mptcp endpoint show", "mptcp-pm"),
    _command("ip mptcp limits show", "mptcp-pm"),
    _command(QDISCS),
    _of_each_device(CLASSES),
    *(_of_each_device("tc -d filter show", hook) for hook in ("", "ingress", "egress")),
    # Do not use -t, because it registers the named table, which then costs time for each packet.
    _command("iptables-legacy-save", "iptables-legacy"),
    _command("ip6tables-legacy-save", "iptables-legacy"),
    _command("ipset save", "ipset"),
    _command("nft list ruleset", "nftables"),
)
"""The state that a throttler may change in a network namespace (docs/contract.md), and routes and rules, which it never
changes.

The dump of links includes GSO limits and IFB devices."""
DIRECTORIES = (Path("/run/mptcp-throttler"), Path("/var/lib/mptcp-throttler"), Path("/sys/fs/bpf"))
"""Directories in which this host's throttler may leave files: its state, its ledger, pinned BPF objects."""
_COUNTERS = re.compile(r"\s(?:packets|bytes|refcnt|direct_packets_stat) \d+|(?<=\S) \[\d+:\d+\]")
_UNUSED_TABLE = re.compile(r"^\*\w+\n(?::\w+ ACCEPT\n)*COMMIT\n?", re.MULTILINE)
_ENDED = "-- ended with exit code "
_AFTER_DUMP = re.compile(rf"\n{_ENDED}(\d+)\n")
_SYSCTL_ROOT = Path("/proc/sys/net")


def kernel_state(node: LiveNode) -> State:
    """Return *node*'s kernel state as its tools print it, without counters. A failed dump has the error."""
    state = {dump.name: f"not dumped: {lacking}" for dump in DUMPS if (lacking := missing(dump.feature)) is not None}
    taken = [dump for dump in DUMPS if dump.name not in state]
    # Run all dumps in one shell, because entering a namespace takes longer than most dumps.
    script = "\n".join(f"{shlex.join(dump.argv)}; printf '\\n{_ENDED}%d\\n' $?" for dump in taken)
    try:
        done = node.run(["sh", "-c", script])
    except TestbedError as error:
        state |= dict.fromkeys((dump.name for dump in taken), f"{FAILED}{error}")
    else:
        *found, _ = _AFTER_DUMP.split(done.stdout)
        for dump, text, code in zip(taken, found[::2], found[1::2], strict=True):
            failed = f"{FAILED}[{node.name}] {dump.name}: exit code {code}{said(done.stderr)}"
            # Sort routes, because a route that was removed and added again is last in its table.
            state[dump.name] = readable(text, in_order=" route " not in dump.name) if code == "0" else failed
    state[SYSCTLS] = sysctls(node)
    return state


def whole_state(node: LiveNode, run: Path, *, more: Iterable[Path] = DIRECTORIES, besides: Sequence[int] = ()) -> State:
    """Return :func:`kernel_state` with processes, the BPF objects that they hold, and files.

    *run* is the directory that *node*'s throttler sees as /run/mptcp-throttler, *more* are further directories. The
    processes *besides* and their descendants are left out, because they start and end other processes themselves.
    """
    state = kernel_state(node)
    try:
        pids = set(map(int, node.run(["ip", "netns", "pids", node.namespace]).stdout.split()))
    except TestbedError as error:
        return state | dict.fromkeys((PROCESSES, BPF), f"{FAILED}{error}") | {FILES: _files((run, *more))}
    for pid in besides:
        pids -= {pid, *descendants(pid)}
    found = [(pid, _command_line(pid)) for pid in sorted(pids)]
    # Leave out the command that lists the processes, because it is one of these processes.
    state[PROCESSES] = "\n".join(sorted(command for _, command in found if command and "netns pids" not in command))
    state[BPF] = "\n".join(f"{command}: {held}" for pid, command in found for held in _bpf(pid))
    state[FILES] = _files((run, *more))
    return state


def sysctls(node: LiveNode) -> str:
    """Return the writable sysctls of *node*'s network namespace with their values.

    Kernel-wide sysctls are left out. A namespace can at most read them (ensure_safe_net_sysctl in net/sysctl_net.c,
    tcp_allowed_congestion_control in net/ipv4/sysctl_net_ipv4.c), so that only other namespaces change them.
    """
    lines = []
    with node.entered():
        # os.walk, because Path.rglob raises an error if an interface's directory vanishes during the search.
        found = (Path(folder, name) for folder, _, names in os.walk(_SYSCTL_ROOT) for name in names)
        for path in sorted(found):
            try:
                mode = path.stat().st_mode
                # Skip write-only files such as net.ipv4.route.flush, which are commands.
                if mode & 0o222 and mode & 0o444:
                    lines.append(f"{_sysctl_name(path)} = {path.read_text().strip()}")
            except OSError as error:
                # Reading net.ipv6.conf.*.stable_secret fails with EIO until it is set.
                lines.append(f"{_sysctl_name(path)} = ({error.strerror})")
    if not any(line.startswith("net.mptcp.") for line in lines):
        return f"{FAILED}[{node.name}] {_SYSCTL_ROOT} has no net.mptcp"
    return "\n".join(lines)


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the dumps that changed or failed, each with both texts."""
    return [
        f"{name}:\n--- before\n{before.get(name, '')}\n--- after\n{after.get(name, '')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name) or before[name].startswith(FAILED)
    ]


def without(state: Mapping[str, str], *names: str) -> State:
    """Return *state* without the dumps *names*."""
    return {name: text for name, text in state.items() if name not in names}


def changed_sysctls(before: str, after: str) -> list[str]:
    """Return the names whose values differ between two texts of :func:`sysctls`, if both texts have the name."""
    then, now = (dict(line.partition(" = ")[::2] for line in each.splitlines()) for each in (before, after))
    return [name for name in then if name in now and then[name] != now[name]]


def readable(text: str, *, in_order: bool = True) -> str:
    """Return *text* without comments, counters and empty iptables tables. Lines are sorted unless *in_order*."""
    lines = [_COUNTERS.sub("", line).rstrip() for line in text.splitlines() if not line.startswith("#")]
    return _UNUSED_TABLE.sub("", "\n".join(lines if in_order else sorted(lines)))


def _sysctl_name(path: Path) -> str:
    return ".".join(path.relative_to(_SYSCTL_ROOT.parent).parts)


def _files(directories: Iterable[Path]) -> str:
    # Leave out the lock's empty file, which stays on purpose: its removal could remove a successor's file.
    # os.walk, because Path.rglob raises an error if a directory vanishes during the search.
    found = (
        Path(folder, name) for each in directories for folder, below, names in os.walk(each) for name in below + names
    )
    return "\n".join(sorted(str(path) for path in found if path.name != "lock"))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        # The process has ended.
        return ""


def _bpf(pid: int) -> list[str]:
    """Return the BPF objects of process *pid*. An unpinned program or map exists as long as its descriptors."""
    found = []
    # The process may end or close a descriptor during the reading.
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(entry))
    return sorted(target for target in found if target.startswith("anon_inode:bpf"))
