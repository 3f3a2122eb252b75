# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings that the experiment ``pages`` can vary, and the matching policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice, product
from math import exp

from mptcp_common.units import parse_rate

from ..statistics import NormalDist
from .devices import POLICY_PATHS
from .options import choice, count, listed, refused, rtts

VARIANTS = ("none", "ours", "static", "link", "ideal")
KINDS = ("get", "close", "keepalive", "connect", "tls", "chromium")
SHARES = ("path", "client", "connection")
CLIENTS = ("two", "lone", "lost")
POLICIES = ("cap", "min1", "budget")
UNITS = {"k": 1_000, "M": 1_000_000}
MOST_OCTETS = 1_000_000_000
"""Most bytes of a file, because the origin's directory must have room for it."""
NUMBERS = {"20k": 200, "100k": 150, "500k": 50, "2M": 16, "mixed": 63}
"""Files per batch, by file size. Each batch takes some seconds."""
KEPT, BROWSER = 8, 6
"""Number of persistent connections of ``keepalive``, and of Chromium's connections to one server."""
MIXED = "mixed"


def _page(files: int = 63, octets: int = 7_400_000) -> tuple[int, ...]:
    """Return shuffled sizes like a web page's: half of them below 47 kB, one above a megabyte."""
    weights = [exp(1.4 * NormalDist().inv_cdf((i + 0.5) / files)) for i in range(files)]
    scale = octets / sum(weights)
    return tuple(round(weights[i * 25 % files] * scale) for i in range(files))


