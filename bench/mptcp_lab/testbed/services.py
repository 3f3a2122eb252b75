# SPDX-License-Identifier: GPL-2.0-or-later
"""Start the programs of an experiment: Apache as origin, the proxy, the throttler, and clients that use MPTCP.

Each start function works on any :class:`~.host.Host` and returns when the program answers. If the program does not
answer, the function ends it and raises an error with the end of its log. Files that are passed are on this machine, or
below the host's own directory.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptcp_common.status_client import ask

from ..agent.processes import TMPFS
from .commands import REPOSITORY, TestbedError, program, undone_on_error
from .congestion import AVAILABLE_KEY, missing_control
from .host import Host, Program, wait_until
from .node import LiveNode

__all__ = ["REPOSITORY", "program", "wait_until"]

SQUID_CONFIG = REPOSITORY / "conf" / "squid.conf"
RELAY_CONFIG = REPOSITORY / "conf" / "relay-squid.conf"
THROTTLER_CONFIG = REPOSITORY / "conf" / "throttler.yaml"
SQUID_USER = "proxy"
PROXY_PORT, SINK_PORT = 3128, 8081
STATUS_SOCKET = "status.sock"
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 1.0, 30.0
"""Maximum seconds of one attempt to connect to a server, and of a pause within a throttler's answer."""
_APACHE_MODULES = "/usr/lib/apache2/modules"
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
_TLS_CONFIG = """\
LoadModule ssl_module {modules}/mod_ssl.so
Listen 0.0.0.0:{port}
Listen [::]:{port}
<VirtualHost *:{port}>
    SSLEngine on
    SSLCertificateFile {root}/tls.pem
</VirtualHost>
"""
_TLS_CERTIFICATE = """\
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=origin.test \
    -keyout {root}/key.pem -out {root}/certificate.pem 2>&1
cat {root}/key.pem {root}/certificate.pem > {root}/tls.pem
"""


def accepts(host: LiveNode, address: str, *ports: int) -> bool:
    """Return whether *address* accepts TCP connections from *host* on all *ports*."""
    try:
        for port in ports:
            with host.entered(), socket.create_connection((address, port), timeout=CONNECT_TIMEOUT):
                pass
    except OSError:
        return False
    return True


def _listens(host: Host, ports: Sequence[int]) -> bool:
    if isinstance(host, LiveNode):
        return accepts(host, host.service_address(), *ports)
    return all(host.run(["ss", "-Hltn", f"sport = :{port}"]).stdout for port in ports)


def start_program(
    host: Host, argv: Sequence[str], name: str, *ports: int, end: str = "stop", **options: Any
) -> Program:
    """Start *argv* and wait until it listens on all *ports*. After a failure, end it by its method *end*."""
    process = host.popen(argv, name=name, **options)
    with undone_on_error(getattr(process, end)):
        listens = f"the {name} on {host.name} listens on {', '.join(map(str, ports))}"
        wait_until(lambda: _listens(host, ports), listens, process=process)
    return process


def _directory(host: Host, name: str) -> Path:
    directory = host.directory / f"{host.name}-{name}"
    host.run(["mkdir", "-p", str(directory)])
    return directory


@dataclass(frozen=True, slots=True)
class _Service:
    """A running service, and its host."""

    host: Host
    process: Program

    def _url(self, family: int, port: int) -> str:
        address = self.host.service_address(family)
        host = f"[{address}]" if family == 6 else address
        return f"http://{host}" if port == 80 else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Origin(_Service):
    """A running Apache, and the files that it serves."""

    digests: Mapping[str, str]
    """SHA-256 of each file in hexadecimal."""
    sizes: Mapping[str, int]
    directory: Path

    def url(self, name: str, *, family: int = 4, port: int = 80) -> str:
        return f"{self._url(family, port)}/{name}"


