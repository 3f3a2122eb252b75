"""What can be set of an experiment, as it is told to who set something else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mptcp_lab.testbed import TestbedError


def refused(experiment: str, options: Mapping[str, str]) -> TestbedError:
    """Return the error that names all *options*, each with what it is."""
    known = "; ".join(f"{name}=… ({what})" for name, what in options.items())
    return TestbedError(f"run {experiment}: --set takes {known}")


def choice(
    options: Mapping[str, str], name: str, known: Iterable[str], usual: Iterable[str] | None = None
) -> list[str]:
    """Return the words of option *name*, else *usual*, else all *known*. Raises ValueError for an unknown one."""
    there = list(known)
    words = options[name].split(",") if name in options else list(there if usual is None else usual)
    if not set(words) <= set(there):
        raise ValueError(f"there is no such {name}")
    return words


def count(options: Mapping[str, str], name: str, usual: int) -> int:
    """Return the number of option *name*, else *usual*. Raises ValueError below 1: what never ran proves nothing."""
    number = int(options.get(name, usual))
    if number < 1:
        raise ValueError(f"{name} is less than 1")
    return number
