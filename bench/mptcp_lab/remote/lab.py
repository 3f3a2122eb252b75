# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepare the hosts of an inventory for an experiment, and restore them.

The hosts are checked for all known problems before anything starts. All problems are reported together, in a line each.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ..testbed.commands import TestbedError
from ..testbed.host import Lab
from ..testbed.installed import REPOSITORY
from ..testbed.model import Limits
from ..testbed.ownership import Cleaned
from ..testbed.services import PROXY_PORT
from .connection import PREFIX
from .inventory import HostRole, Inventory
from .ssh import SshHost

MULTIPATH = REPOSITORY / "bench" / "rpi" / "multipath"
HTTP_PORT = 80
PROGRAMS = {
    "client": ("ip", "ss", "sysctl", "wget", "curl", "mptcpize"),
    "proxy": ("ip", "ss", "sysctl", "squid", "tcpdump"),
    "origin": ("ss", "apache2"),
}
"""Programs that each host needs."""
OWN_COMMANDS = ("mptcp-proxy", "mptcp-throttler")
PORTS = {"proxy": PROXY_PORT, "origin": HTTP_PORT}
LIMITS = Limits()
_ENABLED = "net.mptcp.enabled"


@contextmanager
def remote_lab(inventory: Inventory) -> Iterator[Lab]:
    """Connect to the hosts of *inventory*, check them, set up the client, and undo all that at the end.

    Raises TestbedError if a host is unreachable or lacks something. The text has a line for each problem, with the host
    and the remedy.
    """
    run_id = secrets.token_hex(6)
    with ExitStack() as stack:
        hosts = {part.name: stack.enter_context(_host(part, run_id)) for part in inventory.parts}
        for host in hosts.values():
            leftovers = _leftovers(host)
            # Refuse to start, because two runs on one host would disturb each other.
            if leftovers.live:
                raise TestbedError(leftovers.in_the_way())
            # Refuse to start, because changes that an earlier run left would affect the measurements.
            if leftovers.left:
                raise TestbedError("\n".join(leftovers.not_undone()))
        problems = [problem for part in inventory.parts for problem in _problems(inventory, part, hosts[part.name])]
        if problems:
            raise TestbedError("the hosts are not ready:\n" + "\n".join(f"  {problem}" for problem in problems))
        client, proxy, origin = (hosts[part.name] for part in inventory.parts)
        stack.enter_context(_set_up_proxy(proxy))
        script = ["sh", str(client.provide(MULTIPATH))]
        devices = [path.device for path in inventory.paths]
        stack.enter_context(client.changed([*script, "up", *devices], [*script, "down"]))
        _check_first_path(inventory, client, proxy)
        yield Lab(client, proxy, origin, inventory.paths, inventory.proxy.devices, emulated=False)


def cleanup(inventory: Inventory) -> Cleaned:
    """Undo what killed runs left on the hosts of *inventory*.

    When a driver dies, its agent undoes everything by itself. This function is for the case that the agent was killed,
    too, or failed. Unreachable hosts are reported, and the other hosts are cleaned.
    """
    done: list[str] = []
    left: list[str] = []
    for part in inventory.parts:
        try:
            with _host(part, secrets.token_hex(6)) as host:
                leftovers = _leftovers(host)
                done += [f"{host.name}: removed what a killed run left in {path}" for path in leftovers.removed]
                left += leftovers.not_undone()
                if leftovers.live:
                    done.append(leftovers.in_the_way())
        except TestbedError as error:
            left.append(str(error))
    return Cleaned(tuple(done), tuple(left))


def _host(part: HostRole, run_id: str) -> SshHost:
    name, login = part.name, part.login
    return SshHost(name, login, run_id, devices=part.devices, addresses=part.addresses, commands=part.commands)


