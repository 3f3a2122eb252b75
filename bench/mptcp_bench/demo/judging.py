# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge whether the demo showed what it should. Pure: from measurements to words.

There are two kinds of complaint. *Wrong* is what no machine excuses: other bytes, no MPTCP, an unused path, an exceeded
cap, a throttler that ended. *Missed* may be the machine's fault: a rate, the end of the download, a cap that came late
and was kept to from then on. It counts only if neither the hypervisor nor other programs took the processors' time; the
demo's own programs are no excuse. A link's capacity is what plain TCP got over it in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol

from ..displayed_path import DisplayedPath
from .parts import PATHS, Part

FILLED = 0.8
"""Least share of a path's capacity (link or cap) at which it counts as filled."""
MOST = 1.1
"""Most share of a cap, or of a link's rate, that keeps to it."""
UNUSED = 0.02
"""Share of a path's capacity below which it counts as unused."""
SHORT = 1.0
"""Shortest steady state, in seconds."""
CLOSING = 2.0
"""Last seconds of a download, in which a late cap differs from one that never came."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One download, and the machine's load meanwhile."""

    part: Part
    start: float
    end: float
    """Seconds, on the clock of the picture's samples."""
    octets: int
    digest_ok: bool
    protocol: Protocol
    steady: Mapping[str, float]
    """Bits per second of each device on the wire, in the steady state."""
    steady_seconds: float
    """Length of the steady state; if the download was too short for one, :attr:`steady` is over all of it."""
    processors: Usage
    throttler: int | None = None
    """The throttler's exit status, if it ended before the download."""
    congestion_control: tuple[str, ...] = ()
    """Of the proxy's subflows to the client; empty if the download did not use the proxy."""
    closing: float | None = None
    """Bits per second of the capped device in the last :data:`CLOSING` seconds; None without cap or such an end."""
    broken_off: float | None = None
    """Seconds after which the download was aborted; None if it ended."""
    guarded: str | None = None
    """What the guard let pass, in words; None if it left the cap alone."""

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged download."""

    measured: Measured
    expected: Mapping[str, float]
    """Bits per second of each device that should be filled."""
    wrong: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    repeated: bool = False
    """Its part is measured again because of what was missed, and judged by the second measurement."""

    @property
    def busy(self) -> bool:
        """Whether something was missed while the machine was too busy."""
        return bool(self.missed) and self.measured.processors.busy

    @property
    def failed(self) -> bool:
        return bool(self.wrong) or (bool(self.missed) and not self.busy and not self.repeated)

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.missed)


def judge(measured: Measured, plain: Mapping[str, float]) -> Outcome:
    """Judge one download; *plain* is plain TCP's bits per second over each device, as far as known."""
    part = measured.part
    known = plain if part.multipath else {}
    expected = {d: min(float(allowed), known.get(d, allowed)) for d, allowed in part.allowed.items()}
    wrong, missed = [], []
    if measured.broken_off is not None:
        missed.append(f"no end after {measured.broken_off:g} s")
    elif not measured.digest_ok:
        wrong.append("the bytes received are not those the origin has (SHA-256)")
    protocol = measured.protocol.complaint(multipath=part.multipath)
    if protocol is not None:
        wrong.append(protocol)
    if measured.throttler is not None:
        wrong.append(f"the throttler ended (exit status {measured.throttler}) while it should have enforced the policy")
    late = False
    for path in PATHS:
        rate = measured.steady[path.device]
        shown = f"{path.label} carried {rate / 1e6:.1f} Mbit/s in the steady state"
        fault = _fault(part, path, rate)
        if fault is not None and _late(measured, path):
            late = True
            missed.append(f"{shown} {fault}: it came late, and was kept to in the last {CLOSING:g} s")
        elif fault is not None:
            wrong.append(f"{shown} {fault}")
        elif path.device in expected and rate < FILLED * expected[path.device]:
            missed.append(f"{shown}, less than {FILLED:.0%} of {_source(part, path, expected[path.device])}")
    # A download whose cap comes late is soon over.
    if measured.steady_seconds < SHORT and not wrong and not late:
        wrong.append(f"over after {measured.end - measured.start:.1f} s, before a steady state")
    return Outcome(measured, expected, tuple(wrong), tuple(missed))


def _fault(part: Part, path: DisplayedPath, rate: float) -> str | None:
    allowed = part.allowed.get(path.device)
    if allowed is None:
        return "and should have been idle" if rate > UNUSED * path.rate else None
    if rate > MOST * allowed:
        what = "its cap" if part.capped == path.device else "its link"
        return f"and {what} allows {allowed / 1e6:g}"
    if rate < UNUSED * allowed:
        return "and should have been used"
    return None


def _late(measured: Measured, path: DisplayedPath) -> bool:
    """Return whether the exceeded cap of *path* was in force at the end; a path below its cap may have run dry."""
    if measured.part.capped != path.device or measured.closing is None:
        return False
    allowed = measured.part.allowed[path.device]
    exceeded = measured.steady[path.device] > MOST * allowed
    return exceeded and FILLED * allowed <= measured.closing <= MOST * allowed


def _source(part: Part, path: DisplayedPath, expected: float) -> str:
    allowed = part.allowed[path.device]
    if expected < allowed:
        return f"the {expected / 1e6:.1f} that plain TCP got over it"
    return f"the {allowed / 1e6:g} of its {'cap' if part.capped == path.device else 'link'}"


@dataclass
class Verdict:
    """All downloads of a run in order, including repeated ones."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def final(self) -> tuple[Outcome, ...]:
        """The last outcome of each part."""
        return tuple({outcome.measured.part.key: outcome for outcome in self.outcomes}.values())

    @property
    def failure(self) -> str | None:
        failed = [outcome.measured.part.title for outcome in self.final if outcome.failed]
        return f"not as it should be: {'; '.join(failed)} (see above)" if failed else None

    @property
    def warning(self) -> str | None:
        """What could not be judged, in plain words; None if all could."""
        busy = [outcome for outcome in self.final if outcome.busy and not outcome.failed]
        if not busy:
            return None
        parts = "; ".join(f"{outcome.measured.part.title} ({outcome.measured.processors})" for outcome in busy)
        return (
            f"this machine is too busy to judge: {parts}. What could be judged there is as it should be; "
            "run the demo again when the machine has less to do."
        )


def perform(parts: Iterable[Part], measure: Callable[[Part], Measured], said: Callable[[Outcome], None]) -> Verdict:
    """Measure and judge each of *parts*, once more if something was missed; call *said* at once.

    The machine's load is a mean over the part: it hides a burst of other work at the wrong moment.
    """
    verdict = Verdict()
    plain: dict[str, float] = {}
    for part in parts:
        for is_last in (False, True):
            outcome = judge(measure(part), plain)
            if outcome.missed and not outcome.wrong and not is_last:
                outcome = replace(outcome, repeated=True)
            verdict.outcomes.append(outcome)
            said(outcome)
            if not outcome.repeated:
                break
        if part.source is not None:
            plain[part.source] = outcome.measured.steady[part.source]
    return verdict
