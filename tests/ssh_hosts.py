# SPDX-License-Identifier: GPL-2.0-or-later
"""Three namespaces that simulate separate hosts. A fourth namespace, the core, has access to them only with ssh.

Each host has an sshd with a private /tmp, /run and /etc. The client is like a newly installed Raspberry Pi: it has
addresses, default routes and default sysctls, but no policy routing and no endpoints, which bench/rpi configures.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mptcp_lab.testbed import TWO_PATHS, LiveNode, Process, Testbed, TestbedError, Topology
from mptcp_lab.testbed.commands import REPOSITORY, program
from mptcp_lab.testbed.ownership import namespace_processes
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.system_state import SYSCTLS, State, differences, kernel_state

PARTS = ("client", "proxy", "origin")
DEVICE = {"client": "eth0", "proxy": "wan0", "origin": "eth0"}
USER = "pi"
PORT = 2222
LIST_ADDRESSES = ("ip -o -4 addr show", "ip -o -6 addr show scope global")
ROUTES = "ip -6 route show table all"
UNSETTLED = ("NO-CARRIER", "LOWERLAYERDOWN", " linkdown")
"""Texts in the state of a link that was just set up. They disappear when the kernel detects the link's other end."""


def dump(node: LiveNode) -> str:
    """Return the kernel state of *node* that a run or a script may change, without state that namespaces share."""
    state: State = {}

    def complete() -> bool:
        """Return whether the dump is complete. It is incomplete if a link was deleted during the dump."""
        nonlocal state
        state = kernel_state(node)
        return not differences(state, state)

    wait_until(complete, f"the kernel of {node.name} can be read")
    state[SYSCTLS] = "\n".join(
        line for line in state[SYSCTLS].splitlines() if line.startswith(("net.ipv4.", "net.ipv6.", "net.mptcp."))
    )
    # Omit the routes that the kernel adds after a delay for each IPv6 address. The dump contains the address.
    state[ROUTES] = "\n".join(line for line in state[ROUTES].splitlines() if "proto kernel" not in line)
    for command in LIST_ADDRESSES:
        lines = node.run(command.split()).stdout.splitlines()
        state[command] = "\n".join(sorted(" ".join(line.split()[1:4]) for line in lines))
    return "\n".join(f"{name}:\n{text}" for name, text in state.items())


def dump_when_links_are_up(node: LiveNode) -> str:
    """Wait until all links of *node* are up. Return its dump."""
    found = ""

    def is_settled() -> bool:
        nonlocal found
        found = dump(node)
        return not any(word in found for word in UNSETTLED)

    wait_until(is_settled, f"the links of {node.name} are up")
    return found


def differing_lines(old: str, new: str) -> list[str]:
    """Return the lines that only one of the two dumps contains."""
    before, after = old.splitlines(), new.splitlines()
    return [f"- {line}" for line in before if line not in after] + [f"+ {line}" for line in after if line not in before]


def wait_until_same(before: str, read: Callable[[], str], what: str = "the state is as before") -> None:
    """Wait until *read* returns *before*: the kernel makes some changes after a delay."""
    now = ""

    def is_as_before() -> bool:
        nonlocal now
        now = read()
        return now == before

    with suppress(TestbedError):
        wait_until(is_as_before, what)
    assert now == before, f"{what}: {differing_lines(before, now)}"


def plain() -> Topology:
    """Return the two-path topology, but with a client that is not configured for several paths."""

    def unconfigured_node(name: str) -> Any:
        node = TWO_PATHS.node(name)
        settings = (
            ("net.mptcp.enabled", "0" if name == "client" else "1"),
            ("net.ipv4.tcp_no_metrics_save", "0"),
            ("net.ipv4.conf.default.rp_filter", "1"),
        )
        routes = tuple(route for route in node.routes if "table" not in route)
        return replace(node, routes=routes, endpoints=(), max_subflows=2, max_add_addr=0, sysctls=settings)

    nodes = tuple(unconfigured_node(node.name) if node.name in PARTS else node for node in TWO_PATHS.nodes)
    return replace(TWO_PATHS, name="plain", nodes=nodes)


def _copy_etc(target: Path, sudoers: str) -> None:
    """Copy /etc to *target*, and add a user with the rights *sudoers*."""
    shutil.copytree("/etc", target, symlinks=True)
    with (target / "passwd").open("a") as passwd:
        passwd.write(f"{USER}:x:4711:4711::/tmp:/bin/sh\n")
    with (target / "group").open("a") as group:
        group.write(f"{USER}:x:4711:\n")
    with (target / "shadow").open("a") as shadow:
        shadow.write(f"{USER}:*:19000:0:99999:7:::\n")
    (target / "sudoers.d" / USER).write_text(f"{USER} {sudoers}\n")
    (target / "sudoers.d" / USER).chmod(0o440)


