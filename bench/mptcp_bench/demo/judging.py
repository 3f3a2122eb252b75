# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge the measurements of the demo, and describe the results in words. Pure.

There are two kinds of complaints. A *wrong* result is always a failure: corrupted data, no MPTCP, an unused path, an
exceeded cap, a throttler that ended. A *missed* goal, which is a low rate or an unfinished download, may be the
machine's fault: it is a failure only if neither the hypervisor nor other programs used much processor time. The demo's
own programs do not count as others. The capacity of a link is the rate that plain TCP reached over the link in the same
run. A part with a complaint is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol

from .parts import PATHS, DisplayedPath, Part

MIN_FILLED = 0.8
"""Minimum rate of a path that counts as filled, as a share of the capacity of its link or cap."""
MAX_OVER_LIMIT = 1.1
"""Maximum rate of a path that respects its cap or link, as a multiple of the rate of the cap or link."""
MAX_UNUSED = 0.02
"""A path with a rate below this share of its capacity counts as unused."""
MIN_STEADY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Download:
    """Measurements of one download, the machine's load during the download, and the verdict."""

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
    throttler_exit_status: int | None = None
    """Set if the throttler ended before the download."""
    aborted_after: float | None = None
    """Seconds after which the download was aborted; None if it was not aborted."""
    expected: Mapping[str, float] = field(default_factory=dict)
    """Expected rate of each device that should be filled, bits per second. This and the next are set by ``judge``."""
    wrong: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.missed)

    @property
    def busy(self) -> bool:
        """Whether only goals were missed, and the machine was too busy."""
        return bool(self.missed) and not self.wrong and self.processors.busy

    @property
    def failed(self) -> bool:
        return bool(self.complaints) and not self.busy


def judge(download: Download, plain: Mapping[str, float]) -> Download:
    """Return *download* with its verdict. *plain* has plain TCP's rate over each device in bits/s, as far as known."""
    part = download.part
    known = plain if part.multipath else {}
    expected = {device: min(float(rate), known.get(device, rate)) for device, rate in part.allowed.items()}
    wrong, missed = [], []
    if download.aborted_after is not None:
        missed.append(f"not finished after {download.aborted_after:g} s")
    elif not download.digest_ok:
        wrong.append("the received data differ from the origin's (SHA-256)")
    if (fault := download.protocol.complaint(multipath=part.multipath)) is not None:
        wrong.append(fault)
    if (status := download.throttler_exit_status) is not None:
        wrong.append(f"the throttler ended (exit status {status}) while it should have enforced the policy")
    for path in PATHS:
        rate = download.steady[path.device]
        text = f"{path.label} carried {rate / 1e6:.1f} Mbit/s in the steady state"
        if fault := _fault(part, path, rate):
            wrong.append(f"{text} {fault}")
        elif rate < MIN_FILLED * (goal := expected.get(path.device, 0)):
            limit = f"its {_limit(part, path)} of {goal / 1e6:g} Mbit/s"
            source = limit if goal == part.allowed[path.device] else f"plain TCP's {goal / 1e6:.1f} Mbit/s"
            missed.append(f"{text}, less than {MIN_FILLED:.0%} of {source}")
    # If the cap is exceeded, the download ends early. Do not report that as another fault.
    if download.steady_seconds < MIN_STEADY_SECONDS and not wrong:
        wrong.append(f"finished after {download.end - download.start:.1f} s, before a steady state")
    return replace(download, expected=expected, wrong=tuple(wrong), missed=tuple(missed))


def _fault(part: Part, path: DisplayedPath, rate: float) -> str | None:
    allowed = part.allowed.get(path.device)
    if allowed is None:
        return "and should have been idle" if rate > MAX_UNUSED * path.rate else None
    if rate > MAX_OVER_LIMIT * allowed:
        return f"but its {_limit(part, path)} is {allowed / 1e6:g} Mbit/s"
    return "and should have been used" if rate < MAX_UNUSED * allowed else None


def _limit(part: Part, path: DisplayedPath) -> str:
    return "cap" if part.capped == path.device else "link"


def failure(final: Sequence[Download]) -> str | None:
    """Return the text about the failed parts; None if no part failed. *final* has the last download of each part."""
    failed = [each.part.title for each in final if each.failed]
    return f"not as it should be: {'; '.join(failed)} (see above)" if failed else None


def warning(final: Sequence[Download]) -> str | None:
    """Return the text about the parts that could not be judged; None if all could."""
    busy = [f"{each.part.title} ({each.processors})" for each in final if each.busy]
    again = "Run the demo again when the machine has less to do."
    return f"this machine is too busy to judge: {'; '.join(busy)}. {again}" if busy else None


def last_of_each_part(downloads: Sequence[Download]) -> list[Download]:
    return list({each.part.key: each for each in downloads}.values())


def perform(
    parts: Iterable[Part], measure: Callable[[Part], Download], report: Callable[[Download], None]
) -> list[Download]:
    """Measure and judge each of *parts*, and repeat it once if there is a complaint. Call *report* with each download.

    The part is repeated because the machine's load is a mean over the part, which does not show a short burst, and
    because the guard may have relaxed a cap.
    """
    downloads: list[Download] = []
    plain: dict[str, float] = {}
    for part in parts:
        for _ in range(2):
            download = judge(measure(part), plain)
            downloads.append(download)
            report(download)
            if not download.complaints:
                break
        if part.source is not None:
            plain[part.source] = download.steady[part.source]
    return downloads
