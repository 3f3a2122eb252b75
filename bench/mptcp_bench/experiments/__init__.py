"""The experiments behind the project's claims, one module each: ``mptcp-bench run NAME``.

A module has ``run(console, seed, quick) -> Result``; it is entered in ``EXPERIMENTS`` and loaded on use. One that can
be told what to run takes ``options`` too, and has ``OPTIONS``: what each is, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import TestbedError

from .options import OptionError, given
from .scene import Aim, missed


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, and what draws it into a file whose ending says in which format."""

    name: str
    draw: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment measured."""

    tables: tuple[Table, ...]
    data: dict[str, Any]
    """The same and more, for the JSON file."""
    failures: tuple[str, ...] = field(default=())
    """What was to be measured and was not, or was wrong without an aim that says so."""
    pictures: tuple[Picture, ...] = ()
    aims: tuple[Aim, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """Why the experiment fails: aims that were missed, and failures."""
        return (*missed(self.aims), *self.failures)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A name, what it shows, and the module that does it."""

    name: str
    summary: str
    module: str

    def load(self) -> ModuleType:
        return import_module(f"{__name__}.{self.module}")

    def options(self, settings: Iterable[str]) -> dict[str, str]:
        """Return *settings*, each ``NAME=VALUE``, by name. Raises TestbedError, one line, for one that is unknown."""
        with self._named():
            return given(settings, getattr(self.load(), "OPTIONS", {}))

    def run(self, console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Result:
        """Run it.

        :raises TestbedError: it cannot be run here, or one of *options* makes no sense to it (one line)
        """
        module = self.load()
        more = (options,) if hasattr(module, "OPTIONS") else ()
        with self._named():
            result: Result = module.run(console, seed, quick, *more)
        return result

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say whose option is wrong."""
        try:
            yield
        except OptionError as error:
            raise TestbedError(f"run {self.name}: {error}") from None


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment("goodput", "Goodput over both paths, without and with the policy; others untouched", "goodput"),
        Experiment("datapath", "Goodput with 0, 1,000 and 50,000 entries in the kernel set", "datapath"),
        Experiment("reaction", "From the MP_JOIN's third ACK on the wire to the entry in the kernel set", "reaction"),
        Experiment("control-plane", "Connections a second tracked with none lost, and their CPU", "control_plane"),
        Experiment("recovery", "kill -9 and restart in mid-transfer; nothing is left after clean-up", "recovery"),
        Experiment("scale", "With up to 10,000 tunnels held: what the throttler costs, and how soon it acts", "scale"),
        Experiment("onset", "A cap falls on a running download: at once and softly, side by side", "onset"),
        Experiment("overshoot", "What passes beyond a cap: ours, a poller of counters, a static class", "overshoot"),
        Experiment("pages", "Many short downloads under a cap: what the capped path carries, and their time", "pages"),
        Experiment("starvation", "Who starves beside a low cap, and beside clients that vanished", "starvation"),
        Experiment("guard", "The uncapped path fails: with the guard and without it", "guard"),
        Experiment("steering", "Each steering mode: who carries what, and how fast it reacts", "steering"),
        Experiment("middleboxes", "What middleboxes make of Multipath TCP, and what status says of it", "middleboxes"),
        Experiment(
            "emulation", "Emulated paths: delay, loss, order, seed and full rate, against what was asked", "emulation"
        ),
    )
}
