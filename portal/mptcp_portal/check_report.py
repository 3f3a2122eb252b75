# SPDX-License-Identifier: GPL-2.0-or-later
"""The check page's report on one connection, from the kernel and the throttler. Pure.

The kernel decides whether a connection uses Multipath TCP: it knows this immediately, and it knows fallbacks to plain
TCP. The rest is from the throttler, if it answers. Sizes are bytes, rates bits/s, times seconds since the epoch. The
throttler's answers to ``client``: docs/status.md.
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


class ThrottlerOutcome(StrEnum):
    """The outcome of the request to the throttler."""

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
    """One subflow of the client's own connection."""

    path: str | None
    address: str | None
    rate: int | None
    """Cap, bits/s; None if the subflow has no cap, or if it is held back without a rate."""
    capped: bool
    rule: str | None
    bytes: int | None
    upload_rate: int | None = None
    """Cap of uploads, bits/s."""

    @property
    def name(self) -> str:
        return self.path or self.address or "a path without a name"


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget that counts the client's traffic."""

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
        """Remaining bytes below which the bar shows that the volume is getting low."""
        return self.volume // 4


@dataclass(frozen=True, slots=True)
class Report:
    """The page's content: a headline, lines with details, and the data for them."""

    transport: Transport
    headline: str
    lines: tuple[str, ...]
    throttler: ThrottlerOutcome
    subflows: tuple[Subflow, ...] = ()
    budgets: tuple[Budget, ...] = ()
    advice: Advice | None = None
    """What to do next, for plain TCP."""

    @property
    def is_complete(self) -> bool:
        """Whether the report has the throttler's part. With an earlier squid.conf, that part is never expected."""
        return self.throttler is ThrottlerOutcome.ANSWERED or self is OLD_CONFIGURATION

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
                    "carried": carried_text(each),
                    "share": self.share(each),
                    "details": details(each),
                }
                for each in self.subflows
            ],
            "budgets": [
                asdict(each) | {"low": each.low, "getting_low": each.getting_low, "figure": remaining_text(each)}
                for each in self.budgets
            ],
            "advice": list(self.advice.lines) if self.advice else [],
        }


_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
YOUNG_SECONDS: Final = 10.0
"""Age up to which a new connection is likely to get more paths."""
_WITHOUT_ANSWER: Final = {
    ThrottlerOutcome.ABSENT: "The proxy's throttler does not run: names of paths, limits and volumes are unknown.",
    ThrottlerOutcome.SILENT: (
        "The proxy's throttler does not answer now: names of paths, limits and volumes are unknown."
    ),
    ThrottlerOutcome.BUSY: (
        "Too many requests at the moment: names of paths, limits and volumes follow with the next update."
    ),
}


def report(
    kernel: KernelView | None,
    answer: Mapping[str, Any] | None,
    throttler: ThrottlerOutcome,
    *,
    relayed: bool = False,
    user_agent: str = "",
) -> Report:
    """Return the report. *kernel*: None if the kernel did not answer; *answer*: the throttler's answer, if any.

    *relayed*: whether the connection is another proxy's, which forwards the client's request. *user_agent*: the
    client's User-Agent.
    """
    throttler_view = answer if throttler is ThrottlerOutcome.ANSWERED and answer is not None else {}
    if kernel is not None and not kernel.multipath and kernel.token is None:
        # The throttler does not know plain TCP connections: its answer is about an earlier connection with these ends.
        throttler_view = {}
    found = _report(kernel, throttler_view, throttler)
    if found.transport is Transport.TCP:
        found = replace(found, advice=RELAYED if relayed else advice(user_agent))
    return replace(found, lines=(_RELAYED, *found.lines)) if relayed else found


def _report(kernel: KernelView | None, throttler_view: Mapping[str, Any], throttler: ThrottlerOutcome) -> Report:
    subflows = tuple(_subflow(each) for each in throttler_view.get("subflows", ()))
    budgets = _with_titles([_budget(each) for each in throttler_view.get("budgets", ())], subflows)
    volumes = [_volume_sentence(each, throttler_view.get("time_zone")) for each in budgets]
    if kernel is not None:
        multipath: bool | None = kernel.multipath
    elif throttler_view:
        multipath = bool(throttler_view.get("multipath"))
    else:
        multipath = None
    if multipath is None:
        sentences = (
            "Your device uses the proxy. How it is connected is unknown now.",
            _WITHOUT_ANSWER.get(throttler, ""),
        )
        return Report(Transport.UNKNOWN, "You are connected", tuple(filter(None, sentences)), throttler)
    if not multipath:
        return Report(Transport.TCP, "Plain TCP over one path", (_WHY_PLAIN, *volumes), throttler, budgets=budgets)
    if not subflows:
        number = max(1, kernel.subflows) if kernel is not None else 1
        headline = _multipath(number, throttler_view)
        return Report(Transport.MULTIPATH, headline, _without_names(number, throttler, volumes), throttler, (), budgets)
    headline = f"{_multipath(len(subflows), throttler_view)}: {_join([each.name for each in subflows])}"
    lines = (*(line for each in subflows for line in _cap_lines(each)), *volumes)
    if len(subflows) == 1:
        lines = (_ONE_PATH, *lines)
    elif not any(_cap_lines(each) for each in subflows):
        lines = ("No path is limited now.", *lines)
    return Report(Transport.MULTIPATH, headline, lines, throttler, subflows, budgets)


