# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares the aims of a kept result with the aims that its judge returns today, by their forms.

The form of an aim is its name without cell and numbers, and which bounds it has: it shows what is required, but not of
which cell. The forms of a judge are those of its sound result and its mutants (``judges``). A kept result may have an
aim that its experiment no longer has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from judges import JUDGES
from mutants import judged_by

from mptcp_bench.result_file import ExperimentResult, Verdict


class Form(NamedTuple):
    words: str
    has_least: bool
    has_most: bool


_REMARK, _NUMBER, _CLIENT = re.compile(r" \(.*\)"), re.compile(r"\d[\d,.]*"), re.compile(r"^[a-z](?=, of its )")
_BY_MODE = {
    "Mbit/s, slow origin", "standby's share before", "taken over after s", "worst over # s, points",
    "Mbit/s, fast origin", "back after s", "Ethernet's share, slow origin",
}  # fmt: skip
_IN_OUTAGES = {
    "Mbit/s before the failure, by the first path alone", "stands still for s",
    "Mbit/s, × without a mode, lower bound",
}  # fmt: skip
_OF_ONE_SUBFLOW = {f"{what}, # subflow, × TCP, upper bound" for what in ("GET, s/GB", "CONNECT, s/GB", "µs/request")}
_OF_IDLE = {f"idle {what}, kB, {client}" for what in ("connection", "tunnel") for client in ("tcp", "mptcp#")}
LEFT_OUT: dict[str, set[str]] = {
    "home": {"attempts repeated for another reason than the emulated paths"},
    "outages": {*_BY_MODE, "Mbit/s", "Mbit/s, × without a mode, lower bound"},
    "relay-apart": _OF_ONE_SUBFLOW | _OF_IDLE,
    "relay-slow": _OF_ONE_SUBFLOW | _OF_IDLE,
    "relay-squid-6": _OF_ONE_SUBFLOW | _OF_IDLE,
    "steering": _IN_OUTAGES,
    "tunnel": {"runs"},
}
"""For each kept result: the forms that its options leave out."""
COUNTS = {
    "batches measured", "runs", "rounds", "rounds of everything", "transfers", "samples",
}  # fmt: skip
"""Forms whose bound is the requested number of runs."""
OF_THE_ENGINE = {"runs", "attempts repeated for another reason than the emulated paths"}
"""Forms that an older result lacks if its experiment had one run and did not repeat a failed attempt."""
COMPUTED: dict[str, set[str]] = {
    "onset": {"RTT", "in force after", "stalled"},
    "overshoot": {"bytes beyond # × cap × time"},
    "soak": {"tunnels, in the sample with the fewest", "tunnels replaced, /s"},
    "steering": {"Mbit/s"},
}  # fmt: skip
"""For each experiment: the forms whose bounds depend on the cell, the options, or other measurements."""


def form(aim: Verdict) -> Form:
    words = _CLIENT.sub("a client", _REMARK.sub("", aim.what).rpartition(": ")[2])
    return Form(_NUMBER.sub("#", words), aim.least is not None, aim.most is not None)


def forms(aims: Iterable[Verdict]) -> dict[Form, set[tuple[float, ...]]]:
    """Return the forms of those *aims* that have bounds, each with the set of its bounds."""
    found: dict[Form, set[tuple[float, ...]]] = {}
    for aim in aims:
        bounds = tuple(round(bound, 6) for bound in (aim.least, aim.most) if bound is not None)
        if bounds:
            found.setdefault(form(aim), set()).add(bounds)
    return found


@cache
def forms_of_today(experiment: str) -> dict[Form, set[tuple[float, ...]]]:
    judge = JUDGES[experiment]
    return forms(aim for judged in (judge.sound, *judge.mutants.values()) for aim in judged_by(judged))


def differences(name: str, kept: ExperimentResult) -> list[str]:
    """Return a line for each difference between the aims of *kept*, the result named *name*, and today's aims."""
    kept_forms, sound = forms(kept.aims), forms(JUDGES[kept.experiment].sound())
    today = forms_of_today(kept.experiment)
    optional = OF_THE_ENGINE | LEFT_OUT.get(name, set())
    varied = COUNTS | COMPUTED.get(kept.experiment, set())
    missing = {each.words for each in sound.keys() - kept_forms.keys()} - optional
    changed = {each.words for each in kept_forms.keys() & today.keys() if not kept_forms[each] <= today[each]} - varied
    return sorted(f"{words!r} is missing" for words in missing) + sorted(
        f"{words!r} has other bounds" for words in changed
    )
