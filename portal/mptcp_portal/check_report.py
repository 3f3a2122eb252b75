# SPDX-License-Identifier: GPL-2.0-or-later
"""The check page's report on one connection, from the kernel and the throttler. Pure.

The kernel decides whether a connection is Multipath TCP: it knows at once, and it knows of fallbacks to plain TCP. The
throttler, if it answers, knows the rest. Sizes in bytes, rates in bits/s, times in seconds since the epoch. The
throttler's ``client`` answers: docs/status.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mptcp_common.units import approximate_size, counted, format_rate
from mptcp_portal.advice import RELAYED, Advice, advice


class Transport(StrEnum):
    MULTIPATH = "multipath"
    TCP = "tcp"
    UNKNOWN = "unknown"


class Throttler(StrEnum):
    """The outcome of the question to the throttler."""

    ANSWERED = "answered"
    ABSENT = "absent"
    SILENT = "silent"
    """The throttler runs, but did not answer in time."""
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class KernelView:
    """The client's connection in the kernel."""

    multipath: bool
    subflows: int = 0
    token: int | None = None
    """The connection's token at the proxy's end."""


@dataclass(frozen=True, slots=True)
class Subflow:
    """One path of the client's own connection."""

    path: str | None
    address: str | None
    rate: int | None
    """Cap in bit/s; None if the subflow has no cap, or if the rule closes the path."""
    capped: bool
    rule: str | None
    bytes: int | None
    upload_rate: int | None = None
    """The upload's cap, in bit/s."""

    @property
    def name(self) -> str:
        return self.path or self.address or "a path without a name"


@dataclass(frozen=True, slots=True)
class Budget:
    """A volume that counts the client's traffic."""

    name: str
    used: int
    volume: int
    """Bytes until the first step."""
    left: int
    until: float | None
    shared: bool = False
    client: str | None = None
    """The client's address, if each address has an account of its own."""
    step: int | None = None
    """Bytes at which the current step began; None before the first."""
    next_step: int | None = None
    """Bytes at which the next step begins; None after the last."""
    title: str = ""
    """The name, made unique among equal names."""

    @property
    def low(self) -> int:
        """Remaining bytes below which the bar shows that the volume is nearly used up."""
        return self.volume // 10

    @property
    def getting_low(self) -> int:
        """Remaining bytes below which the bar no longer shows that plenty is left."""
        return self.volume // 4


