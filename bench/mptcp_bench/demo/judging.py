"""Whether the demo showed what it should. Pure: from what was measured to words.

There are two kinds of complaint. What the product does *wrong* is wrong on any machine: other bytes, no Multipath TCP,
a path unused, a cap exceeded, a throttler that ended. What was *missed* may be the machine's fault: a rate, the end of
the download, a cap that came late and was kept to from then on. It counts only if neither the hypervisor nor other
programs took the processors' time: that the demo's own programs took it all is a fault of theirs. What a link gives is
what plain TCP got over it in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol

from ..displayed_path import DisplayedPath
from .parts import PATHS, Part

FILLED = 0.8
"""Least share of what a path could carry, by which it is filled: link, or cap."""
MOST = 1.1
"""Most share of a cap, or of a link's rate, by which it is kept to."""
UNUSED = 0.02
"""Share of what a path could carry, below which it was not used."""
SHORT = 1.0
"""Seconds of steady state, below which there was none."""
CLOSING = 2.0
"""Seconds at the end of a download by which a cap that came late differs from one that never came."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One download, and what the machine did meanwhile."""

    part: Part
    start: float
    end: float
    """Seconds, on the clock of the picture's samples."""
    octets: int
    digest_ok: bool
    """Whether these were the bytes that the origin has, all of them."""
    protocol: Protocol
    steady: Mapping[str, float]
    """Bits per second of each device on the wire, in the steady state."""
    steady_seconds: float
    """How long that lasted; where the download was too short for one, :attr:`steady` is of all of it."""
    processors: Usage
    throttler: int | None = None
    """Exit status of the throttler where it ended before its download did."""
    congestion_control: tuple[str, ...] = ()
    """What the proxy's subflows to the client used; empty where the download did not go through the proxy."""
    closing: float | None = None
    """Bits per second of the capped device in the last :data:`CLOSING` seconds; None where there is neither."""
    broken_off: float | None = None
    """Seconds after which the download was broken off; None where it came to its end."""
    guarded: str | None = None
    """What the guard let pass, in words; None where it left the cap alone."""

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A download and what is to be said of it."""

    measured: Measured
    expected: Mapping[str, float]
    """Bits per second of each device that was to be filled."""
    wrong: tuple[str, ...] = ()
    """What the product did wrong."""
    missed: tuple[str, ...] = ()
    """What was not reached in time: rates, a cap, the end of the download."""
    repeated: bool = False
    """Its part was measured once more because of what was missed, and is judged by that."""

    @property
    def busy(self) -> bool:
        """Whether something was missed while the machine was too busy to reach it."""
        return bool(self.missed) and self.measured.processors.busy

    @property
    def failed(self) -> bool:
        return bool(self.wrong) or (bool(self.missed) and not self.busy and not self.repeated)

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.missed)


def judge(measured: Measured, plain: Mapping[str, float]) -> Outcome:
    """Judge one download; *plain* is what plain TCP got over each device, bits per second, as far as that is known."""
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
    # One whose cap comes late is soon over.
    if measured.steady_seconds < SHORT and not wrong and not late:
        wrong.append(f"over after {measured.end - measured.start:.1f} s, before a steady state")
    return Outcome(measured, expected, tuple(wrong), tuple(missed))


def _fault(part: Part, path: DisplayedPath, rate: float) -> str | None:
    """Return what is wrong with *rate* on any machine."""
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
    """Return whether the cap of *path* was seen in force at the end, though it was exceeded before.

    A path that carries less than its cap there does not show one: it may have run dry.
    """
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
    """All downloads of a run in order, those too that were repeated."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def final(self) -> tuple[Outcome, ...]:
        """The outcome of each part: of one that was repeated, the second."""
        return tuple({outcome.measured.part.key: outcome for outcome in self.outcomes}.values())

    @property
    def failure(self) -> str | None:
        failed = [outcome.measured.part.title for outcome in self.final if outcome.failed]
        return f"not as it should be: {'; '.join(failed)} (see above)" if failed else None

    @property
    def warning(self) -> str | None:
        """What could not be judged, in plain words; None where all could."""
        busy = [outcome for outcome in self.final if outcome.busy and not outcome.failed]
        if not busy:
            return None
        parts = "; ".join(f"{outcome.measured.part.title} ({outcome.measured.processors})" for outcome in busy)
        return (
            f"this machine is too busy to judge: {parts}. What could be judged there is as it should be; "
            "run the demo again when the machine has less to do."
        )


def perform(parts: Iterable[Part], measure: Callable[[Part], Measured], said: Callable[[Outcome], None]) -> Verdict:
    """Have each of *parts* measured and judged, once more where something was missed; call *said* at once.

    Readings of how busy the machine was are means over the part: a burst of other work at the wrong moment is in none.
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
