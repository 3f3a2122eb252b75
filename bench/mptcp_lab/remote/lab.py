# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepare the hosts of an inventory for an experiment, and restore them. All problems are reported together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..testbed.commands import REPOSITORY, TestbedError
from ..testbed.host import Lab
from ..testbed.model import MAX_PM_LIMIT
from ..testbed.services import PROXY_PORT
from .inventory import Inventory
from .ssh import SshHost

MULTIPATH = REPOSITORY / "bench" / "rpi" / "multipath"
OWN_COMMANDS = {"proxy": ("mptcp-proxy", "mptcp-throttler")}
PORTS = {"proxy": PROXY_PORT, "origin": 80}
"""Ports that must be free."""
_ENABLED = "net.mptcp.enabled"


@contextmanager
def remote_lab(inventory: Inventory) -> Iterator[Lab]:
    """Connect to the hosts of *inventory*, check them, configure client and proxy, and undo this at the end.

    Raises TestbedError, with a line for each problem, if a host is unreachable or lacks something.
    """
    with ExitStack() as stack:
        client, proxy, origin = hosts = [stack.enter_context(SshHost(role)) for role in inventory.hosts]
        if problems := [problem for host in hosts for problem in _problems(host)]:
            raise TestbedError("\n  ".join(("the hosts are not ready:", *problems)))
        # Let the proxy's kernel accept MPTCP with as many subflows as possible.
        stack.enter_context(proxy.sysctl(_ENABLED, "1"))
        words = proxy.run(["ip", "mptcp", "limits", "show"]).stdout.split()
        limits = dict(zip(words[::2], words[1::2], strict=True))
        set_limits = ["ip", "mptcp", "limits", "set"]
        greatest = [word for name in limits for word in (name, str(MAX_PM_LIMIT))]
        stack.enter_context(proxy.changed([*set_limits, *greatest], [*set_limits, *words]))
        script = ["sh", str(client.provide(MULTIPATH))]
        stack.enter_context(client.changed([*script, "up", *client.role.devices], [*script, "down"]))
        _check_first_path(client, proxy.service_address())
        yield Lab(client, proxy, origin, inventory.paths, proxy.role.devices)


def _problems(host: SshHost) -> Iterator[str]:
    for name in OWN_COMMANDS.get(host.name, ()):
        try:
            host.program(name)
        except TestbedError as error:
            yield str(error)
    if host.name != "origin" and host.run(["sysctl", "-n", _ENABLED], check=False).returncode != 0:
        yield f"{host.role}: its kernel has no Multipath TCP (CONFIG_MPTCP)"
    devices = host.devices()
    for name in host.role.devices:
        if name not in devices:
            yield f"{host.role} has no interface {name}; it has {', '.join(sorted(set(devices) - {'lo'})) or 'none'}"
        elif not devices[name].up:
            yield f"{host.role}: {name} is down or not connected"
        elif 4 not in devices[name].addresses:
            yield f"{host.role}: {name} has no IPv4 address"
    if host.name in PORTS:
        port = PORTS[host.name]
        if listening := host.run(["ss", "-Hltnp", "sport", "=", f":{port}"]).stdout.split():
            yield f"{host.role}: port {port} is used by {listening[-1]}; stop it for the experiment"


def _check_first_path(client: SshHost, address: str) -> None:
    """Raise TestbedError if the client's connections to *address* would not open over its first path."""
    route = client.run(["ip", "-j", "route", "get", address], check=False)
    if route.returncode != 0:
        raise TestbedError(f"{client.role} has no route to the proxy's address {address}")
    device, first = json.loads(route.stdout)[0].get("dev"), client.role.devices[0]
    if device != first:
        raise TestbedError(
            f"{client.role}: connections to the proxy open over {device}, not over {first}: "
            f"list the path of {device} first, or give the route over {first} the lower metric"
        )