class _Leftovers(NamedTuple):
    host: SshHost
    removed: list[str]
    left: list[str]
    live: list[int]

    def not_undone(self) -> list[str]:
        return [f"{self.host.name}: {self.host.login.destination}: not undone: {what}" for what in self.left]

    def in_the_way(self) -> str:
        processes = ", ".join(map(str, self.live))
        return (
            f"{self.host.name}: {self.host.login.destination}: another run of mptcp-bench is under way there (process "
            f"{processes}); if its driver is gone, it ends within 20 minutes, or at once by: kill {processes}"
        )


def _leftovers(host: SshHost) -> _Leftovers:
    asked = host.run(host.agent("leftovers", str(host.directory.parent), PREFIX, host.run_id), timeout=300)
    return _Leftovers(host, **json.loads(asked.stdout))


def _problems(inventory: Inventory, part: HostRole, host: SshHost) -> Iterator[str]:
    where = f"{part.name}: {part.login.destination}"
    for program in PROGRAMS[part.name]:
        if not host.has(program):
            yield f"{where}: the program {program} is not installed"
    if part.name == "proxy":
        for name in OWN_COMMANDS:
            try:
                host.program(name)
            except TestbedError as error:
                yield str(error)
    if part.name in ("client", "proxy") and host.run(["sysctl", "-n", _ENABLED], check=False).returncode != 0:
        yield f"{where}: its kernel has no Multipath TCP (CONFIG_MPTCP)"
    yield from _interface_problems(inventory, part, host)
    port = PORTS.get(part.name)
    if port is not None and host.has("ss"):
        listening = host.run(["ss", "-Hltnp", "sport", "=", f":{port}"]).stdout.split()
        if listening:
            yield f"{where}: port {port} is taken by {listening[-1]}; stop it for the experiment"


def _interface_problems(inventory: Inventory, part: HostRole, host: SshHost) -> Iterator[str]:
    devices = host.devices()
    keys = {
        "client": {path.device: f"client.paths.{path.name}" for path in inventory.paths},
        "proxy": {device: f"proxy.interfaces[{i}]" for i, device in enumerate(inventory.proxy.devices)},
        "origin": dict.fromkeys(inventory.origin.devices, "origin.interface"),
    }[part.name]
    for device, key in keys.items():
        where = inventory.at(key)
        if device not in devices:
            there = ", ".join(sorted(set(devices) - {"lo"})) or "none"
            yield f"{where}: {part.login.destination} has no interface {device}; it has {there}"
        elif not devices[device].up:
            yield f"{where}: {device} of {part.login.destination} is down or not connected"
        elif devices[device].address(4) is None:
            yield f"{where}: {device} of {part.login.destination} has no IPv4 address"


@contextmanager
def _set_up_proxy(proxy: SshHost) -> Iterator[None]:
    """Let the proxy's kernel accept MPTCP with as many subflows as possible."""
    words = proxy.run(["ip", "mptcp", "limits", "show"]).stdout.split()
    before = dict(zip(words[::2], words[1::2], strict=False))
    command = ["ip", "mptcp", "limits", "set"]
    after = {"subflows": str(LIMITS.subflows), "add_addr_accepted": str(LIMITS.add_addr_accepted)}

    def argv(values: dict[str, str]) -> list[str]:
        return [*command, *(word for name in after for word in (name, values[name]))]

    with proxy.sysctl(_ENABLED, "1"), proxy.changed(argv(after), argv(before)):
        yield


def _check_first_path(inventory: Inventory, client: SshHost, proxy: SshHost) -> None:
    """Raise TestbedError if the client's connections would not open over its first path."""
    address = proxy.service_address()
    shown = client.run(["ip", "-j", "route", "get", address], check=False)
    device = json.loads(shown.stdout)[0].get("dev") if shown.returncode == 0 else None
    first = inventory.paths[0]
    if device == first.device:
        return
    where = inventory.at(f"client.paths.{first.name}")
    if device is None:
        raise TestbedError(f"{inventory.at('proxy')}: the client has no route to {address}")
    raise TestbedError(
        f"{where}: connections to the proxy open over {device}, not over {first.device}: "
        f"put the path of {device} first, or give the route over {first.device} the lower metric"
    )