OLD_CONFIGURATION: Final = Report(
    Transport.UNKNOWN,
    "You are connected",
    (
        "Your device uses the proxy. How it is connected is unknown: the proxy's settings (squid.conf) are from an "
        "earlier version, which does not identify the connection of a request.",
        "The journal of mptcp-portal tells the proxy's operator what to change.",
    ),
    ThrottlerOutcome.ABSENT,
)
"""The report if squid.conf does not identify the connection."""
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


def _multipath(number: int, throttler_view: Mapping[str, Any]) -> str:
    return f"Multipath TCP with {counted(number, 'subflow')}{' so far' if _is_young(number, throttler_view) else ''}"


def _is_young(number: int, throttler_view: Mapping[str, Any]) -> bool:
    if "since" not in throttler_view:  # the age is unknown: a single path may be the first of several
        return number == 1
    # A connection that the throttler does not know yet has just begun.
    return throttler_view["since"] is None or throttler_view["time"] - throttler_view["since"] < YOUNG_SECONDS


def _without_names(number: int, throttler: ThrottlerOutcome, volumes: list[str]) -> tuple[str, ...]:
    lines = [_ONE_PATH] if number == 1 else []
    lines.append(_WITHOUT_ANSWER.get(throttler, "The proxy's throttler does not know this connection yet."))
    return (*lines, *volumes)


def _cap_lines(subflow: Subflow) -> list[str]:
    rule = f" by rule {subflow.rule}" if subflow.rule else ""
    lines = []
    if subflow.capped:
        lines.append(
            f"{subflow.name} is {f'limited to {format_rate(subflow.rate)}' if subflow.rate else 'held back'}{rule}."
        )
    if subflow.upload_rate:
        lines.append(f"Your uploads over {subflow.name} are limited to {format_rate(subflow.upload_rate)}.")
    return lines


def _with_titles(budgets: list[Budget], subflows: tuple[Subflow, ...]) -> tuple[Budget, ...]:
    """Return *budgets* with titles: the path is added to names that occur more than once."""
    names = [each.name for each in budgets]
    paths = {each.address: each.name for each in subflows}
    return tuple(
        replace(each, title=f"{each.name}, {paths.get(each.client, each.client)}")
        if names.count(each.name) > 1 and each.client
        else replace(each, title=each.name)
        for each in budgets
    )


def _volume_sentence(budget: Budget, zone: str | None) -> str:
    date = _date(budget.until, zone) if budget.until is not None else ""
    shared = ", shared with others" if budget.shared else ""
    if budget.left <= 0:
        restart = f"; it starts over on {date}" if date else ""
        used_up = f"{budget.title}: all of {_amount(budget.volume, budget.volume)} used up{shared}"
        return f"{used_up}{_steps(budget)}{restart}."
    until = f" until {date}" if date else ""
    return f"{budget.title}: {remaining_text(budget)}{until}{shared}."


def _steps(budget: Budget) -> str:
    step, next_step = budget.step, budget.next_step
    reached = "" if step is None or step <= budget.volume else f", and all up to the step at {_amount(step, step)}"
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
    """Return a date like ``1 December, 00:00 (Europe/Athens)``, in the policy's time zone, because the period ends in
    that zone, and a phone may have another one. If the policy's zone is unknown, return the time in this host's zone,
    with its offset.
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
    """Return *subflow*'s bytes and cap, for the text next to its bar."""
    cap = (
        f"limit {limit(subflow)}"
        if subflow.capped and subflow.rate
        else limit(subflow)
        if subflow.capped
        else "no limit"
    )
    return ", ".join(filter(None, (carried_text(subflow) and f"{carried_text(subflow)} carried", cap)))


def remaining_text(budget: Budget) -> str:
    """Return how much of *budget* is left, as text."""
    return f"{_number(budget.left, _unit(budget.volume)[0])} of {_amount(budget.volume, budget.volume)} left"


def carried_text(subflow: Subflow) -> str:
    """Return how much *subflow* has carried, as text."""
    return "" if subflow.bytes is None else approximate_size(subflow.bytes)


def _join(words: list[str]) -> str:
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