def _generate_key(file: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


@dataclass(frozen=True)
class SshHosts:
    """The hosts, the directory with their ssh keys, and their kernel state before the test."""

    testbed: Testbed
    daemons: Mapping[str, Process]
    directory: Path
    before: dict[str, str] = field(default_factory=dict)

    @property
    def core(self) -> LiveNode:
        return self.testbed["core"]

    @property
    def ssh_options(self) -> dict[str, str]:
        return {
            "Port": str(PORT),
            "IdentityFile": str(self.directory / "key"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.directory / "known_hosts"),
            "GlobalKnownHostsFile": "none",
        }

    def destination(self, part: str, user: str = "root") -> str:
        return f"{user}@{self.testbed[part].address(DEVICE[part])}"

    def inventory(self, name: str = "inventory.yaml", **changes: Any) -> Path:
        """Write an inventory with *changes*, such as ``client__paths={…}``. Return the file."""
        content: dict[str, Any] = {
            "options": self.ssh_options,
            "client": {"ssh": self.destination("client"), "paths": {"ethernet": "eth0", "wifi": "wlan0"}},
            "proxy": {
                "ssh": self.destination("proxy"),
                "interfaces": ["wan0"],
                "commands": str(Path(program("mptcp-proxy")).parent),
            },
            "origin": {"ssh": self.destination("origin"), "interface": "eth0"},
        }
        for key, value in changes.items():
            section, _, entry = key.partition("__")
            if entry:
                content[section][entry] = value
            else:
                content[section] = value
        file = self.directory / name
        # JSON is also YAML. Each key is on a separate line, because messages contain line numbers.
        file.write_text(json.dumps(content, indent=1))
        return file

    def dump(self, part: str) -> str:
        """Return the kernel state of a host that a run may change."""
        return dump(self.testbed[part])

    def changes(self) -> dict[str, list[str]]:
        """Return, for each changed host, the lines that differ from its state before the test."""
        changed = {}
        for part in PARTS:
            old, new = self.before[part], self.dump(part)
            if old != new:
                changed[part] = differing_lines(old, new)
        return changed

    def wait_until_unchanged(self) -> None:
        """Wait until all hosts have the state from before the test."""
        for part in PARTS:
            wait_until_same(self.before[part], partial(self.dump, part), f"{part} has the state from before the test")

    def processes(self, part: str) -> list[str]:
        """Return the command lines of the processes on a host, except its sshd."""
        return [line for line in self.processes_by_id(part).values() if not line.startswith(("sshd", "/usr/sbin/sshd"))]

    def processes_by_id(self, part: str) -> dict[int, str]:
        found = {}
        for pid in namespace_processes(self.testbed[part].namespace):
            # If a process has just ended, this file is empty or does not exist.
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line:
                    found[pid] = line
        return found

    def directories(self, part: str) -> list[str]:
        """Return the directories of runs in the host's private /tmp."""
        return sorted(path.name for path in (self.directory / part).glob("mptcp-bench-*"))


def start(testbed: Testbed, *, sudoers: str = "ALL=(ALL:ALL) NOPASSWD: ALL") -> SshHosts:
    """Start an sshd on client, proxy and origin of *testbed*."""
    directory = testbed.directory
    _generate_key(directory / "key")
    host_lines = []
    daemons = {}
    for part in PARTS:
        host_tmp = directory / part
        host_tmp.mkdir()
        host_tmp.chmod(0o1777)
        (directory / f"{part}-sshd").mkdir(mode=0o755)
        _generate_key(host_tmp / "host_key")
        shutil.copy(directory / "key.pub", host_tmp / "authorized_keys")
        (host_tmp / "authorized_keys").chmod(0o644)
        # These paths are valid for sshd, whose /tmp is the directory *host_tmp*.
        (host_tmp / "sshd_config").write_text(
            f"Port {PORT}\nHostKey /tmp/host_key\nPidFile none\nAuthorizedKeysFile /tmp/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\n"
        )
        _copy_etc(directory / f"{part}-etc", sudoers)
        mounts = {
            "/tmp": str(host_tmp),
            "/etc": str(directory / f"{part}-etc"),
            "/run/sshd": str(directory / f"{part}-sshd"),
        }
        if REPOSITORY.is_relative_to("/tmp"):
            # The project's commands are in /tmp, and the host's private /tmp would hide them. Mounts are made in the
            # order of their names.
            mounts |= {"/mnt": str(REPOSITORY), str(REPOSITORY): "/mnt"}
        argv = ["/usr/sbin/sshd", "-D", "-e", "-f", "/tmp/sshd_config"]
        daemons[part] = testbed[part].popen(argv, name="sshd", mounts=mounts)
        address = testbed[part].address(DEVICE[part])
        kind, key = (host_tmp / "host_key.pub").read_text().split()[:2]
        host_lines.append(f"[{address}]:{PORT} {kind} {key}\n")
    (directory / "known_hosts").write_text("".join(host_lines))
    hosts = SshHosts(testbed, daemons, directory)
    for part in PARTS:
        daemon = daemons[part]
        wait_until(lambda d=daemon: "Server listening" in d.output(), f"sshd of {part} listens", process=daemon)  # type: ignore[misc]
        hosts.before[part] = dump_when_links_are_up(testbed[part])
    return hosts