PAGE = _page()
OPTIONS = {
    "size": f"bytes of a file, such as 20k, 100k, 500k, 2M; {MIXED}: {len(PAGE)} files of 7.4 MB together",
    "number": "files of a batch, default by size, " + ", ".join(f"{s}: {n}" for s, n in NUMBERS.items()),
    "at_once": f"downloads, or kept connections, that go on at once; default 10, of keepalive {KEPT}",
    "cap": "Mbit/s, default 5",
    "rates": "Mbit/s of capped and other path, default 50/20",
    "rtt": "ms of capped and other path, default 20/20",
    "first": "capped or other: where connections open, default capped",
    "kind": f"{', '.join(KINDS)}, default get",
    "share": f"{', '.join(SHARES)}: who shares a cap, default path",
    "policy": "cap, min1 (with one subflow too), budget (one that is used up); default cap",
    "client": "two or lone: whether it has the other path; lost: it had it in the batch before; default two",
    "variant": f"which of {', '.join(VARIANTS)}, default all",
    "runs": "batches with our throttler, default 3; there is one of each other variant",
}
CHOICES = {
    "rates": "50/20", "rtt": "20/20", "client": "two", "policy": "cap", "first": "capped", "cap": "5", "share": "path",
    "kind": "get", "size": "100k", "at_once": "",
}  # fmt: skip
"""The options that choose cells, with their defaults. Each combination of the listed values is a cell."""
SELECTION: tuple[dict[str, str], ...] = (
    {"size": "20k,100k,500k,2M"},
    {"cap": "1", "number": "40"},
    {"at_once": "1", "number": "30"},
    {"at_once": "50"},
    {"at_once": "300", "size": "20k"},
    {"first": "other"},
    {"share": "client"},
    {"kind": "keepalive"},
    {"kind": "connect,tls,keepalive,chromium", "size": "mixed"},
    {"policy": "min1,budget"},
    {"client": "lone", "at_once": "1,10", "number": "40"},
    {"client": "lost", "number": "40"},
    {"rtt": "20/80"},
    {"rates": "50/100", "cap": "30", "number": "300"},
)
"""The cells that are measured by default, in some ten minutes."""
QUICK: tuple[dict[str, str], ...] = (
    {"size": "100k"},
    {"kind": "keepalive", "size": "mixed"},
    {"client": "lone", "number": "40"},
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the options. Rates (Mbit/s) and RTTs (ms) are of the capped and the other path."""

    size: str
    number: int
    at_once: int
    cap: float
    rates: tuple[int, int]
    rtts: tuple[float, float]
    first: str
    kind: str
    share: str
    policy: str
    client: str

    @property
    def sizes(self) -> list[int]:
        """The size of each file in bytes."""
        if self.size == MIXED:
            return list(islice(cycle(PAGE), self.number))
        return [octets_of(self.size)] * self.number

    @property
    def lone(self) -> bool:
        """Whether the client has only the path on which its connections open."""
        return self.client != "two"

    @property
    def paths(self) -> tuple[tuple[int, int], tuple[float, float]]:
        """The rates and RTTs. Cells with the same ones are measured in one testbed."""
        return self.rates, self.rtts

    def policy_text(self) -> str:
        throttle = f"throttle: {{rate: {self.cap:g} Mbit/s, share: {self.share}}}"
        rule = {
            "cap": throttle,
            "min1": f"when: {{min_subflows: 1}}, lift_last: false, {throttle}",
            "budget": f"budget: {{period: month, steps: [{{after: 0, {throttle}}}]}}",
        }[self.policy]
        return f"{POLICY_PATHS}rules: [{{name: cap, paths: [ethernet], {rule}}}]\n"

    def __str__(self) -> str:
        words = [f"{self.number} × {self.size}, {self.kind}, {self.at_once} at once"]
        words.append(f"cap {self.cap:g} of {self.rates[0]} beside {self.rates[1]}")
        words.append(f"{self.rtts[0]:g}/{self.rtts[1]:g} ms")
        unusual = {
            "first on the other": self.first == "other",
            f"share {self.share}": self.share != "path",
            self.policy: self.policy != "cap",
            {"lone": "one path", "lost": "one path left of two"}.get(self.client, ""): self.lone,
        }
        return ", ".join(words + [word for word, is_so in unusual.items() if is_so])


def octets_of(size: str) -> int:
    """Return the bytes of a size such as 100k. Raises ValueError for an invalid size."""
    number, unit = (size[:-1], UNITS[size[-1]]) if size[-1:] in UNITS else (size, 1)
    octets = float(number) * unit
    if not 1 <= octets <= MOST_OCTETS:
        raise ValueError
    return round(octets)


def cells(options: Mapping[str, str], quick: bool = False) -> list[Cell]:
    """Return the cells that *options* choose, or a default selection. Raises OptionError for an invalid option."""
    chosen = (
        [options] if set(options) & set(CHOICES) else [{**options, **each} for each in (QUICK if quick else SELECTION)]
    )
    try:
        found = [
            _cell(each, dict(zip(CHOICES, combined, strict=True)))
            for each in chosen
            for combined in product(*(listed(each, name, default) for name, default in CHOICES.items()))
        ]
    except ValueError:
        raise refused(OPTIONS) from None
    # Sort the cells of one testbed together. The sort is stable, so their order otherwise stays.
    together = list(dict.fromkeys(cell.paths for cell in found))
    return sorted(found, key=lambda cell: together.index(cell.paths))


def _cell(options: Mapping[str, str], chosen: Mapping[str, str]) -> Cell:
    kind, size = chosen["kind"], chosen["size"]
    many = int(chosen["at_once"] or {"keepalive": KEPT, "chromium": BROWSER}.get(kind, 10))
    number = count(options, "number", max(many, NUMBERS.get(size, 50)))
    capped_rate, other_rate = (int(word) for word in chosen["rates"].split("/"))
    cell = Cell(
        size, number, many, float(chosen["cap"]), (capped_rate, other_rate), rtts(chosen["rtt"]), chosen["first"], kind,
        chosen["share"], chosen["policy"], chosen["client"],
    )  # fmt: skip
    known = {cell.client: CLIENTS, cell.policy: POLICIES, cell.first: ("capped", "other")}
    known |= {cell.share: SHARES, cell.kind: KINDS}
    if any(word not in there for word, there in known.items()) or many < 1 or min(cell.rates) < 1:
        raise ValueError
    # Let the policy's own parser check the cap. A cap above the path's rate has no effect.
    parse_rate(f"{cell.cap:g} Mbit/s")
    if cell.cap >= cell.rates[0]:
        raise ValueError
    if size != MIXED:
        octets_of(size)
    return cell


def variants_of(options: Mapping[str, str]) -> list[str]:
    """Return the variants that *options* choose. Raises OptionError for an unknown one."""
    return choice(options, "variant", VARIANTS)
