# SPDX-License-Identifier: GPL-2.0-or-later
"""Bytes in excess of a cap: our throttler, a poller of counters and a static class, for a client's transfers.

The transfers use the real proxy, over Ethernet (50 Mbit/s, capped at 5) and Wi-Fi (20). In each variant, a client that
the throttler has never seen makes a transfer of 42 s. The variants are: our cap; our budget, which is used up when the
transfer begins; a static class for the client's address on Ethernet, set before the transfer; and a poller, like quota
tools on routers. Every 30 s the poller reads the counter of the interface towards the client. At the first reading that
shows a megabyte, the poller sets the same class. A transfer may begin at any moment of the poller's period. Here its
first reading comes after half a period, which gives the mean overshoot.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.services import PROXY_PORT, mptcp_command, wait_until
from mptcp_lab.testbed.transfer import Added, Protocol
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from ..statistics import fmean
from .columns import RUNS, Column, Results, Table, Turn, columns_of, figure
from .devices import DEVICES
from .findings import Aim
from .pages import CAP, RATES, Bed, bed_with, ip_recorder, octets_at
from .parameters import parameter, whole
from .scenario import Scenario

TRANSFER_SECONDS = 42.0
FILE_BYTES = round(sum(RATES) * 1e6 / 8 * (TRANSFER_SECONDS + 5))
"""Size of the file, whose download takes longer than a transfer lasts."""
_THROTTLE = f"throttle: {{rate: {CAP} Mbit/s}}"
RULES = {"ours": _THROTTLE, "budget": f"budget: {{period: month, steps: [{{after: 0, {_THROTTLE}}}]}}"}
"""Our throttler's rule in two of the variants."""
TITLES = {
    "ours": "ours", "budget": "ours, a used-up budget", "static": "static class",
    "poller": "poller, first reading after half a period",
}  # fmt: skip
POLL_SECONDS = 30.0
"""Seconds between two readings of the poller."""
ALLOWED_BYTES = 1_000_000
"""Bytes that the poller allows between two readings: so few that its first reading during a transfer sets the cap."""
FIRST_WINDOW = 10 * 1500
"""Bytes that TCP sends before the first ACK (RFC 6928)."""
MAX_BURST = class_spec(1, Throttle(rate=CAP * 1_000_000)).burst + FIRST_WINDOW
"""Maximum of the excess over ``MAX_RATIO`` × cap × time: a burst of the class, and an initial window."""
CAPPED, OTHER = DEVICES
MAX_RATIO = 1.05
"""Maximum of a capped rate, as a multiple of the cap."""
SLOW_START_SECONDS = 3.0
"""Seconds that the other path needs to reach its full rate."""
MIN_OVERSHOOT = 1500
"""Minimum overshoot in bytes that is assumed for our throttler, because a ratio to zero has no meaning."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one transfer. Full speed begins ``SLOW_START_SECONDS`` after the first packet."""

    excess: float
    """Maximum bytes by which the transfer was ahead of ``MAX_RATIO`` × cap × time."""
    mean: float = figure("× cap")
    """Mean rate of the capped path, as a multiple of the cap."""
    ahead: float = figure("kB in excess of cap × time", by="most", scale=1e-3, digits=0)
    """Maximum bytes by which the transfer was ahead of cap × time."""
    other: float = figure("other, Mbit/s", scale=1e-6, digits=1)
    """Rate of the other path in bits/s, from full speed on."""


@dataclass(frozen=True, slots=True)
class Settings:
    runs: int = parameter("number of runs per variant", "3", whole(), quick="1")


