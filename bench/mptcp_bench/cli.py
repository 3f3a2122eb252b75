# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line ``mptcp-bench``: demo, experiments, their report, and clean-up after killed runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.ownership import remove_stale, runs

from . import provenance, result_file
from .demo import DEMO
from .experiments import EXPERIMENTS, Experiment
from .experiments.findings import Findings
from .experiments.parameters import OptionError, given
from .paper import PAPER
from .result_file import ExperimentResult

INTERRUPTED = 130
ALL = "all"
OUTPUT_HELP = "directory in which the results are written"
FILE_WIDTH = 120
"""Characters per line if the output is not a terminal. The widest table has as many."""
PICTURE_KINDS = ("png", "svg")
COLORS = {"holds": "green", "differs": "yellow"}
"""Colours of verdicts on claims; the others are red."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = _parser().parse_args(argv)
    # Add the directories of apache2, squid and iptables, which su(1) and cron(8) omit.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    # Apache's and Squid's workers run as other users. They must be able to enter directories that are created here.
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code: int = arguments.command(arguments)
    except KeyboardInterrupt as interrupt:
        _complain("interrupted", interrupt)
        return INTERRUPTED
    except (TestbedError, OptionError, result_file.ResultError, OSError) as error:
        _complain(str(error), error)
        return 1
    return code


def _complain(text: str, error: BaseException | None = None) -> None:
    """Print *text*, then the notes of *error*, such as failures of the clean-up."""
    for line in (*text.splitlines(), *getattr(error, "__notes__", ())):
        print(f"mptcp-bench: {line}", file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # Ignore further signals, because a second Ctrl-C must not interrupt the clean-up.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mptcp-bench", description="The testbed's demo and experiments.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('mptcp-steering-bench')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="download over Ethernet and Wi-Fi, print the rates, and draw a picture")
    demo.add_argument("--output", type=Path, default=provenance.RESULTS, metavar="DIR", help=OUTPUT_HELP)
    demo.add_argument("--quick", action="store_true", help="shorten the downloads that have no cap")
    demo.set_defaults(command=_run, name=DEMO.name, seed=1, set=[], inventory=None)

    run = commands.add_parser("run", help="run an experiment, and write its result and its figures")
    names = [*PAPER, *EXPERIMENTS, ALL]
    run.add_argument(
        "name", choices=names, metavar="NAME", help=f"the experiment (see mptcp-bench list), or {ALL}: all of the paper"
    )
    run.add_argument("--seed", type=int, default=1, help="seed of all random choices: order, losses, jitter")
    run.add_argument(
        "--quick", action="store_true", help="make a reduced run, which only shows that the experiment works"
    )
    run.add_argument("--output", type=Path, default=provenance.RESULTS, metavar="DIR", help=OUTPUT_HELP)
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="set a parameter")
    run.add_argument("--inventory", type=Path, metavar="FILE", help="use real hosts, by ssh, instead of namespaces")
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="write an HTML page with all results")
    report.add_argument("directory", type=Path, nargs="?", default=provenance.RESULTS, metavar="DIR")
    report.add_argument(
        "--output", type=Path, metavar="FILE", help="file of the page; by default report.html or kept.html in DIR"
    )
    kept = report.add_mutually_exclusive_group()
    kept.add_argument("--kept", action="store_true", help="use the results in docs/results instead of DIR")
    kept.add_argument(
        "--docs",
        nargs="*",
        metavar="NAME",
        help="for maintainers: instead of the page, copy these results to docs/results, and update the tables in docs/",
    )
    report.set_defaults(command=_report)

    listing = commands.add_parser("list", help="list the experiments, their parameters, and the testbeds that exist")
    listing.set_defaults(command=_list)
    cleanup = commands.add_parser("cleanup", help="remove the remains of killed runs")
    cleanup.set_defaults(command=_cleanup)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    names = list(PAPER) if arguments.name == ALL else [arguments.name]
    settings = list(arguments.set)
    if arguments.inventory is not None:
        if names[0] not in PAPER:
            raise TestbedError(f"run {arguments.name}: --inventory is possible only for the paper's experiments")
        settings.append(f"inventory={arguments.inventory}")
    failed = False
    for name in names:
        experiment = (PAPER | EXPERIMENTS | {DEMO.name: DEMO})[name]
        try:
            options = given(settings, experiment.load().OPTIONS)
            failed |= bool(_execute(experiment, options, arguments).wrong)
        except OptionError as error:
            raise OptionError(f"{_command(arguments.name)}: {error}") from None
        except TestbedError as error:
            _complain(f"{_command(name)}: {error}", error)
            failed = True
    return 1 if failed else 0


def _command(name: str) -> str:
    """Return the command that runs the experiment *name*."""
    return name if name == DEMO.name else f"run {name}"


def _execute(experiment: Experiment, options: Mapping[str, str], arguments: argparse.Namespace) -> Findings:
    """Run the experiment, write its result and pictures, and print its tables."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    seed, quick = arguments.seed, arguments.quick
    target: Path = arguments.output / experiment.name / result_file.FILE
    hosts = provenance.collect_from_hosts(arguments.inventory) if arguments.inventory is not None else {}
    empty_result = ExperimentResult(
        provenance=replace(provenance.collect(seed), **hosts),
        experiment=experiment.name,
        title=experiment.summary,
        parameters=dict(options),
        seed=seed,
        quick=quick,
    )
    scenario = experiment.load()
    # Report an invalid option before anything is written.
    scenario.chosen(options, quick)
    result_file.prepare(target.parent)
    findings = scenario.run(console, seed, quick, options)
    result_file.write(findings.added_to(empty_result), target)
    pictures = [(each, target.with_name(f"{each.name}.{kind}")) for each in findings.pictures for kind in PICTURE_KINDS]
    # The pictures of an earlier run must not look like pictures of this run.
    for _, file in pictures:
        file.unlink(missing_ok=True)
    for picture, file in pictures:
        picture.draw(file)
    for table in (*findings.tables, *filter(None, [findings.other_aims])):
        console.print(table)
    for claim in (each for each in findings.aims if each.measured_text):
        verdict = f"[{COLORS.get(claim.verdict, 'red')}]{claim.verdict}[/]"
        text = f"{verdict} {claim.what}\n    [dim]{escape(claim.measured_text)}[/]"
        console.print(text, highlight=False, soft_wrap=True)
    for file in (target, *(file for _, file in pictures)):
        console.print(f"Written: {file}", highlight=False, soft_wrap=True)
    for line in findings.wrong:
        print(f"mptcp-bench {_command(experiment.name)}: {line}", file=sys.stderr)
    return findings


