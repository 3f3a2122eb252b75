# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy run | check | reload | doctor | build-shim``."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mptcp_common import __version__, journal
from mptcp_common.commands import exit_status_of
from mptcp_common.exit_status import DONE, FAILED

from . import shim
from .configuration.access import OVERRIDE
from .places import Places, Role, service_name_problem
from .recorded_signals import RecordedSignals

KEEP = "keep"
THROTTLER_CONFIGURATION = Path("/etc/mptcp-throttler/throttler.yaml")
DEFAULT_CONGESTION_CONTROL = "bbr"
# TCP_CA_NAME_MAX of linux/tcp.h is 16, with the terminating NUL.
_CONGESTION_CONTROL = re.compile(r"[A-Za-z0-9_-]{1,15}")


def _congestion_control(text: str) -> str:
    if not _CONGESTION_CONTROL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} (allowed: {KEEP}, or a name from sysctl net.ipv4.tcp_available_congestion_control)"
        )
    return text


def _features(text: str) -> frozenset[str]:
    named = frozenset(each.strip() for each in text.split(","))
    if unknown := named - set(shim.FEATURES):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)[0]!r} (allowed: {', '.join(shim.FEATURES)})")
    return named


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # Record SIGHUP before anything else: a SIGHUP for a reload would end a process without a handler.
    signals = RecordedSignals([signal.SIGHUP] if chosen.command == "run" else ())
    if chosen.command != "run":
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Without a handler, these signals would end a check before it removes its temporary files, which may
            # contain passwords.
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
    return exit_status_of("mptcp-proxy", lambda: _run_command(chosen, signals), is_daemon=chosen.command == "run")


def _run_command(chosen: argparse.Namespace, signals: RecordedSignals) -> int:
    if chosen.command == "build-shim":
        return _build_shim()
    role = Role(chosen.role)
    service_name = role.service_name if chosen.service_name is None else chosen.service_name
    if problem := service_name_problem(service_name):
        complain(problem)
        return FAILED
    places = Places(service_name)
    if chosen.command == "reload":
        return _reload(places)
    configuration = chosen.config or role.configuration()
    if chosen.command == "run":
        from .supervisor import run as serve

        congestion_control = None if chosen.congestion_control == KEEP else chosen.congestion_control
        return serve(
            configuration,
            places,
            signals,
            congestion_control,
            role=role,
            allow_open=chosen.allow_open,
            turns=chosen.turns,
            without=chosen.without,
        )
    if chosen.command == "check":
        return _check(configuration, places, role, chosen.allow_open)
    from .doctor.report import examine

    return examine(
        configuration, places, role, chosen.throttler_config, as_json=chosen.json, allow_open=chosen.allow_open
    )


def _parser() -> argparse.ArgumentParser:
    """Return the parser; the package's manual page and shell completion are generated from it."""
    parser = argparse.ArgumentParser(
        prog="mptcp-proxy",
        description="Runs Squid with MPTCP. A proxy uses MPTCP to its clients and plain TCP to origin servers. A relay"
        " at home uses plain TCP to its clients and MPTCP to its parents.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve in the foreground; SIGHUP reloads, SIGTERM stops")
    check = commands.add_parser("check", help="report all mistakes in the configuration, without starting Squid")
    reload = commands.add_parser(
        "reload", help="make the running proxy reread its configuration, and wait for the result"
    )
    doctor = commands.add_parser("doctor", help="find the problems that keep the proxy of this host from working")
    commands.add_parser("build-shim", help="compile the preload libraries, as run does if they are missing")
    names = " or ".join(each.service_name for each in Role)
    files = " or ".join(str(each.configuration()) for each in Role)
    for command in (run, check, reload, doctor):
        command.add_argument(
            "--role",
            choices=[each.value for each in Role],
            default=Role.PROXY.value,
            help="proxy: Multipath TCP to clients; relay: Multipath TCP to parents (%(default)s)",
        )
        command.add_argument(
            "--service-name", metavar="NAME", help=f"name of the instance ({names}, depending on the role)"
        )
    for command in (run, check, doctor):
        command.add_argument("--config", type=Path, metavar="FILE", help=f"squid.conf ({files}, depending on the role)")
        command.add_argument(
            OVERRIDE,
            action="store_true",
            dest="allow_open",
            help="only warn if the rules serve strangers, or if this cannot be determined",
        )
    run.add_argument(
        "--congestion-control",
        type=_congestion_control,
        default=DEFAULT_CONGESTION_CONTROL,
        metavar=f"NAME|{KEEP}",
        help=f"congestion control of Multipath TCP (%(default)s); {KEEP}: the host's own",
    )
    run.add_argument(
        "--turns",
        choices=("fair", "kernel"),
        default="fair",
        help="fair: clients take turns, so that a client with many connections does not delay others, and small writes"
        " of Squid are joined; kernel: Squid serves clients in the kernel's order, and does not join writes"
        " (%(default)s)",
    )
    run.add_argument(
        "--without",
        type=_features,
        default=frozenset(),
        metavar="FEATURE[,...]",
        help=f"switch off features of the preload libraries other than Multipath TCP: {', '.join(shim.FEATURES)}",
    )
    doctor.add_argument(
        "--throttler-config",
        type=Path,
        default=THROTTLER_CONFIGURATION,
        metavar="FILE",
        help="the throttler's settings (%(default)s)",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def complain(text: object) -> None:
    journal.say(f"mptcp-proxy: {text}", journal.ERROR)


def _build_shim() -> int:
    try:
        for name in (shim.LISTEN, shim.TURNS):
            print(shim.library(name))
    except shim.ShimError as error:
        complain(error)
        return FAILED
    return DONE


def _reload(places: Places) -> int:
    from .reloads import ReloadError, reload

    try:
        reload(places)
    except ReloadError as error:
        complain(error)
        return FAILED
    print("configuration reloaded")
    return DONE


def _check(configuration: Path, places: Places, role: Role, allow_open: bool) -> int:
    from .configuration.check import check_or_problem
    from .squid import find_squid

    checked = check_or_problem(configuration, places.service_name, find_squid(), role=role, allow_open=allow_open)
    for problem in checked.problems:
        journal.say(problem, journal.WARNING if problem.warning else journal.ERROR)
    if checked.errors:
        return FAILED
    for note in checked.notes:
        print(note)
    ports = f"on port {', '.join(map(str, checked.ports))}"
    if role is Role.PROXY:
        connections = f"MPTCP listeners {ports}"
    else:
        connections = f"listeners {ports}, MPTCP to {', '.join(map(str, checked.parents))}"
    print(f"{configuration}: good; {connections}; {checked.workers}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
