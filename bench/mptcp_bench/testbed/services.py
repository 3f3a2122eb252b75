"""The programs of a testbed: Apache as origin, the proxy, the throttler, and clients that speak MPTCP.

Each start function returns once the program answers, or raises with the end of its log.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .commands import TestbedError
from .node import LiveNode
from .process import TMPFS, Process

REPOSITORY = Path(__file__).resolve().parents[3]
SQUID_CONFIG = REPOSITORY / "conf" / "squid.conf"
THROTTLER_CONFIG = REPOSITORY / "conf" / "throttler.yaml"
SQUID_USER = "proxy"
PROXY_PORT = 3128
STATUS_SOCKET = "status.sock"

_APACHE_MODULES = Path("/usr/lib/apache2/modules")
_APACHE_CONFIG = """\
ServerRoot {root}
ServerName origin.test
PidFile {root}/apache.pid
DefaultRuntimeDir {root}
Mutex file:{root}
ErrorLog {root}/error.log
LogFormat "%h:%{{remote}}p %>s %B %D \\"%r\\"" short
CustomLog {root}/access.log short
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
User www-data
Group www-data
{listen}
DocumentRoot {root}/htdocs
EnableSendfile On
KeepAlive On
<Directory {root}/htdocs>
    Require all granted
</Directory>
"""


def wait_until(ready: Callable[[], bool], what: str, *, timeout: float = 15, process: Process | None = None) -> None:
    """Poll *ready*; raise, with the end of the log, after *timeout* seconds or when *process* ends first."""
    deadline = time.monotonic() + timeout
    while not ready():
        if process is not None and not process.running:
            raise TestbedError(f"{what}: {process.name} ended with {process.returncode}{process.tail()}")
        if time.monotonic() > deadline:
            raise TestbedError(f"{what}: not within {timeout:g} s{process.tail() if process else ''}")
        time.sleep(0.02)


def accepts(node: LiveNode, address: str, port: int) -> bool:
    """Say whether something on *node* takes TCP connections to *address*, *port*."""
    with node.entered():
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Origin:
    """A running Apache and its files."""

    node: LiveNode
    process: Process
    digests: Mapping[str, str]
    """SHA-256 of each file, in hex."""
    sizes: Mapping[str, int]
    directory: Path

    def url(self, name: str, *, family: int = 4, port: int = 80) -> str:
        address = self.node.address("eth0", family)
        host = f"[{address}]" if family == 6 else address
        return f"http://{host}{'' if port == 80 else f':{port}'}/{name}"


def write_file(path: Path, size: int) -> str:
    """Fill *path* with *size* bytes that depend on its name alone; return their SHA-256 in hex."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in range(0, size, 1 << 20):
            seed = f"{path.name}:{block}".encode()
            data = hashlib.shake_128(seed).digest(min(1 << 20, size - block))
            digest.update(data)
            file.write(data)
    path.chmod(0o644)
    return digest.hexdigest()


def start_origin(node: LiveNode, files: Mapping[str, int], *, ports: Sequence[int] = (80, 443)) -> Origin:
    """Start Debian's Apache on *node*, with plain HTTP on *ports* (443 as a goal for CONNECT), no MPTCP.

    *files* maps names to sizes in bytes.
    """
    root = node.directory / f"{node.name}-apache"
    (root / "htdocs").mkdir(parents=True)
    digests = {name: write_file(root / "htdocs" / name, size) for name, size in files.items()}
    config = root / "apache.conf"
    # Both families by name: "Listen 80" alone would depend on bindv6only.
    listen = "\n".join(f"Listen 0.0.0.0:{port}\nListen [::]:{port}" for port in ports)
    config.write_text(_APACHE_CONFIG.format(root=root, modules=_APACHE_MODULES, listen=listen))
    program = shutil.which("apache2") or "/usr/sbin/apache2"
    process = node.popen([program, "-D", "FOREGROUND", "-f", str(config)], name="apache")
    address = node.address("eth0")
    wait_until(
        lambda: all(accepts(node, address, port) for port in ports),
        f"Apache on {node.name} answers on ports {', '.join(map(str, ports))}",
        process=process,
    )
    return Origin(node, process, digests, dict(files), root)