def _report(arguments: argparse.Namespace) -> int:
    from . import doc_tables, report

    if arguments.docs is not None:
        for name in arguments.docs:
            doc_tables.keep_result(name, arguments.directory)
        for page in doc_tables.write_pages():
            print(page)
        return 0
    target = arguments.output or arguments.directory / ("kept.html" if arguments.kept else "report.html")
    chapters = report.chapters_from_docs() if arguments.kept else report.chapters_from_runs(arguments.directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report.render_page(chapters))
    print(target)
    if not arguments.kept and (missing := report.experiments_without_chapter(chapters)):
        print(f"mptcp-bench report: not run yet: {', '.join(missing)}", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    print("The paper's experiments:")
    for experiment in PAPER.values():
        print(f"  {experiment.name:15} {experiment.summary}")
    print("Their parameters (mptcp-bench run NAME --set PARAMETER=VALUE):")
    for name, meaning in PAPER["fig2"].load().OPTIONS.items():
        print(f"  {name:20} {meaning}")
    print("Our experiments:")
    for experiment in EXPERIMENTS.values():
        print(f"  {experiment.name:15} {experiment.summary}")
    for run in runs():
        state = f"of process {run.pid}" if run.alive else "left by a dead run; mptcp-bench cleanup removes it"
        print(f"testbed {run.id}: {len(run.namespaces)} namespaces, {state}")
    return 0


def _cleanup(arguments: argparse.Namespace) -> int:
    done, failures = remove_stale()
    for line in done or ([] if failures else ["no remains were found"]):
        print(line)
    for line in failures:
        print(f"mptcp-bench cleanup: {line}", file=sys.stderr)
    return 1 if failures else 0
