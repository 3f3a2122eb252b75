# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts the project's commands as forks of processes that have already imported the modules.

The imports of a daemon take almost a second of processor time, and the kernel tests start hundreds of daemons. For each
command, one process, the *forkserver*, imports the modules once. Each start is a fork that enters the namespace, makes
private mounts and calls the ``main`` of the command. The result is the same as that of ``mptcp_lab.testbed.process``.
Tests of the installation or of preload libraries execute the file of the command instead.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from mptcp_lab.agent.processes import mount_script
from mptcp_lab.testbed import process
from mptcp_lab.testbed.commands import program
from mptcp_lab.testbed.node import set_namespace
from mptcp_lab.testbed.ownership import NAMESPACES
from mptcp_lab.testbed.process import Started

COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mptcp-throttler": (
        "mptcp_throttler.cli",
        ("mptcp_throttler.runtime.daemon", "mptcp_throttler.config.host", "mptcp_common.status_client"),
    ),
    "mptcp-proxy": ("mptcp_proxy.cli", ("mptcp_proxy.supervisor", "mptcp_proxy.doctor.report")),
    "mptcp-console": ("mptcp_console.cli", ("mptcp_console.service",)),
    "mptcp-gateway": ("mptcp_gateway.cli", ("mptcp_gateway.daemon", "mptcp_gateway.forwarder")),
    "mptcp-tunnel": ("mptcp_tunnel.cli", ("mptcp_tunnel.daemon",)),
}
"""For each command: the module with its ``main``, and the modules that it imports later."""
_CLONE_NEWNS, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x20000, 0x4000, 0x80000, 2
_PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 15, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522


class Forked:
    """A started command, with the methods of ``subprocess.Popen`` that the testbed uses."""

    def __init__(self, argv: Sequence[str], status: socket.socket) -> None:
        self.args = argv
        self.returncode: int | None = None
        self._status = status
        first = status.recv(4096)
        if not first:
            raise RuntimeError(f"start {argv}: the forkserver has ended")
        self.pid: int = json.loads(first)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            ended = self._status.recv(4096)
            self._status.close()
            self.returncode, seconds = json.loads(ended) if ended else (-signal.SIGKILL, 0.0)
            _used_seconds.append(seconds)
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def inherited_properties() -> tuple[object, ...]:
    """Return the properties of this process that child processes inherit and that tests change."""
    limits = (resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS))
    ignored = [
        each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is signal.SIG_IGN
    ]
    return os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), ignored, *limits


class Forkserver:
    """The process that has imported the modules of *command*. It ends when this process ends."""

    def __init__(self, command: str) -> None:
        self.inherited_properties = inherited_properties()
        self._control, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, command, str(child_socket.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )

    def start(
        self,
        argv: Sequence[str],
        capabilities: int | None,
        namespace: str,
        mounts: Mapping[str, str],
        env: Mapping[str, str],
        log: int,
    ) -> Forked:
        """Start a fork that has only *capabilities* (a bit set). None: it has all capabilities."""
        script = mount_script(mounts) if mounts else None
        request = [list(argv), capabilities, str(NAMESPACES / namespace), script, dict(env)]
        parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket:
            socket.send_fds(self._control, [json.dumps(request).encode()], [log, child_socket.fileno()])
        return Forked(argv, parent_socket)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_servers: dict[str, Forkserver] = {}
_used_seconds: list[float] = []


def spawn(argv: Sequence[str], namespace: str, mounts: Mapping[str, str], env: Mapping[str, str], log: int) -> Started:
    """Start *argv* as ``mptcp_lab.testbed.process.spawn`` does. A command of the project is started as a fork.

    *argv* may begin with a prefix from :func:`unit_capabilities.capability_prefix`. Commands with a preload library are
    not forked.
    """
    from unit_capabilities import split_capability_prefix  # the forkserver's sys.path has no tests

    capabilities, command = split_capability_prefix(argv)
    name = Path(command[0]).name
    if name not in COMMANDS or command[0] != program(name) or "LD_PRELOAD" in env:
        return process.spawn(argv, namespace, mounts, env, log)
    if name not in _servers:
        _servers[name] = Forkserver(name)
    server = _servers[name]
    if server.inherited_properties != inherited_properties():
        return process.spawn(argv, namespace, mounts, env, log)
    return server.start(command, capabilities, namespace, mounts, env, log)


def processor_seconds() -> float:
    """Return the processor seconds of the forked processes that have ended."""
    return sum(_used_seconds)


def close() -> None:
    """End the forkservers. The testbeds have already ended the forks."""
    while _servers:
        _servers.popitem()[1].close()
    _used_seconds.clear()  # os.times() now includes this time, as that of the forkservers' children


def _serve(command: str, control: socket.socket) -> int:
    """Fork for each request. In a child process, return the result of the command's ``main``."""
    module, imported = COMMANDS[command]
    for name in (module, *imported):
        import_module(name)
    if command == "mptcp-throttler":
        libraries = import_module("mptcp_throttler.kernel.libraries")
        libraries.scapy_sniffer()
        libraries.python_iptables()
    gc.collect()
    gc.freeze()
    wakeup_receiver, wakeup_sender = socket.socketpair()
    for each in (wakeup_receiver, wakeup_sender):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakeup_sender.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, wakeup_receiver], [], [])[0]
        if wakeup_receiver in ready:
            with suppress(BlockingIOError):
                wakeup_receiver.recv(4096)
            _report_ended(running)
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not data:
            return 0
        log, status = descriptors[0], socket.socket(fileno=descriptors[1])
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (control, wakeup_receiver, wakeup_sender, status, *running.values()):
                each.close()
            argv, capabilities, namespace, mounts, environment = json.loads(data)
            _set_up(argv, namespace, mounts, environment, log)
            if capabilities is not None:
                _confine(capabilities)
            return int(sys.modules[module].main())
        os.close(log)
        running[pid] = status
        status.send(json.dumps(pid).encode())


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, code, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as status, suppress(OSError):
            status.send(json.dumps([os.waitstatus_to_exitcode(code), usage.ru_utime + usage.ru_stime]).encode())


def _set_up(argv: list[str], namespace: str, mounts: str | None, env: dict[str, str], log: int) -> None:
    """Set up this process as ip-netns(8) and unshare(1) do, with *argv* and *env*, and with output to *log*."""
    os.setsid()
    for each in (1, 2):
        os.dup2(log, each)
    os.close(log)
    with open(namespace) as file:
        set_namespace(file.fileno(), namespace)
    _libc("unshare", _CLONE_NEWNS)
    _libc("mount", b"", b"/", b"none", _MS_REC | _MS_SLAVE, None)
    _libc("umount2", b"/sys", _MNT_DETACH)
    _libc("mount", b"sysfs", b"/sys", b"sysfs", 0, None)
    if mounts is not None:
        subprocess.run(["sh", "-c", mounts, "sh", "true"], check=True)
    if (scapy := sys.modules.get("scapy.config")) is not None:
        # Scapy read the interfaces of another namespace when it was imported.
        scapy.conf.ifaces.reload()
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    _libc("prctl", _PR_SET_NAME, Path(argv[0]).name.encode(), 0, 0, 0)


def _confine(capabilities: int) -> None:
    """Limit the capabilities as ``setpriv --bounding-set --no-new-privs`` does for a program of root."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for number in range(last + 1):
        if not capabilities >> number & 1:
            _libc("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    _libc("capset", struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("6I", low, low, 0, high, high, 0))
    _libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _libc(function: str, *arguments: Any) -> None:
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2]))))
