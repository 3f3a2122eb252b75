"""Runs that may be void, because the host was too busy to emulate the paths, for one: tried again, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from mptcp_lab.testbed import TestbedError

T = TypeVar("T")
ATTEMPTS = 3


def attempted(
    run: Callable[[], T], name: str, console: Console, void: list[str] | None = None, attempts: int = ATTEMPTS
) -> T | None:
    """Return what *run* returns; None where it was void in all *attempts*, for what was measured must not be lost.

    Each reason is printed; the last one is added to *void*.
    """
    for number in range(1, attempts + 1):
        try:
            return run()
        except (TestbedError, ValueError) as error:
            console.print(f"{name}: void, because {error}", style="dim", highlight=False)
            if number == attempts and void is not None:
                void.append(f"{name}: {error}")
    return None
