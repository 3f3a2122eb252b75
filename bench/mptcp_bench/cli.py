# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-bench``: the demo, the paper's experiments and ours, their report, and clean-up after killed runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.ownership import remove_stale, runs

from . import provenance, result_file
from .experiments import EXPERIMENTS, Experiment
from .experiments.findings import Findings, Picture, result_of
from .experiments.parameters import OptionError
from .paper import PAPER
from .result_file import ExperimentResult

INTERRUPTED = 130
ALL = "all"


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
    except (TestbedError, OptionError, result_file.ResultError) as error:
        _complain(str(error), error)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _complain(f"{where}{error.strerror or error}", error)
        return 1
    return code


def _complain(text: str, error: BaseException | None = None) -> None:
    """Print *text*, then the notes of *error*, which name the kept measurements."""
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

    demo = commands.add_parser("demo", help="three downloads over Ethernet and Wi-Fi, live, with a picture")
    demo.add_argument("--output", type=Path, default=provenance.RESULTS / "demo", metavar="DIR")
    demo.set_defaults(command=_demo)

    run = commands.add_parser("run", help="run an experiment: result.json and a figure")
    names = [*PAPER, *EXPERIMENTS, ALL]
    run.add_argument("name", choices=names, metavar="NAME", help=f"one of mptcp-bench list; {ALL}: the paper's seven")
    run.add_argument("--seed", type=int, default=1, help="for whatever is drawn at random: order, losses, jitter")
    run.add_argument("--quick", action="store_true", help="less of everything: to see that it works")
    run.add_argument("--json", action="store_true", help="the result as JSON on stdout, the tables on stderr")
    run.add_argument("--output", type=Path, default=provenance.RESULTS, metavar="DIR")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the experiment")
    run.add_argument("--inventory", type=Path, metavar="FILE", help="real hosts, by ssh, in place of namespaces")
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="one HTML page of all that was run")
    report.add_argument("directory", type=Path, nargs="?", default=provenance.RESULTS, metavar="DIR")
    report.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in DIR, or kept.html")
    kept = report.add_mutually_exclusive_group()
    kept.add_argument("--kept", action="store_true", help="in place of DIR: all that docs/results keeps")
    kept.add_argument(
        "--docs",
        nargs="*",
        metavar="NAME",
        help="for maintainers, in place of the page: keep these results in docs/results, write the tables of docs/",
    )
    report.set_defaults(command=_report)

    commands.add_parser("list", help="list experiments, parameters, and the testbeds that exist").set_defaults(
        command=_list
    )
    cleanup = commands.add_parser("cleanup", help="remove what runs that were killed left behind")
    cleanup.set_defaults(command=_cleanup)
    return parser


_FILE_WIDTH = 120
"""Columns of a table that is not printed to a terminal: the width of the widest table."""