@dataclass(frozen=True, slots=True)
class Report:
    """The page's content: a headline, lines of detail, and the same for programs."""

    transport: Transport
    headline: str
    lines: tuple[str, ...]
    throttler: Throttler
    subflows: tuple[Subflow, ...] = ()
    budgets: tuple[Budget, ...] = ()
    advice: Advice | None = None
    """What to do next, for plain TCP."""

    @property
    def is_whole(self) -> bool:
        """Whether the report is complete. With an earlier squid.conf, the throttler's part always stays missing."""
        return self.throttler is Throttler.ANSWERED or self is EARLIER_SETTINGS

    def share(self, subflow: Subflow) -> int:
        """Return *subflow*'s share of the bytes of all paths, in percent."""
        total = sum(each.bytes or 0 for each in self.subflows)
        return round(100 * (subflow.bytes or 0) / total) if total else 0

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the document of /check.json."""
        return {
            "schema": 1,
            "time": now,
            "transport": self.transport.value,
            "throttler": self.throttler.value,
            "headline": self.headline,
            "lines": list(self.lines),
            "subflows": [
                asdict(each)
                | {
                    "limit": limit(each),
                    "carried": carried(each),
                    "share": self.share(each),
                    "details": details(each),
                }
                for each in self.subflows
            ],
            "budgets": [
                asdict(each) | {"low": each.low, "getting_low": each.getting_low, "figure": remaining(each)}
                for each in self.budgets
            ],
            "advice": list(self.advice.lines) if self.advice else [],
        }


_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
YOUNG_SECONDS: Final = 10.0
"""Age up to which a new connection is likely to get more paths."""
_NO_CAPS: Final = {
    Throttler.ABSENT: "The proxy's throttler does not run: names of paths, limits and volumes are unknown.",
    Throttler.SILENT: "The proxy's throttler does not answer now: names of paths, limits and volumes are unknown.",
    Throttler.BUSY: "Too many requests at the moment: names of paths, limits and volumes follow with the next update.",
}


def report(
    kernel: KernelView | None,
    answer: Mapping[str, Any] | None,
    throttler: Throttler,
    *,
    relayed: bool = False,
    user_agent: str = "",
) -> Report:
    """Return the report. *kernel*: None if the kernel did not answer; *answer*: the throttler's, if any.

    *relayed*: whether the connection belongs to another proxy, with the client behind it. *user_agent*: of the client.
    """
    known = answer if throttler is Throttler.ANSWERED and answer is not None else {}
    if kernel is not None and not kernel.multipath and kernel.token is None:
        # The throttler does not know plain TCP: its answer is about an earlier connection with these ends.
        known = {}
    found = _report(kernel, known, throttler)
    if found.transport is Transport.TCP:
        found = replace(found, advice=RELAYED if relayed else advice(user_agent))
    return replace(found, lines=(_RELAYED, *found.lines)) if relayed else found


def _report(kernel: KernelView | None, known: Mapping[str, Any], throttler: Throttler) -> Report:
    subflows = tuple(_subflow(each) for each in known.get("subflows", ()))
    budgets = _titled([_budget(each) for each in known.get("budgets", ())], subflows)
    volumes = [_volume(each, known.get("time_zone")) for each in budgets]
    if kernel is not None:
        multipath: bool | None = kernel.multipath
    elif known:
        multipath = bool(known.get("multipath"))
    else:
        multipath = None
    if multipath is None:
        words = ("Your device uses the proxy. How it is connected is unknown now.", _NO_CAPS.get(throttler, ""))
        return Report(Transport.UNKNOWN, "You are connected", tuple(filter(None, words)), throttler)
    if not multipath:
        return Report(Transport.TCP, "Plain TCP over one path", (_WHY_PLAIN, *volumes), throttler, budgets=budgets)
    if not subflows:
        number = max(1, kernel.subflows) if kernel is not None else 1
        headline = _multipath(number, known)
        return Report(Transport.MULTIPATH, headline, _without_names(number, throttler, volumes), throttler, (), budgets)
    headline = f"{_multipath(len(subflows), known)}: {_and([each.name for each in subflows])}"
    lines = (*(line for each in subflows for line in _caps(each)), *volumes)
    if len(subflows) == 1:
        lines = (_ONE_PATH, *lines)
    elif not any(_caps(each) for each in subflows):
        lines = ("No path is limited now.", *lines)
    return Report(Transport.MULTIPATH, headline, lines, throttler, subflows, budgets)


EARLIER_SETTINGS: Final = Report(
    Transport.UNKNOWN,
    "You are connected",
    (
        "Your device uses the proxy. How it is connected is unknown: the proxy's settings (squid.conf) are from an "
        "earlier version, which does not identify the connection of a request.",
        "The journal of mptcp-portal tells the proxy's operator what to change.",
    ),
    Throttler.ABSENT,
)
"""The report if the connection is unknown."""
_RELAYED: Final = (
    "Another proxy, for instance a relay, is between your device and this one: this page shows its connection, which "
    "other devices may also use."
)
_WHY_PLAIN: Final = (
    "Your system does not support Multipath TCP, this program did not ask for it, or a device on the path removed it. "
    "Pages still load, over one network at a time."
)
_ONE_PATH: Final = (
    "More paths join a moment after the first. If none does, your other network is switched off, or your system does "
    "not use it."
)


def _multipath(number: int, known: Mapping[str, Any]) -> str:
    return f"Multipath TCP with {counted(number, 'subflow')}{' so far' if _is_young(number, known) else ''}"


def _is_young(number: int, known: Mapping[str, Any]) -> bool:
    if "since" not in known:  # age unknown: a single path may be the first of several
        return number == 1
    # A connection that the throttler does not know yet has just begun.
    return known["since"] is None or known["time"] - known["since"] < YOUNG_SECONDS


def _without_names(number: int, throttler: Throttler, volumes: list[str]) -> tuple[str, ...]:
    lines = [_ONE_PATH] if number == 1 else []
    lines.append(_NO_CAPS.get(throttler, "The proxy's throttler does not know this connection yet."))
    return (*lines, *volumes)


def _caps(subflow: Subflow) -> list[str]:
    rule = f" by rule {subflow.rule}" if subflow.rule else ""
    lines = []
    if subflow.capped:
        lines.append(
            f"{subflow.name} is {f'limited to {format_rate(subflow.rate)}' if subflow.rate else 'held back'}{rule}."
        )
    if subflow.upload_rate:
        lines.append(f"Your uploads over {subflow.name} are limited to {format_rate(subflow.upload_rate)}.")
    return lines


def _titled(budgets: list[Budget], subflows: tuple[Subflow, ...]) -> tuple[Budget, ...]:
    """Return *budgets* with titles: the path is added to names that occur more than once."""
    names = [each.name for each in budgets]
    paths = {each.address: each.name for each in subflows}
    return tuple(
        replace(each, title=f"{each.name}, {paths.get(each.client, each.client)}")
        if names.count(each.name) > 1 and each.client
        else replace(each, title=each.name)
        for each in budgets
    )


def _volume(budget: Budget, zone: str | None) -> str:
    date = _date(budget.until, zone) if budget.until is not None else ""
    shared = ", shared with others" if budget.shared else ""
    if budget.left <= 0:
        restart = f"; it starts over on {date}" if date else ""
        used_up = f"{budget.title}: all of {_amount(budget.volume, budget.volume)} used up{shared}"
        return f"{used_up}{_steps(budget)}{restart}."
    until = f" until {date}" if date else ""
    return f"{budget.title}: {remaining(budget)}{until}{shared}."


def _steps(budget: Budget) -> str:
    step, next_step = budget.step, budget.next_step
    reached = "" if step is None or step <= budget.volume else f", and also all until the step at {_amount(step, step)}"
    if next_step is None:
        return reached
    left = _amount(max(0, next_step - budget.used), next_step)
    return f"{reached}; {left} left until the next step, at {_amount(next_step, next_step)}"


def _unit(size: int) -> tuple[int, str]:
    return next((unit for unit in _UNITS if size >= unit[0]), (1, "B"))


def _number(size: int, factor: int) -> str:
    """Return *size* in units of *factor*, rounded down to two decimal places."""
    text = f"{size * 100 // factor / 100:.2f}"
    return text.rstrip("0").rstrip(".")


def _amount(size: int, scale: int) -> str:
    factor, name = _unit(scale)
    return f"{_number(size, factor)} {name}"


def _date(seconds: float, zone: str | None) -> str:
    """Return ``1 December, 00:00 (Europe/Athens)``: in the policy's time zone, in which the period ends.

    A phone may have another time zone. If the policy's is unknown, the time is this host's, with its offset.
    """
    found = None if zone is None else _zone(zone)
    when = datetime.fromtimestamp(seconds, found).astimezone(found)
    return f"{when.day} {when:%B, %H:%M} ({f'UTC{when:%z}' if found is None else zone})"


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def limit(subflow: Subflow) -> str:
    """Return *subflow*'s cap, for a table."""
    if not subflow.capped:
        return "none"
    return format_rate(subflow.rate) if subflow.rate else "held back"


