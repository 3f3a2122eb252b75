"""The experiments behind the project's claims, one module each: ``mptcp-bench run NAME``.

A module has ``run(console, seed, quick) -> Result``; it is entered in ``EXPERIMENTS`` and loaded on use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment measured."""

    tables: tuple[Table, ...]
    data: dict[str, Any]
    """The same and more, for the JSON file."""
    failures: tuple[str, ...] = field(default=())
    """Aims that were missed, each with aim and measured value."""


Run = Callable[[Console, int, bool], Result]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A name, what it shows, and the module that does it."""

    name: str
    summary: str
    module: str

    def load(self) -> Run:
        run: Run = import_module(f"{__name__}.{self.module}").run
        return run


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment("goodput", "Goodput over both paths, without and with the policy; others untouched", "goodput"),
        Experiment("datapath", "Goodput with 0, 1,000 and 50,000 entries in the kernel set", "datapath"),
        Experiment("reaction", "From the MP_JOIN's third ACK on the wire to the entry in the kernel set", "reaction"),
        Experiment("control-plane", "Connections a second tracked with none lost, and their CPU", "control_plane"),
        Experiment("recovery", "kill -9 and restart in mid-transfer; nothing is left after clean-up", "recovery"),
        Experiment(
            "emulation", "Emulated paths: delay, loss, order, seed and full rate, against what was asked", "emulation"
        ),
    )
}
