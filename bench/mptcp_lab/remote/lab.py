# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepare the hosts of an inventory for an experiment, and restore them.

The hosts are checked for all known problems before anything starts. All problems are reported together, with a line for
each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..testbed.commands import TestbedError
from ..testbed.host import Lab
from ..testbed.installed import REPOSITORY
from ..testbed.model import Limits
from ..testbed.services import PROXY_PORT
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
    with ExitStack() as stack:
        hosts = {part.name: stack.enter_context(_host(part)) for part in inventory.parts}
        problems = [problem for part in inventory.parts for problem in _problems(inventory, part, hosts[part.name])]
        if problems:
            raise TestbedError("the hosts are not ready:\n" + "\n".join(f"  {problem}" for problem in problems))
        client, proxy, origin = (hosts[part.name] for part in inventory.parts)
        stack.enter_context(_set_up_proxy(proxy))
        script = ["sh", str(client.provide(MULTIPATH))]
        devices = [path.device for path in inventory.paths]
        stack.enter_context(client.changed([*script, "up", *devices], [*script, "down"]))
        _check_first_path(inventory, client, proxy)
        yield Lab(client, proxy, origin, inventory.paths, inventory.proxy.devices)


def _host(part: HostRole) -> SshHost:
    name, login = part.name, part.login
    return SshHost(name, login, devices=part.devices, addresses=part.addresses, commands=part.commands)


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