def _demo(arguments: argparse.Namespace) -> int:
    from . import demo

    try:
        demo.run(arguments.output.resolve(), Console())
    except demo.DemoError as error:
        print(f"mptcp-bench demo: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> int:
    names = list(PAPER) if arguments.name == ALL else [arguments.name]
    settings = list(arguments.set)
    if arguments.inventory is not None:
        if names[0] not in PAPER:
            raise TestbedError(f"run {arguments.name}: --inventory is for the paper's experiments")
        settings.append(f"inventory={arguments.inventory}")
    results, wrong = [], False
    try:
        for name in names:
            experiment = PAPER.get(name) or EXPERIMENTS[name]
            order = _Order(experiment, experiment.options(settings), arguments)
            try:
                result, complaints = order.run()
            except TestbedError as error:
                if arguments.name != ALL:
                    raise
                _complain(f"run {name}: {error}", error)
                wrong = True
            else:
                results.append(result)
                wrong |= complaints
    finally:
        if arguments.json and arguments.name == ALL:
            json.dump([asdict(result) for result in results], sys.stdout, indent=1)
            print()
        elif arguments.json and results:
            sys.stdout.write(result_file.to_json(results[0]))
    return 1 if wrong else 0


COLORS = {"holds": "green", "differs": "yellow"}


class _Order:
    """One experiment to run, and its files."""

    def __init__(self, experiment: Experiment, options: Mapping[str, str], arguments: argparse.Namespace) -> None:
        self.experiment, self.options, self.arguments = experiment, options, arguments
        self.console = Console(stderr=arguments.json)
        if not self.console.is_terminal:
            self.console.width = max(self.console.width, _FILE_WIDTH)
        self.target: Path = arguments.output / experiment.name / result_file.FILE
        hosts = provenance.of_hosts(arguments.inventory) if arguments.inventory is not None else {}
        self._provenance = replace(provenance.collect(arguments.seed), **hosts)
        self._kept = False

    def _result(self, findings: Findings) -> ExperimentResult:
        seed, quick = self.arguments.seed, self.arguments.quick
        name, title = self.experiment.name, self.experiment.summary
        return result_of(name, title, findings, self._provenance, self.options, seed=seed, quick=quick)

    def keep(self, findings: Findings) -> None:
        """Write the findings so far, and delete the pictures of an earlier run."""
        result_file.write(replace(self._result(findings), complete=False), self.target)
        _remove_pictures(findings.pictures, self.target)
        self._kept, self._findings = True, findings

    def run(self) -> tuple[ExperimentResult, bool]:
        """Run the experiment, write result and pictures, and print tables. Return also whether anything is wrong."""
        result_file.prepare(self.target.parent)
        try:
            keep = self.keep if self.experiment.name in PAPER else None
            arguments = self.arguments
            findings = self.experiment.run(self.console, arguments.seed, arguments.quick, self.options, keep)
            result = self._result(findings)
            result_file.write(result, self.target)
        except BaseException as error:
            self._ended(error)
            raise
        _draw(findings.pictures, self.target)
        for table in findings.tables:
            self.console.print(table)
        for claim in (each for each in findings.aims if each.said):
            text = (
                f"[{COLORS.get(claim.verdict, 'red')}]{claim.verdict}[/] {claim.what}\n    [dim]{escape(claim.said)}[/]"
            )
            self.console.print(text, highlight=False, soft_wrap=True)
        if not self.arguments.json:
            self.console.print(f"Numbers: {self.target}", highlight=False, soft_wrap=True)
        for line in findings.wrong:
            print(f"mptcp-bench run {self.experiment.name}: {line}", file=sys.stderr)
        return result, bool(findings.wrong)

    def _ended(self, error: BaseException) -> None:
        """Add to *error* a note about the kept part of a run that ended early."""
        if self._kept:
            error.add_note(f"{self.target} has what was done, marked as interrupted")
            try:
                _draw(self._findings.pictures, self.target)
            except OSError as failed:
                error.add_note(f"its figure cannot be drawn: {failed.strerror or failed}")
            return
        # Remove the directory if the run created it. A directory with an earlier result is not empty and stays.
        with suppress(OSError):
            self.target.parent.rmdir()
        if not isinstance(error, OptionError):
            earlier = f"; {self.target} is of an earlier run" if self.target.exists() else ""
            error.add_note(f"nothing of this run is kept{earlier}")


def _files(pictures: Sequence[Picture], target: Path) -> list[tuple[Picture, Path]]:
    return [(each, target.with_name(f"{each.name}.{ending}")) for each in pictures for ending in ("png", "svg")]


def _remove_pictures(pictures: Sequence[Picture], target: Path) -> None:
    for _, file in _files(pictures, target):
        file.unlink(missing_ok=True)


def _draw(pictures: Sequence[Picture], target: Path) -> None:
    """Draw *pictures* in the directory of the result *target*, after deleting the files of an earlier run."""
    _remove_pictures(pictures, target)
    for picture, file in _files(pictures, target):
        try:
            picture.draw(file)
        except BaseException as error:
            # Remove the incomplete picture.
            file.unlink(missing_ok=True)
            error.add_note(f"{target} has what was measured; {file.name} could not be drawn")
            raise


def _report(arguments: argparse.Namespace) -> int:
    from . import doc_tables, report

    if arguments.docs is not None:
        for name in arguments.docs:
            doc_tables.keep(name, arguments.directory)
        for page in doc_tables.write_pages():
            print(page)
        return 0
    target = arguments.output or arguments.directory / ("kept.html" if arguments.kept else "report.html")
    missing = report.write_kept_report(target) if arguments.kept else report.write_report(arguments.directory, target)
    print(target)
    if missing:
        print(f"mptcp-bench report: not run yet: {', '.join(missing)}", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    print("The paper's experiments:")
    for experiment in PAPER.values():
        print(f"  {experiment.name:15} {experiment.summary}")
    print("their parameters, mptcp-bench run NAME --set PARAMETER=VALUE:")
    for name, meaning in PAPER["fig2"].load().OPTIONS.items():
        print(f"  {name:20} {meaning}")
    print("Ours:")
    for experiment in EXPERIMENTS.values():
        print(f"  {experiment.name:15} {experiment.summary}")
    for run in runs():
        state = f"of process {run.pid}" if run.alive else "left by a run that is dead: mptcp-bench cleanup"
        print(f"testbed {run.id}: {len(run.namespaces)} namespaces, {state}")
    return 0


def _cleanup(arguments: argparse.Namespace) -> int:
    cleaned = remove_stale()
    for line in cleaned.done or ([] if cleaned.left else ["nothing was left behind"]):
        print(line)
    for line in cleaned.left:
        print(f"mptcp-bench cleanup: {line}", file=sys.stderr)
    return 1 if cleaned.left else 0