def start_origin(
    host: Host,
    files: Mapping[str, int],
    *,
    ports: Sequence[int] = (80, 443),
    tls_port: int | None = None,
    multipath: bool = False,
) -> Origin:
    """Start Debian's Apache on *host*, with plain HTTP on *ports* (443 as a target for CONNECT).

    *files* maps names to sizes in bytes. On *tls_port* Apache serves them over TLS, with a self-signed certificate.
    With *multipath* it uses MPTCP, by mptcpize(8), and can run at the same time as an Apache without MPTCP.
    """
    root = host.directory / f"{host.name}-apache{'-mptcp' * multipath}"
    words = (f"{name}={size}" for name, size in files.items())
    digests = json.loads(host.run(host.agent("files", str(root / "htdocs"), *words), timeout=600).stdout)
    # Name both families, because the meaning of "Listen 80" depends on bindv6only.
    listen = "\n".join(f"Listen 0.0.0.0:{port}\nListen [::]:{port}" for port in ports)
    text = _APACHE_CONFIG.format(root=root, modules=_APACHE_MODULES, listen=listen)
    if tls_port is not None:
        host.run(["sh", "-ec", _TLS_CERTIFICATE.format(root=root)])
        text += _TLS_CONFIG.format(root=root, modules=_APACHE_MODULES, port=tls_port)
    if multipath:
        # Turn off TCP_DEFER_ACCEPT, with which no second subflow is ever accepted: the third ACK of a join has no data.
        text += "AcceptFilter http none\n"
    argv = ["apache2", "-D", "FOREGROUND", "-f", str(host.write(f"{root.name}/apache.conf", text))]
    process = start_program(host, mptcp_command(argv) if multipath else argv, "apache", *ports)
    return Origin(host, process, digests, dict(files), root)


@dataclass(frozen=True, slots=True)
class Sink(_Service):
    """A running web server that accepts uploads."""

    def url(self, family: int = 4) -> str:
        return f"{self._url(family, SINK_PORT)}/"


def start_sink(host: Host) -> Sink:
    """Start a server on *host* that discards the body of each PUT."""
    return Sink(host, start_program(host, host.agent("sink", str(SINK_PORT)), "sink", SINK_PORT))


@dataclass(frozen=True, slots=True)
class Proxy(_Service):
    """A running proxy."""

    state: Path
    """The directory that the proxy sees as /run/mptcpproxy, or as /run/mptcprelay if it is a relay."""
    logs: Path
    """The directory that the proxy sees as /var/log/mptcpproxy or /var/log/mptcprelay."""

    def url(self, family: int = 4) -> str:
        return self._url(family, PROXY_PORT)


def start_proxy(
    host: Host,
    config: Path = SQUID_CONFIG,
    *,
    role: str = "proxy",
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    mounts: Mapping[str, str] | None = None,
    control: str | None = None,
) -> Proxy:
    """Start ``mptcp-proxy run`` on *host* with its own run, log and shared-memory directories.

    *mounts* are further private mounts, such as ``/etc/resolv.conf`` with a name server's address. *control* is the
    proxy's option ``--congestion-control``; None for its default. Raises TestbedError if the kernel lacks *control*,
    because the proxy would use the host's default.
    """
    state, logs = _directory(host, f"{role}-run"), _directory(host, f"{role}-log")
    # Squid's workers open their logs after dropping root. If the user does not exist, Squid itself reports the error.
    host.run(["chown", SQUID_USER, str(logs)], check=False)
    all_mounts = {
        f"/run/mptcp{role}": str(state),
        f"/var/log/mptcp{role}": str(logs),
        # The names of the workers' shared files contain only the service's name, which is the same on all hosts.
        "/dev/shm": TMPFS,
        "/run/squid": TMPFS,
        **(mounts or {}),
    }
    argv = [host.program("mptcp-proxy"), "run", "--config", str(host.provide(config)), *arguments]
    if control is not None:
        argv += ["--congestion-control", control]
    process = start_program(host, argv, role, PROXY_PORT, end="kill_tree", mounts=all_mounts, env=env)
    # Squid's orderly shutdown would wait for its clients.
    host.at_end(process.kill_tree)
    # Check the congestion control only now, because the proxy makes the kernel load it as a module.
    if control is not None and (reason := missing_control(control, host.run(["sysctl", "-n", AVAILABLE_KEY]).stdout)):
        process.kill_tree()
        raise TestbedError(f"the proxy on {host.name}: {reason}")
    return Proxy(host, process, state, logs)


