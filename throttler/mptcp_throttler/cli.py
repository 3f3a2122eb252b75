"""The command ``mptcp-throttler``: run, check, reload, plan, status, quota, cleanup."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_common import __version__, journal
from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED, USAGE
from mptcp_common.problems import DocumentError, Problem, Severity
from mptcp_common.reasons import reason
from mptcp_common.units import counted
from mptcp_throttler.config.status_socket import DEFAULT_SETTINGS, plain_status_socket

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.mptcp.model import Connection
    from mptcp_throttler.policy.model import Policy

# What a command needs is imported by it: ``status`` is asked often, and libraries take longer to load than the answer.

log = logging.getLogger("mptcp_throttler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (``mptcp_common.exit_status``); why it failed is on stderr."""
    options = _parser().parse_args(arguments)
    from mptcp_throttler.kernel.ports import KernelError

    try:
        return int(options.command(options))
    except DocumentError as error:
        journal.say(error, journal.ERROR)
        # Of a daemon: what is in its files will not be better the next time.
        return CONFIGURATION if options.command is _run else FAILED
    except (KernelError, OSError) as error:
        _complain(reason(error))
    except KeyboardInterrupt:
        _complain("interrupted")
    return FAILED


def _complain(text: object) -> None:
    journal.say(f"mptcp-throttler: {text}", journal.ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptcp-throttler", description="Throttle chosen subflows of Multipath TCP connections, by policy."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, help_text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument(
            "--config",
            type=Path,
            default=DEFAULT_SETTINGS,
            metavar="FILE",
            help=f"the settings file (default: {DEFAULT_SETTINGS})",
        )
        return command

    run = add("run", "Watch and throttle until SIGTERM; SIGHUP reloads the policy.")
    run.add_argument("--verbose", action="store_true", help="log every event")
    run.set_defaults(command=_run)

    check = add("check", "Check settings and policy and print every problem; nothing is touched.")
    check.add_argument("--policy", type=Path, metavar="FILE", help="check only this policy file")
    check.set_defaults(command=_check)

    reload = add("reload", "Have the running daemon take the policy anew, and wait for what becomes of it.")
    reload.set_defaults(command=_reload)

    plan = add("plan", "Print what would be done to the kernel, in the words of tc, ipset, iptables or nft.")
    plan.add_argument("--policy", type=Path, metavar="FILE", help="this policy instead of the one in the settings")
    source = plan.add_mutually_exclusive_group(required=True)
    source.add_argument("--subflows", type=Path, metavar="FILE", help="connections and their subflows, as YAML")
    source.add_argument("--live", action="store_true", help="the subflows that this host has now")
    plan.add_argument("--at", metavar="TIME", help='evaluate at this time ("2026-11-20T18:30+02:00") instead of now')
    plan.set_defaults(command=_plan)

    status = add("status", "Show connections, subflows, verdicts and why, classes and bytes of the running daemon.")
    status.add_argument("--socket", type=Path, metavar="PATH", help="the status socket, instead of the settings'")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--brief", action="store_true", help="with --json: no connections, classes and counters")
    status.set_defaults(command=_status)

    quota = add("quota", "Show or reset what was used of the policy's budgets, whether the daemon runs or not.")
    quota.add_argument("action", choices=("show", "reset"), help="show, or begin the present period anew")
    quota.add_argument("--rule", metavar="NAME", help="this budget, or this rule's, alone")
    quota.add_argument("--client", metavar="ADDRESS", help="this client's volume alone")
    quota.add_argument("--json", action="store_true", help="print JSON")
    quota.set_defaults(command=_quota)

    cleanup = add("cleanup", "Remove everything a killed daemon left in the kernel, and put back what it replaced.")
    cleanup.set_defaults(command=_cleanup)
    return parser


def _run(options: argparse.Namespace) -> int:
    import asyncio

    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.host import host_problems
    from mptcp_throttler.kernel.state_lock import AlreadyRunning
    from mptcp_throttler.runtime.daemon import Daemon
    from mptcp_throttler.runtime.logs import log_to_stderr
    from mptcp_throttler.runtime.memory import keep_large_objects_apart

    keep_large_objects_apart()
    settings = read_settings(options.config)
    policy = _policy_with_warnings(settings.policy, settings)
    if problems := list(host_problems(settings, as_daemon=True)):
        raise DocumentError(problems)
    log_to_stderr(logging.DEBUG if options.verbose else getattr(logging, settings.log_level.upper()))

    async def daemon() -> None:
        await Daemon(settings, policy, lambda: _policy_with_warnings(settings.policy, settings)).run()

    try:
        asyncio.run(daemon())
    except AlreadyRunning as error:
        _complain(error)
        return FAILED
    return DONE


def _check(options: argparse.Namespace) -> int:
    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.host import (
        host_problems,
        library_problems_here,
        ports_without_listener,
        unreadable,
    )

    if options.policy is not None:
        policy = _policy_with_warnings(options.policy, None)
        _print_notes(options.policy, None)
        print(_no_errors(options.policy, policy))
        return DONE
    settings = read_settings(options.config)
    policy = _policy_with_warnings(settings.policy, settings)
    _print_notes(settings.policy, settings)
    libraries = list(library_problems_here(settings, policy))
    lacking = [each for each in libraries if each.severity is Severity.ERROR]
    for warning in (*ports_without_listener(settings), *(each for each in libraries if each not in lacking)):
        journal.say(warning, journal.WARNING)
    if problems := [*host_problems(settings), *lacking, *unreadable((options.config, settings.policy))]:
        raise DocumentError(problems)
    print(f"{options.config}: no errors")
    print(_no_errors(settings.policy, policy))
    return DONE


