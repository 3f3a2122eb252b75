# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's experiments as scenarios of the bench: which cells, on which lab, and the results of the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mptcp_lab.testbed import Testbed, lab_of
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.topologies import paths

from ..experiments.columns import Run as Turned
from ..experiments.columns import Turn
from ..experiments.findings import Findings, Picture
from ..experiments.scenario import Scenario
from ..result_file import Provenance
from . import conversion, engine
from .figures import STEM, draw
from .parameters import Chosen, Settings
from .results import DELAYS, ETHERNET, PROTOCOLS, WIFI, Measurements, Reference, Run
from .scenarios import FIGURES, TABLE, Trial
from .tables import failures, summary, tables
from .verdicts import judged

NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "curl", "tcpdump", "mptcpize",
)  # fmt: skip
Hosts = Callable[[], AbstractContextManager[Lab]]


@dataclass
class Paths:
    """The lab of a run: the paper's testbed in namespaces, or real hosts."""

    chosen: Chosen
    hosts: Hosts | None = None
    """Function that yields a lab of real hosts; None for namespaces."""
    notes: tuple[str, ...] = ()
    """Remarks about the lab. These and :attr:`programs` are known when the lab exists."""
    programs: dict[str, Any] = field(default_factory=dict)
    """The fields of the provenance that describe the real hosts."""

    @contextmanager
    def lab(self, seed: int) -> Iterator[tuple[Lab, Callable[[], None]]]:
        """Build the testbed, or use the real hosts. Yield also a function that raises if the emulation failed."""
        if self.hosts is not None:
            with self.hosts() as lab:
                self.notes = ("Real hosts, reached by ssh; their links are what they are.",)
                self.programs = _programs(lab)
                yield lab, lambda: None
            return
        with Testbed(paths([self.chosen.settings.path(name) for name in (ETHERNET, WIFI)]), seed=seed) as testbed:
            note = "Network namespaces on one host; delay, jitter and loss in user space."
            self.notes = (note, *testbed.emulation.warnings)
            yield lab_of(testbed), testbed.check_emulation

    def provenance(self, driver: Provenance) -> Provenance:
        """Return the provenance of a run, with kernel and programs of the hosts that ran it."""
        return replace(driver, **self.programs)


def _programs(lab: Lab) -> dict[str, Any]:
    hosts = (lab.client, lab.proxy, lab.origin)
    kernels = ", ".join(f"{host.name} {host.run(['uname', '-r']).stdout.strip()}" for host in hosts)
    squid = lab.proxy.run(["squid", "-v"]).stdout.splitlines()[0].removeprefix("Squid Cache: Version ")
    return {"kernel": kernels, "processors": int(lab.proxy.run(["nproc"]).stdout), "squid": squid}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScenario(Scenario[Settings, Any, Any, Any]):
    """A figure or table of the paper."""

    title: str
    paths: Paths
    measured: Measurements
    """The experiment, without runs."""
    runs_of: Callable[[Sequence[Turned[Any, Any]]], tuple[Run, ...]]
    """Converts the runs of the bench to the runs of the paper's form."""

    def findings(
        self, turns: Sequence[Turn[Any]], runs: Sequence[Turned[Any, Any]], notes: tuple[str, ...] = ()
    ) -> Findings:
        found = replace(self.measured, runs=self.runs_of(runs), complete=len(runs) == len(turns))
        picture = Picture(STEM, lambda target: draw(found, target))
        return Findings(
            tables(found),
            {"cases": list(map(asdict, found.cases)), "runs": list(map(asdict, found.runs))},
            failures(found),
            pictures=(picture,) if any(run.valid for run in found.runs) else (),
            aims=judged(found),
            notes=(*notes, *self.paths.notes, *summary(found)),
        )


def scenario(name: str, chosen: Chosen, *, quick: bool, hosts: Hosts | None = None) -> PaperScenario:
    """Return the paper's experiment *name*, on namespaces or on real *hosts*."""
    where, needs = Paths(chosen, hosts), NEEDED if hosts is None else ()
    return (
        _table(chosen, where, needs, quick=quick) if name == TABLE else _figure(name, chosen, where, needs, quick=quick)
    )


def _figure(name: str, chosen: Chosen, where: Paths, needs: Sequence[str], *, quick: bool) -> PaperScenario:
    figure, settings = FIGURES[name], chosen.settings
    trials = engine.planned(figure, quick=quick)
    repetitions = settings.repetitions or (figure.quick_repetitions if quick else figure.repetitions)
    needed = chosen.receive_buffer_needed()
    references: tuple[Reference, ...] = ()
    if needed is not None and any(trial.kind == "sweep" for trial in trials):
        references = (Reference("sweep", needed, f"2 × sum of bandwidth × greatest RTT: {needed / 1e6:.2f} MB"),)
    cases = tuple(engine.case(trial, settings) for trial in trials)

    @contextmanager
    def bed(_: Settings, cells: Sequence[Trial], seed: int) -> Iterator[engine.Downloads]:
        with where.lab(seed) as (lab, check):
            yield engine.Downloads(lab, figure, trials, settings, check)

    return PaperScenario(
        title=f"{figure.figure}: {figure.title}",
        settings=Settings,
        needs=needs,
        cells=lambda _: trials,
        runs=lambda *_: repetitions,
        together=lambda _: name,
        drawn=not figure.ordered,
        bed=bed,
        measure=lambda downloads, turn: downloads.run(turn.cell, turn.number),
        tables=(),
        paths=where,
        measured=Measurements(name, figure.title, figure.figure, repetitions, cases, chosen.texts, references),
        runs_of=lambda runs: tuple(run.measured for run in runs),
    )


def _table(chosen: Chosen, where: Paths, needs: Sequence[str], *, quick: bool) -> PaperScenario:
    todo = conversion.workloads(emulated=where.hosts is None)
    repetitions = chosen.settings.repetitions or (conversion.QUICK_ROUNDS if quick else conversion.ROUNDS)
    title, control = "Protocol conversion delay", chosen.settings.congestion_control

    @contextmanager
    def bed(_: Settings, cells: Sequence[conversion.Requests], seed: int) -> Iterator[conversion.Converter]:
        with where.lab(seed) as (lab, check):
            yield conversion.Converter(lab, todo, control, check)

    return PaperScenario(
        title=f"Table 1: {title}",
        settings=Settings,
        needs=needs,
        cells=lambda _: [conversion.Requests(each, protocol) for each in todo for protocol in PROTOCOLS],
        runs=lambda *_: repetitions,
        together=lambda _: TABLE,
        drawn=True,
        bed=bed,
        measure=lambda converter, turn: converter.measure(turn.cell),
        tables=(),
        paths=where,
        measured=Measurements(TABLE, title, "Table 1", repetitions, conversion.CASES, chosen.texts, DELAYS),
        runs_of=lambda runs: conversion.runs_of(((run.turn.cell, run.turn.number, run.measured) for run in runs), todo),
    )