def start_relay(host: Host, config: Path, **options: Any) -> Proxy:
    """Start ``mptcp-proxy run --role relay`` like :func:`start_proxy`. *config* must have parents."""
    return start_proxy(host, config, role="relay", arguments=("--role", "relay"), **options)


@dataclass(frozen=True, slots=True)
class Throttler(_Service):
    """A running throttler."""

    state: Path
    """The directory that the throttler sees as /run/mptcp-throttler."""
    config: Path

    @property
    def socket(self) -> Path:
        return self.state / STATUS_SOCKET

    def command(self, *arguments: str) -> list[str]:
        """Return the command ``mptcp-throttler`` with *arguments*. It must run where the daemon's state is visible."""
        return [self.host.program("mptcp-throttler"), *arguments]

    def status(self) -> dict[str, Any]:
        """Return the daemon's status. Raises TestbedError if it does not answer."""
        if not isinstance(self.host, LiveNode):
            argv = self.command("status", "--json", "--socket", str(self.socket))
            return dict(json.loads(self.host.run(argv).stdout))
        # Callers poll, and starting a program each time would take processor time from the daemon.
        try:
            status = ask(self.socket, {"query": "status"}, ANSWER_TIMEOUT)
        except OSError as error:
            raise TestbedError(f"[{self.host.name}] query {self.socket}: {error}") from None
        if "error" in status:
            raise TestbedError(f"[{self.host.name}] query {self.socket}: {status['error']}")
        return status

    def answers(self) -> bool:
        try:
            self.status()
        except TestbedError:
            return False
        return True


def throttler_mounts(host: Host) -> dict[str, str]:
    """Return the private mounts of each throttler that is started on *host*."""
    return {"/run/mptcp-throttler": str(_directory(host, "throttler-run"))}


def start_throttler(host: Host, config: Path = THROTTLER_CONFIG) -> Throttler:
    """Start ``mptcp-throttler run`` on *host* and wait until its status socket answers."""
    mounts = throttler_mounts(host)
    state = Path(mounts["/run/mptcp-throttler"])
    host.run(["rm", "-f", str(state / STATUS_SOCKET)])
    settings = host.provide(config)
    argv = [host.program("mptcp-throttler"), "run", "--config", str(settings)]
    process = host.popen(argv, name="throttler", mounts=mounts)
    throttler = Throttler(host, process, state, settings)
    # Stop the throttler in order instead of killing it, so that it removes its caps.
    with undone_on_error(process.stop):
        wait_until(throttler.answers, f"the throttler on {host.name} answers", process=process)
    return throttler


def write_throttler_config(
    host: Host,
    policy: Path,
    *,
    interfaces: Sequence[str] = ("wan0",),
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Write the throttler's settings for *host* into its directory. Return the file."""
    values: dict[str, object] = {
        "interfaces": list(interfaces),
        "listen_ports": [PROXY_PORT],
        "policy": str(host.provide(policy)),
        # Use a new ledger, because the throttler's default ledger contains the volume of earlier runs.
        "ledger": str(host.directory / f"{host.name}-ledger.sqlite"),
        **(settings or {}),
    }
    # JSON is valid YAML.
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    return host.write(f"{host.name}-throttler.yaml", text)


def mptcp_command(argv: Sequence[str]) -> list[str]:
    """Return the command that runs *argv* by mptcpize(8), so that TCP sockets use MPTCP."""
    return ["mptcpize", "run", *argv]


def python_command(code: str, *arguments: str) -> list[str]:
    """Return a command that runs *code* with this interpreter."""
    return [sys.executable, "-I", "-c", code, *arguments]