def _print_notes(path: Path, settings: Settings | None) -> None:
    from mptcp_throttler.config.files import read_notes

    for note in read_notes(path, settings):
        journal.say(note)


def _no_errors(path: Path, policy: Policy) -> str:
    return f"{path}: {counted(len(policy.paths), 'path')}, {counted(len(policy.rules), 'rule')}, no errors"


def _reload(options: argparse.Namespace) -> int:
    from mptcp_throttler.views.ask import reload_outcome

    path = _status_socket(options)
    try:
        errors = reload_outcome(path)
    except OSError as error:
        _complain(_no_answer(path, error))
        return FAILED
    for line in errors:
        journal.say(line, journal.ERROR)
    if errors:
        _complain("reload refused: the policy in force stays")
        return FAILED
    print("policy reloaded")
    return DONE


def _status_socket(options: argparse.Namespace) -> Path:
    path = plain_status_socket(options.config)
    if path is None:
        from mptcp_throttler.config.files import read_settings

        path = read_settings(options.config).status_socket
    return path


def _no_answer(path: Path, error: OSError) -> str:
    """Return in words why nobody answers at the status socket."""
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return f"no daemon answers at {path}; is it running?"
        case PermissionError():
            return f"you may not ask {path}: it answers root and the group {_group_of(path)}"
        case TimeoutError():
            return f"the daemon at {path} does not answer in time"
    return f"ask {path}: {reason(error)}"


def _group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "that owns it"


def _plan(options: argparse.Namespace) -> int:
    from mptcp_throttler.config.files import read_connections, read_settings
    from mptcp_throttler.views.preview import preview

    settings = read_settings(options.config)
    policy = _policy_with_warnings(options.policy or settings.policy, settings)
    now = _time(options.at)
    connections = (
        _live_connections(settings, now) if options.live else read_connections(options.subflows, settings, now)
    )
    for line in preview(settings, policy, connections, now):
        print(line)
    return DONE


def _status(options: argparse.Namespace) -> int:
    if options.brief and not options.json:
        _complain("--brief is for --json")
        return USAGE
    from mptcp_throttler.views.ask import ask_head, ask_text

    path = options.socket or _status_socket(options)
    try:
        if options.brief:
            print(json.dumps(ask_head(path)))
            return DONE
        text = ask_text(path)
    except OSError as error:
        _complain(_no_answer(path, error))
        return FAILED
    if options.json:
        # As it came: laying out ten thousand connections takes longer than all else.
        sys.stdout.buffer.write(text + b"\n")
    else:
        from mptcp_throttler.views.status_table import print_status

        print_status(json.loads(text))
    return DONE


def _quota(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mptcp_throttler.config.files import read_policy, read_settings
    from mptcp_throttler.storage.budget_ledger import Ledger, LedgerError
    from mptcp_throttler.views.budget_table import as_json, names, print_quotas, quotas

    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    budgets = names(policy)
    if options.rule is not None and options.rule not in budgets:
        raise DocumentError([Problem("--rule", 0, 0, "", options.rule, _no_such_budget(options.rule, budgets))])
    try:
        client = None if options.client is None else str(ip_address(options.client))
    except ValueError:
        raise DocumentError(
            [Problem("--client", 0, 0, "", options.client, f'"{options.client}" is not an address')]
        ) from None
    try:
        ledger = Ledger(settings.ledger, create=False)
        found = [
            each
            for each in quotas(ledger, policy, time.time())
            if (options.rule is None or each.goes_by(options.rule)) and client in (None, each.client)
        ]
        if options.action == "reset":
            gone = ledger.reset([each.account for each in found])
            if not gone:
                _complain("nothing to reset: nothing was used in the present period")
                return FAILED
            print(f"reset: {counted(gone, 'volume')}")
            return DONE
        if options.json:
            print(json.dumps(as_json(found), indent=2))
        else:
            print_quotas(found, Console(width=None if sys.stdout.isatty() else 120, highlight=False))
    except LedgerError as error:
        _complain(error)
        return FAILED
    return DONE


def _no_such_budget(name: str, budgets: Sequence[str]) -> str:
    known = f"the rules with one are {', '.join(budgets)}" if budgets else "no rule has one"
    return f'"{name}" is not a rule with a budget; {known}'


def _cleanup(options: argparse.Namespace) -> int:
    import asyncio

    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.kernel.state_lock import AlreadyRunning
    from mptcp_throttler.runtime.cleanup import cleanup

    try:
        for line in asyncio.run(cleanup(read_settings(options.config))):
            print(line)
    except AlreadyRunning as error:
        _complain(f"{error}; stop it instead, it cleans up itself")
        return FAILED
    return DONE


def _live_connections(settings: Settings, now: float) -> list[Connection]:
    from mptcp_throttler.kernel.routes import Routes
    from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
    from mptcp_throttler.mptcp.tracker import Tracker

    tracker = Tracker(settings.ownership.listen_ports)
    tracker.interface_of = Routes(settings.interfaces).interface
    tracker.resync(SocketDiagnostics(settings.ownership.listen_ports).subflows(), now)
    return list(tracker.connections.values())


def _time(text: str | None) -> float:
    if text is None:
        return time.time()
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise DocumentError(
            [Problem("--at", 0, 0, "", text, f'"{text}" is not a time; write e.g. "2026-11-20T18:30+02:00"')]
        ) from None


def _policy_with_warnings(path: Path, settings: Settings | None) -> Policy:
    from mptcp_throttler.config.files import read_policy

    policy, warnings = read_policy(path, settings)
    for warning in warnings:
        journal.say(warning, journal.WARNING)
    return policy


if __name__ == "__main__":
    sys.exit(main())
