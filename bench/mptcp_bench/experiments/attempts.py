# SPDX-License-Identifier: GPL-2.0-or-later
"""Attempts: measurements that failed are repeated, and the result contains the number of repetitions and the reasons.

If a path was not emulated as configured, the machine is the cause. Any other failure may be a fault of the product: a
product that works only at the second attempt does not work. Such a failure therefore misses an aim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from rich.console import Console

from mptcp_lab.testbed import EmulationError, TestbedError

from .aims import Aim
from .findings import Findings

T = TypeVar("T")
ATTEMPTS = 3
"""Maximum number of attempts of a measurement."""


class Attempts:
    """The attempts of one run of an experiment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._notes: list[str] = []
        self._faults = 0
        self._failures: list[str] = []

    def of(self, run: Callable[[], T], name: str, most: int) -> T | None:
        """Return the result of *run*; None if it raised TestbedError or ValueError *most* times."""
        for number in range(1, most + 1):
            try:
                return run()
            except (TestbedError, ValueError) as error:
                self._console.print(f"{name}: void, because {error}", style="dim", highlight=False)
                if number == most:
                    self.failed(name, error)
                    break
                late = isinstance(error, EmulationError)
                self._notes.append(
                    f"repeated for {'the emulated paths' if late else 'another reason'}: {name}: {error}"
                )
                self._faults += not late
        return None

    def failed(self, name: str, error: Exception) -> None:
        """Record that *name* could not be measured."""
        self._failures.append(f"{name}: {error}")

    def judged(self, findings: Findings) -> Findings:
        """Return *findings* with failed measurements, repeated attempts, and the aim that no attempt is repeated."""
        aim = Aim("attempts repeated for another reason than the emulated paths", self._faults, most=0)
        return replace(
            findings,
            failures=(*findings.failures, *self._failures),
            aims=(*findings.aims, aim),
            notes=(*findings.notes, *self._notes),
        )
