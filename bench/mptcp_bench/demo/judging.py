# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge the measurements of the demo, and describe the results in words. Pure.

There are two kinds of complaints. A *wrong* result is always a failure: corrupted data, no MPTCP, an unused path, an
exceeded cap, a throttler that ended. A *missed* goal, which is a low rate or an unfinished download, may be the
machine's fault: it is a failure only if neither the hypervisor nor other programs used much processor time. The demo's
own programs do not count as others. The capacity of a link is the rate that plain TCP reached over the link in the same
run. A part with a complaint is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol

from .parts import PATHS, DisplayedPath, Part

FILLED = 0.8
"""Minimum rate of a path that counts as filled, as a share of the capacity of its link or cap."""
MOST = 1.1
"""Maximum rate of a path that respects its cap or link, as a multiple of the rate of the cap or link."""
UNUSED = 0.02
"""A path with a rate below this share of its capacity counts as unused."""
SHORT = 1.0
"""Minimum length of a steady state in seconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one download, and the machine's load during the download."""

    part: Part
    start: float
    end: float
    """Start and end of the download in seconds, on the clock of the picture's samples."""
    octets: int
    digest_ok: bool
    protocol: Protocol
    steady: Mapping[str, float]
    """Rate of each device on the wire in the steady state, bits per second."""
    steady_seconds: float
    """Length of the steady state. If the download was too short for one, :attr:`steady` has its mean rates."""
    processors: Usage
    throttler: int | None = None
    """Exit status of the throttler, if the throttler ended before the download."""
    broken_off: float | None = None
    """Seconds after which the download was aborted; None if it was not aborted."""

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A download with its verdict."""

    measured: Measured
    expected: Mapping[str, float]
    """Expected rate of each device that should be filled, bits per second."""
    wrong: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether only goals were missed, and the machine was too busy."""
        return bool(self.missed) and not self.wrong and self.measured.processors.busy

    @property
    def failed(self) -> bool:
        return bool(self.complaints) and not self.busy

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.missed)


def judge(measured: Measured, plain: Mapping[str, float]) -> Outcome:
    """Judge one download. *plain* has plain TCP's rate over each device in bits/s, as far as it is known."""
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
    for path in PATHS:
        rate = measured.steady[path.device]
        shown = f"{path.label} carried {rate / 1e6:.1f} Mbit/s in the steady state"
        if fault := _fault(part, path, rate):
            wrong.append(f"{shown} {fault}")
        elif path.device in expected and rate < FILLED * expected[path.device]:
            missed.append(f"{shown}, less than {FILLED:.0%} of {_source(part, path, expected[path.device])}")
    # If the cap is exceeded, the download ends early. Do not report that as another fault.
    if measured.steady_seconds < SHORT and not wrong:
        wrong.append(f"over after {measured.end - measured.start:.1f} s, before a steady state")
    return Outcome(measured, expected, tuple(wrong), tuple(missed))


def _fault(part: Part, path: DisplayedPath, rate: float) -> str | None:
    allowed = part.allowed.get(path.device)
    if allowed is None:
        return "and should have been idle" if rate > UNUSED * path.rate else None
    if rate > MOST * allowed:
        what = "its cap" if part.capped == path.device else "its link"
        return f"and {what} allows {allowed / 1e6:g}"
    return "and should have been used" if rate < UNUSED * allowed else None


def _source(part: Part, path: DisplayedPath, expected: float) -> str:
    allowed = part.allowed[path.device]
    if expected < allowed:
        return f"the {expected / 1e6:.1f} that plain TCP got over it"
    return f"the {allowed / 1e6:g} of its {'cap' if part.capped == path.device else 'link'}"


@dataclass
class Verdict:
    """The outcomes of all downloads of a run, in order, including repeated ones."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def final(self) -> tuple[Outcome, ...]:
        """The last outcome of each part, which decides."""
        return tuple({outcome.measured.part.key: outcome for outcome in self.outcomes}.values())

    @property
    def failure(self) -> str | None:
        failed = [outcome.measured.part.title for outcome in self.final if outcome.failed]
        return f"not as it should be: {'; '.join(failed)} (see above)" if failed else None

    @property
    def warning(self) -> str | None:
        """Text about the parts that could not be judged; None if all could."""
        busy = [outcome.measured for outcome in self.final if outcome.busy]
        if not busy:
            return None
        parts = "; ".join(f"{each.part.title} ({each.processors})" for each in busy)
        return f"this machine is too busy to judge: {parts}. Run the demo again when the machine has less to do."


def perform(parts: Iterable[Part], measure: Callable[[Part], Measured], said: Callable[[Outcome], None]) -> Verdict:
    """Measure and judge each of *parts*, and repeat it once if there is a complaint. Call *said* with each outcome.

    The part is repeated because the machine's load is a mean over the part, which does not show a short burst, and
    because the guard may have relaxed a cap.
    """
    verdict = Verdict()
    plain: dict[str, float] = {}
    for part in parts:
        for _ in range(2):
            outcome = judge(measure(part), plain)
            verdict.outcomes.append(outcome)
            said(outcome)
            if not outcome.complaints:
                break
        if part.source is not None:
            plain[part.source] = outcome.measured.steady[part.source]
    return verdict
