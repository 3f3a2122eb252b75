# SPDX-License-Identifier: GPL-2.0-or-later
"""Attempts: measurements that failed are repeated, and the result contains the number of repetitions and the reasons.

If a path was not emulated as configured, the machine is the cause. Any other failure may be a fault of the product: a
product that works only at the second attempt does not work. Such a failure therefore misses an aim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
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
        self._repeated: list[str] = []
        self._at_fault = 0
        self._void: list[str] = []

    def of(
        self, run: Callable[[], T], what: str, most: int = ATTEMPTS, check: Callable[[], None] | None = None
    ) -> T | None:
        """Return the result of *run*; None if *run* failed *most* times, so that other measurements are not lost.

        An attempt fails if *run* raises TestbedError or ValueError. Each reason is printed and kept. *check* raises
        EmulationError if the paths were not emulated as configured since the last call of *check*. This error then is
        the reason, whatever *run* raised.
        """
        for number in range(1, most + 1):
            try:
                return run()
            except (TestbedError, ValueError) as failed:
                error = _reason(failed, check)
                if number == most:
                    self._give_up(what, error)
                    break
                late = isinstance(error, EmulationError)
                reason = "the emulated paths" if late else "another reason"
                self._repeated.append(f"repeated for {reason}: {what}: {error}")
                self._at_fault += not late
                self._console.print(f"{what}: void, because {error}", style="dim", highlight=False)
        return None

    def _give_up(self, what: str, error: Exception) -> None:
        self._console.print(f"{what}: void, because {error}", style="dim", highlight=False)
        self._void.append(f"{what}: {error}")

    @contextmanager
    def keeping(self, what: str, measured: Sized) -> Iterator[None]:
        """Record a TestbedError of the testbed *what*. If *measured* is still empty, raise the error again."""
        try:
            yield
        except TestbedError as error:
            if not measured:
                raise
            self._give_up(what, error)

    def judged(self, findings: Findings) -> Findings:
        """Return *findings* with failed measurements, repeated attempts, and the aim that no attempt is repeated."""
        first = Aim("attempts repeated for another reason than the emulated paths", self._at_fault, most=0)
        return replace(
            findings,
            failures=(*findings.failures, *self._void),
            aims=(*findings.aims, first),
            notes=(*findings.notes, *self._repeated),
        )


def _reason(failed: Exception, check: Callable[[], None] | None) -> Exception:
    if check is not None and not isinstance(failed, EmulationError):
        try:
            check()
        except EmulationError as error:
            return error
    return failed
