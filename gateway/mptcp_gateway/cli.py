# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``mptcp-gateway``: run, check, status."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mptcp_common import __version__
from mptcp_common.commands import add_config, exit_status_of
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.findings import print_findings
from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import READY, notify_or_warn
from mptcp_gateway.firewall import ruleset
from mptcp_gateway.metrics import as_text
from mptcp_gateway.model import Verdict
from mptcp_gateway.plan import MAX_ENDPOINTS, commands, make_plan, with_distinct_addresses
from mptcp_gateway.settings import DEFAULT_SETTINGS, read_settings
from mptcp_gateway.status_files import status_of

DIRECTORY: Final = Path("/run/mptcp-gateway")
FORWARDER_DIRECTORY: Final = Path("/run/mptcp-forwarder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); print errors to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status_of(
        "mptcp-gateway",
        lambda: int(options.command(options)),
        is_daemon=options.command in (_run, _forward),
        operator_errors=lambda: (KernelError,),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-gateway", description="Keeps a home's Multipath TCP connections on uplinks that work."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("run", _run, "Watch the uplinks until SIGTERM."),
        ("forward", _forward, "Forward the home's connections to the parents until SIGTERM."),
        ("plan", _plan, "Print the routes, rules and firewall that the daemon would set now; change nothing."),
        ("check", _check, "Check the settings and print all problems; change nothing."),
        ("doctor", _doctor, "Find problems between a home and its uplinks; change nothing."),
        ("status", _status, "Print the state of each uplink; exit status 1 if none is good."),
    ):
        subparser = commands.add_parser(name, help=text, description=text)
        add_config(subparser, DEFAULT_SETTINGS)
        default = FORWARDER_DIRECTORY if command is _forward else DIRECTORY
        subparser.add_argument(
            "--directory", type=Path, default=default, help=f"directory of status and state files (default: {default})"
        )
        subparser.set_defaults(command=command)
        if command in (_doctor, _status):
            default = FORWARDER_DIRECTORY
            subparser.add_argument(
                "--forwarder", type=Path, default=default, help=f"the forwarder's directory (default: {default})"
            )
            subparser.add_argument("--json", action="store_true", help="print JSON")
        if command is _status:
            subparser.add_argument("--prometheus", action="store_true", help="print metrics for a textfile collector")
    return parser


def _run(options: argparse.Namespace) -> int:
    from mptcp_gateway.daemon import serve

    settings = read_settings(options.config)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    serve(settings, options.directory)
    return DONE


def _forward(options: argparse.Namespace) -> int:
    from mptcp_gateway.forwarder import serve

    settings = read_settings(options.config)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if settings.lan is None:
        print(f'{options.config}: there is no "lan", so there is nothing to forward')
        notify_or_warn("mptcp-forwarder", READY)  # systemd fails a unit that ends before it is ready
        return DONE
    options.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    asyncio.run(serve(settings, options.directory))
    return DONE


def _plan(options: argparse.Namespace) -> int:
    from mptcp_gateway.kernel.network import Network
    from mptcp_gateway.kernel.resolver import try_look_up

    settings = read_settings(options.config)
    with closing(Network()) as network:
        found, _ = with_distinct_addresses(tuple(settings.uplinks), network.read_access(settings.uplinks, {}))
        tunnel = network.device(settings.lan.tunnel) if settings.lan is not None and settings.lan.tunnel else None
    parents = {target.address for each in settings.parents for target in try_look_up(*each)}
    untried = dict.fromkeys(found, Verdict.UNTRIED)
    plan = make_plan(tuple(settings.uplinks), found, untried, parents, settings.lan, tunnel)
    names = {1: "lo", **dict(socket.if_nameindex())}
    print("\n".join(commands(plan, names)))
    if settings.lan is not None:
        print(ruleset(settings.lan, settings.uplinks), end="")
    return DONE


def _check(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    devices = {f"uplinks.{uplink}": device for uplink, device in settings.uplinks.items()}
    if settings.lan is not None:
        devices |= {f"lan.devices[{number}]": device for number, device in enumerate(settings.lan.devices)}
        devices |= {"lan.tunnel": settings.lan.tunnel} if settings.lan.tunnel else {}
    for key, device in devices.items():
        if not Path("/sys/class/net", device).exists():
            print(f"{options.config}: {key}: the device {device} does not exist now", file=sys.stderr)
    print(f"{options.config}: no errors")
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    from mptcp_gateway.doctor import examine

    settings = read_settings(options.config)
    status = status_of(options.directory, options.forwarder)
    return print_findings(tuple(examine(settings, status)), as_json=options.json)


def _status(options: argparse.Namespace) -> int:
    found = status_of(options.directory, options.forwarder)
    if found is None:
        raise KernelError("the daemon does not run: systemctl status mptcp-gateway")
    if options.prometheus:
        print(as_text(found), end="")
    elif options.json:
        print(json.dumps(found, indent=1))
    else:
        for uplink in found["uplinks"]:
            ways = [each for each in found["ways"] if each["uplink"] == uplink]
            duplicates = [each for each in found["same_address"] if each["uplink"] == uplink]
            for each in duplicates:
                print(f"{uplink:<10} IPv{each['version']}: not used: uplink {each['as']} has the same address")
            if not ways and not duplicates:
                print(f"{uplink:<10} missing: its device is down, or has no address or default route")
            for each in ways:
                remarks = ", connections begin here" if each["begins_here"] else ""
                rtt = f", {each['rtt_ms']} ms" if each["rtt_ms"] else ""
                why = f" ({each['reason']})" if each["reason"] else ""
                if each["verdict"] == "good" and not each["endpoint"]:
                    remarks += f", no endpoint: the kernel allows at most {MAX_ENDPOINTS}"
                state = f"{each['verdict']} for {each['for_seconds']} s"
                print(f"{uplink:<10} IPv{each['version']} {each['address']}: {state}{rtt}{why}{remarks}")
        if found["home"]:
            for line in _home_lines(found["home"]):
                print(f"{'home':<10} {line}")
    return DONE if any(each["verdict"] == "good" for each in found["ways"]) else FAILED


def _home_lines(home: dict[str, Any]) -> Iterator[str]:
    forwarder, tcp_effect = home["forwarder"], "uses the best uplink" if home["fail"] == "open" else "is refused"
    if forwarder is None:
        yield f"the forwarder does not run (systemctl status mptcp-forwarder): TCP {tcp_effect}"
    else:
        if forwarder["silent"] is not None:
            yield f"no parent answers ({forwarder['silent']}): TCP {tcp_effect}"
        counts = f"{forwarder['open']} connections, {forwarder['connections']} since its start"
        direct_reason = f" (reason of the last: {forwarder['direct_because']})" if forwarder["direct_because"] else ""
        yield f"{counts}; {forwarder['direct']} bypassed the parents{direct_reason}, {forwarder['failed']} failed"
        for port in forwarder["refused_ports"]:
            yield f"port {port}: a parent refuses to connect there; see docs/home.md for its squid.conf"
    if home["tunnel"]:
        tunnel_state = (
            "carries all except TCP" if home["tunnel_is_used"] else "is not used: it is down, or no parent answers"
        )
        yield f"{home['tunnel']} {tunnel_state}"


if __name__ == "__main__":
    sys.exit(main())