def program(name: str) -> str:
    """Return the path of one of our own commands: beside this interpreter, else on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise TestbedError(f"start {name}: not installed in {beside.parent}; sudo ./run test installs it")
    return found


def _state(node: LiveNode, name: str) -> Path:
    directory = node.directory / f"{node.name}-{name}"
    directory.mkdir(exist_ok=True)
    return directory


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    node: LiveNode
    process: Process
    state: Path
    """What it sees as /run/mptcpproxy."""
    logs: Path
    """What it sees as /var/log/mptcpproxy."""

    def url(self, family: int = 4) -> str:
        address = self.node.address("wan0", family)
        return f"http://[{address}]:{PROXY_PORT}" if family == 6 else f"http://{address}:{PROXY_PORT}"


def start_proxy(
    node: LiveNode,
    config: Path = SQUID_CONFIG,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Proxy:
    """Start ``mptcp-proxy run`` on *node* with run, log and shared-memory directories of its own."""
    state, logs = _state(node, "proxy-run"), _state(node, "proxy-log")
    with suppress(LookupError):
        # As the package's own log directory: Squid's workers open their logs after they gave up root.
        shutil.chown(logs, SQUID_USER)
    mounts: dict[str, str | os.PathLike[str]] = {
        "/run/mptcpproxy": state,
        "/var/log/mptcpproxy": logs,
        # Two Squids on a host collide on /dev/shm/squid-*.
        "/dev/shm": TMPFS,
    }
    argv = [program("mptcp-proxy"), "run", "--config", str(config), *arguments]
    process = node.popen(argv, name="proxy", mounts=mounts, env=env)
    # Squid's orderly end waits for its clients, and nobody waits for it: all its state goes with the testbed.
    node.at_end(process.kill_tree)
    address = node.address("wan0")
    wait_until(
        lambda: accepts(node, address, PROXY_PORT),
        f"the proxy on {node.name} answers on port {PROXY_PORT}",
        process=process,
        timeout=30,
    )
    return Proxy(node, process, state, logs)


@dataclass(frozen=True, slots=True)
class Throttler:
    """A running throttler."""

    node: LiveNode
    process: Process
    state: Path
    """What it sees as /run/mptcp-throttler."""
    config: Path

    @property
    def socket(self) -> Path:
        return self.state / STATUS_SOCKET

    def command(self, *arguments: str) -> list[str]:
        """Return ``mptcp-throttler`` with *arguments*, to be run where it sees the daemon's state."""
        return [program("mptcp-throttler"), *arguments]


def throttler_mounts(node: LiveNode) -> dict[str, str | os.PathLike[str]]:
    """Return the private mounts of a throttler on *node*: the same for each one started there."""
    return {
        "/run/mptcp-throttler": _state(node, "throttler-run"),
    }


def start_throttler(node: LiveNode, config: Path = THROTTLER_CONFIG, *, arguments: Sequence[str] = ()) -> Throttler:
    """Start ``mptcp-throttler run`` on *node* and wait until its status socket answers."""
    mounts = throttler_mounts(node)
    state = Path(mounts["/run/mptcp-throttler"])
    (state / STATUS_SOCKET).unlink(missing_ok=True)
    argv = [program("mptcp-throttler"), "run", "--config", str(config), *arguments]
    process = node.popen(argv, name="throttler", mounts=mounts)
    wait_until(
        lambda: _connects(state / STATUS_SOCKET),
        f"the throttler on {node.name} answers on its status socket",
        process=process,
        timeout=30,
    )
    return Throttler(node, process, state, config)


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def write_throttler_config(
    node: LiveNode,
    policy: Path,
    *,
    interfaces: Sequence[str] = ("wan0",),
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Write daemon settings for *node* into the testbed's directory and return the file."""
    target = node.directory / f"{node.name}-throttler.yaml"
    values: dict[str, object] = {
        "interfaces": list(interfaces),
        "listen_ports": [PROXY_PORT],
        "policy": str(policy),
        **(settings or {}),
    }
    # JSON is YAML.
    target.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
    return target


def mptcp_command(argv: Sequence[str]) -> list[str]:
    """Return *argv* made to open its TCP sockets as MPTCP, by mptcpize(8)."""
    if shutil.which("mptcpize") is None:
        raise TestbedError(f"run {argv[0]} with MPTCP: mptcpize is not installed (apt package mptcpize)")
    return ["mptcpize", "run", *argv]


def python_command(code: str, *arguments: str) -> list[str]:
    """Return an argv that runs *code* with this interpreter."""
    return [sys.executable, "-c", code, *arguments]