def measure(bed: Bed, turn: Turn[str]) -> Outcome:
    """Judge a new client's transfer. Raises TestbedError or ValueError if it did not use both paths."""
    variant = turn.cell
    bed.wait_until_quiet()
    if variant in RULES:
        bed.start_throttler(RULES[variant])
    else:
        bed.stop_throttler()
    router = bed.testbed["hop1"]
    capped = bed.static_class(CAP, 1)
    added, before = Added(bed.client, bed.proxy), router.interface_bytes("lan").sent
    proxy_url = f"http://{bed.proxy.service_address()}:{PROXY_PORT}"
    argv = ["curl", "-s", "-m", f"{TRANSFER_SECONDS + 30:g}", "-o", "/dev/null", "-x", proxy_url]
    argv.append(bed.origin.url(str(FILE_BYTES)))
    with ExitStack() as stack:
        if variant == "static":
            stack.enter_context(capped)
        recorder = stack.enter_context(ip_recorder(bed.client))
        process = stack.enter_context(bed.client.running(mptcp_command(argv)))
        initial = recorder.samples[0].octets[CAPPED]
        arrived = f"data arrives over {CAPPED}"
        wait_until(lambda: recorder.samples[-1].octets[CAPPED] > initial + FIRST_WINDOW, arrived, process=process)
        begin = _first_packet(recorder.samples)
        if variant == "poller":
            recorder.wait(begin + POLL_SECONDS / 2)
            if router.interface_bytes("lan").sent - before > ALLOWED_BYTES:
                stack.enter_context(capped)
        recorder.wait(begin + TRANSFER_SECONDS)
        if not process.running:
            raise TestbedError(f"the transfer ended early with {process.returncode}{process.tail()}")
    if (complaint := Protocol.of(*added.read()).complaint(multipath=True)) is not None:
        raise TestbedError(complaint)
    return judge(recorder.samples)


def _first_packet(samples: Sequence[Sample]) -> float:
    """Return the time of the first packet of a transfer. Raises ValueError if there is none."""
    # Packets of address resolution have fewer bytes.
    for before, after in pairwise(samples):
        if after.octets[CAPPED] - samples[0].octets[CAPPED] > 200:
            return before.time
    raise ValueError(f"no data arrived over {CAPPED}")


def judge(samples: Sequence[Sample]) -> Outcome:
    """Judge the transfer in *samples*. Raises ValueError if no data arrived over the capped path."""
    begin, cap = _first_packet(samples), CAP * 1e6 / 8
    times = np.array([sample.time for sample in samples if 0 <= sample.time - begin <= TRANSFER_SECONDS])
    capped, other = (octets_at(samples, device) for device in DEVICES)
    received, elapsed = capped(times) - capped(begin), times - begin
    full_speed, last = begin + SLOW_START_SECONDS, times[-1]
    return Outcome(
        mean=received[-1] / (cap * elapsed[-1]),
        ahead=max(received - cap * elapsed),
        excess=max(received - MAX_RATIO * cap * elapsed),
        other=8 * (other(last) - other(full_speed)) / (last - full_speed),
    )


def _aim(name: str, aim: str, **column: Any) -> Column[str, Outcome]:
    """Return a column without a heading, with an aim for the variants that cap the transfer from the start."""
    return Column("", name, **{"by": "least", **column}, aim=aim, judged=lambda row: row.cell != "poller")


COLUMNS: tuple[Column[str, Outcome], ...] = (
    RUNS,
    *columns_of(Outcome),
    _aim("excess", f"bytes in excess of {MAX_RATIO:g} × cap × time", by="most", unit=" B", most=MAX_BURST),
    _aim("mean", "capped path, × the cap", least=0.85, most=MAX_RATIO),
    _aim("other", "other path, × its link", scale=1e-6 / RATES[1], least=0.9, most=1.05),
)


def verdicts(results: Results[str, Outcome]) -> list[Aim]:
    """Return the aim that compares the poller with our throttler."""
    pollers, ours = ([each.ahead for each in results.of(variant)] for variant in ("poller", "ours"))
    if not pollers or not ours:
        return []
    name = f"poller: mean overshoot / our maximum overshoot (at least {MIN_OVERSHOOT} B)"
    return [Aim(name, fmean(pollers) / max(MIN_OVERSHOOT, *ours), least=10)]


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss"),
    cells=lambda chosen: list(TITLES),
    shared_bed=lambda cell: None,
    bed=lambda chosen, cells, seed: bed_with([FILE_BYTES], seed),
    measure=measure,
    tables=(Table("Bytes in excess of a cap", COLUMNS, (("variant", lambda row: TITLES[row.cell]),)),),
    verdicts=verdicts,
)
