"""``mptcp-bench``: the demo, the experiments, and clearing up after a run that was killed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from . import provenance
from .experiments import EXPERIMENTS
from .testbed import TestbedError
from .testbed.ownership import remove_stale, runs

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = _parser().parse_args(argv)
    # apache2, squid and iptables are there; su(1) and cron(8) leave it out.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code: int = arguments.command(arguments)
    except KeyboardInterrupt:
        print("mptcp-bench: interrupted; everything it made is removed", file=sys.stderr)
        return INTERRUPTED
    except TestbedError as error:
        print(f"mptcp-bench: {error}", file=sys.stderr)
        return 1
    return code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # A second Ctrl-C must not break off the clean-up.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mptcp-bench", description="The testbed's demo and experiments.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="three downloads over Ethernet and Wi-Fi, live, with a picture")
    demo.add_argument("--output", type=Path, default=provenance.RESULTS / "demo", metavar="DIR")
    demo.set_defaults(command=_demo)

    run = commands.add_parser("run", help="run one experiment")
    run.add_argument("name", choices=sorted(EXPERIMENTS), metavar="NAME", help=", ".join(EXPERIMENTS))
    run.add_argument("--seed", type=int, default=1, help="for whatever the experiment draws at random")
    run.add_argument("--quick", action="store_true", help="fewer repetitions: to see that it works")
    run.add_argument("--json", action="store_true", help="the JSON document on stdout, the tables on stderr")
    run.add_argument("--output", type=Path, default=provenance.RESULTS, metavar="DIR")
    run.set_defaults(command=_run)

    commands.add_parser("list", help="list the experiments and the testbeds that exist").set_defaults(command=_list)
    commands.add_parser("cleanup", help="remove what runs that were killed left behind").set_defaults(command=_cleanup)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from . import demo

    try:
        demo.run(arguments.output.resolve(), Console())
    except demo.DemoError as error:
        print(f"mptcp-bench demo: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> int:
    experiment = EXPERIMENTS[arguments.name]
    console = Console(stderr=arguments.json)
    origin = provenance.collect(arguments.seed)
    result = experiment.load()(console, arguments.seed, arguments.quick)
    document = provenance.document(
        origin, {"experiment": experiment.name, "failures": list(result.failures), **result.data}
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    target = arguments.output / f"{experiment.name}.json"
    target.write_text(document)
    for table in result.tables:
        console.print(table)
    if arguments.json:
        sys.stdout.write(document)
    else:
        console.print(f"Numbers: {target}", highlight=False, soft_wrap=True)
    for failure in result.failures:
        print(f"mptcp-bench run {experiment.name}: aim missed: {failure}", file=sys.stderr)
    return 1 if result.failures else 0


def _list(arguments: argparse.Namespace) -> int:
    for experiment in EXPERIMENTS.values():
        print(f"{experiment.name:15} {experiment.summary}")
    for run in runs():
        state = f"of process {run.pid}" if run.alive else "left by a run that is dead: mptcp-bench cleanup"
        print(f"testbed {run.id}: {len(run.namespaces)} namespaces, {state}")
    return 0


def _cleanup(arguments: argparse.Namespace) -> int:
    removed = remove_stale()
    for run in removed:
        print(f"removed testbed {run.id} of process {run.pid}")
    if not removed:
        print("nothing was left behind")
    return 0
