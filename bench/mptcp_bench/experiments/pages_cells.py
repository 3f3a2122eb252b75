# SPDX-License-Identifier: GPL-2.0-or-later
"""The options of the experiment ``pages``, and the cells that they choose. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from math import exp
from typing import Any

from mptcp_common.units import parse_rate

from ..statistics import NormalDist
from .parameters import number as positive
from .parameters import parameter, rtt_pair, several, whole, word, words

RATES = (50, 20)
"""Rates of the capped path and the other path, in Mbit/s."""
VARIANTS = ("none", "ours", "static")
KINDS = ("get", "keepalive", "connect")
CLIENTS = ("two", "lone")
UNITS = {"k": 1_000, "M": 1_000_000}
MOST_OCTETS = 1_000_000_000
"""Maximum size of a file in bytes, because the origin's directory must have room for it."""
NUMBERS = {"20k": 200, "100k": 150, "500k": 50, "2M": 16, "mixed": 63}
"""Files per batch, by file size. Each batch takes several seconds."""
MANY, KEPT = 10, 8
"""Number of simultaneous downloads; number of persistent connections of ``keepalive``."""
MIXED = "mixed"


def _page(files: int = 63, octets: int = 7_400_000) -> tuple[int, ...]:
    """Return shuffled file sizes as on a web page: half of them below 47 kB, one above a megabyte."""
    weights = [exp(1.4 * NormalDist().inv_cdf((i + 0.5) / files)) for i in range(files)]
    scale = octets / sum(weights)
    return tuple(round(weights[i * 25 % files] * scale) for i in range(files))


PAGE = _page()


def octets_of(size: str) -> int:
    """Return the bytes of a size such as 100k. Raises ValueError for an invalid size."""
    digits, unit = (size[:-1], UNITS[size[-1]]) if size[-1:] in UNITS else (size, 1)
    try:
        octets = float(digits) * unit
    except ValueError:
        octets = 0
    # The comparison is written so that NaN fails as well.
    if not 1 <= octets <= MOST_OCTETS:
        raise ValueError(f"allowed are {MIXED} and bytes up to {MOST_OCTETS:,}, such as 20k, 500k or 2M")
    return round(octets)


def _size(text: str) -> str:
    if text != MIXED:
        octets_of(text)
    return text


def _cap(text: str) -> float:
    cap = positive()(text)
    # Let the policy's own parser check it, too.
    parse_rate(f"{cap:g} Mbit/s")
    if cap >= RATES[0]:
        raise ValueError(f"a cap must be below its path's rate, {RATES[0]} Mbit/s")
    return cap


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``. Each combination of the listed values is a cell."""

    selection: str = parameter("which cells if no option chooses any", "usual", word("usual", "quick"), quick="quick")
    rtt: tuple[tuple[float, float], ...] | None = parameter(
        "ms of capped and other path, default 20/20", None, several(rtt_pair)
    )
    client: tuple[str, ...] | None = parameter("with two paths, or a lone one", None, words(*CLIENTS))
    cap: tuple[float, ...] | None = parameter("Mbit/s, default 5", None, several(_cap))
    kind: tuple[str, ...] | None = parameter(f"of the downloads: {', '.join(KINDS)}; default get", None, words(*KINDS))
    size: tuple[str, ...] | None = parameter(
        f"bytes of a file, such as 100k or 2M; {MIXED}: a page", None, several(_size)
    )
    at_once: tuple[int, ...] | None = parameter(f"downloads or connections, default {MANY}", None, several(whole()))
    number: int | None = parameter("files of a batch; by default some seconds of them", None, whole())
    variant: tuple[str, ...] = parameter("which of " + ", ".join(VARIANTS), ",".join(VARIANTS), words(*VARIANTS))
    runs: int = parameter("batches of each variant", "2", whole(), quick="1")


USUAL: dict[str, tuple[Any, ...]] = {
    "rtt": ((20.0, 20.0),), "client": ("two",), "cap": (5.0,), "kind": ("get",), "size": ("100k",), "at_once": (None,),
}  # fmt: skip
"""The options that choose cells, with the value of each that applies if another of these options is set."""
SELECTIONS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "usual": (
        {"size": ("20k", "100k", "500k", "2M")},
        {"cap": (1.0,), "number": 40},
        {"at_once": (1,), "number": 30},
        {"at_once": (50,)},
        {"at_once": (300,), "size": ("20k",)},
        {"kind": ("keepalive",)},
        {"kind": ("connect", "keepalive"), "size": (MIXED,)},
        {"client": ("lone",), "at_once": (1, 10), "number": 40},
        {"rtt": ((20.0, 80.0),)},
    ),
    "quick": (
        {"size": ("100k",)},
        {"kind": ("keepalive",), "size": (MIXED,)},
        {"client": ("lone",), "number": 40},
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the options. RTTs (ms) are of the capped and the other path, the cap is in Mbit/s."""

    rtt: tuple[float, float]
    client: str
    cap: float
    kind: str
    size: str
    at_once: int
    number: int

    @property
    def sizes(self) -> list[int]:
        """The size of each file in bytes."""
        if self.size == MIXED:
            return list(islice(cycle(PAGE), self.number))
        return [octets_of(self.size)] * self.number

    @property
    def lone(self) -> bool:
        """Whether the client has only the path on which its connections open."""
        return self.client == "lone"

    @property
    def rule(self) -> str:
        return f"throttle: {{rate: {self.cap:g} Mbit/s}}"

    def __str__(self) -> str:
        words = [f"{self.number} × {self.size}, {self.kind}, {self.at_once} at once"]
        words.append(f"cap {self.cap:g} of {RATES[0]} beside {RATES[1]}, {self.rtt[0]:g}/{self.rtt[1]:g} ms")
        return ", ".join(words + ["one path"] * self.lone)


def cells(chosen: Settings) -> list[Cell]:
    """Return the combinations of the *chosen* options, or a selection if no option is given. Raises OptionError."""
    if any(getattr(chosen, name) is not None for name in USUAL):
        return _combined(chosen)
    return [cell for each in SELECTIONS[chosen.selection] for cell in _combined(replace(chosen, **each))]


def _combined(chosen: Settings) -> list[Cell]:
    listed = [usual if (given := getattr(chosen, name)) is None else given for name, usual in USUAL.items()]
    found = []
    for combination in product(*listed):
        one = dict(zip(USUAL, combination, strict=True))
        many = one["at_once"] or (KEPT if one["kind"] == "keepalive" else MANY)
        number = chosen.number or max(many, NUMBERS.get(one["size"], 50))
        found.append(Cell(**one | {"at_once": many, "number": number}))
    return found