def details(subflow: Subflow) -> str:
    """Return *subflow*'s bytes and cap, for the text beside its bar."""
    held = (
        f"limit {limit(subflow)}"
        if subflow.capped and subflow.rate
        else limit(subflow)
        if subflow.capped
        else "no limit"
    )
    return ", ".join(filter(None, (carried(subflow) and f"{carried(subflow)} carried", held)))


def remaining(budget: Budget) -> str:
    """Return how much of *budget* is left, as text."""
    return f"{_number(budget.left, _unit(budget.volume)[0])} of {_amount(budget.volume, budget.volume)} left"


def carried(subflow: Subflow) -> str:
    """Return how much *subflow* has carried, as text."""
    return "" if subflow.bytes is None else approximate_size(subflow.bytes)


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _subflow(found: Mapping[str, Any]) -> Subflow:
    return Subflow(
        path=found.get("path"),
        address=found.get("address"),
        rate=found.get("rate"),
        capped=bool(found.get("capped")),
        rule=found.get("rule"),
        bytes=found.get("bytes"),
        upload_rate=found.get("upload_rate"),
    )


def _budget(found: Mapping[str, Any]) -> Budget:
    used, volume = int(found["used"]), int(found["volume"])
    left = found.get("left")
    return Budget(
        name=str(found["name"]),
        used=used,
        volume=volume,
        left=max(0, volume - used) if left is None else int(left),
        until=found.get("until"),
        shared=bool(found.get("shared")),
        client=found.get("client"),
        step=found.get("step"),
        next_step=found.get("next_step"),
    )
