"""What the experiments share: the payload that a link can carry, and tables of aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from rich import box
from rich.table import Table

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.features import missing

from ..result_file import AimVerdict, JudgedAim, bounds, judge

FRAME = 1514
"""Bytes of a full packet as the shapers count it: an MTU of 1500 and the Ethernet header."""
TCP_HEADER = 20 + 12
"""With timestamps (RFC 7323)."""
DSS_OPTION = 28
"""Data sequence signal with 8-byte sequence numbers and no checksum (RFC 8684, 3.3), padded."""
IP_HEADER = {4: 20, 6: 40}


def payload_share(family: int, *, multipath: bool) -> float:
    """Return the payload in a full packet as a share of what the link counts."""
    headers = IP_HEADER[family] + TCP_HEADER + (DSS_OPTION if multipath else 0)
    return (1500 - headers) / FRAME


@dataclass(frozen=True, slots=True)
class Aim:
    """A measured value and the range it should be in; without one it is a figure that is shown."""

    what: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> AimVerdict:
        """Whether the value is finite and within its bounds; ``no aim`` where it has none and is shown alone."""
        return judge(self.value, self.least, self.most)

    @property
    def met(self) -> bool:
        """False where it was missed; a figure without bounds cannot be."""
        return self.verdict != "missed"

    @property
    def wanted(self) -> str:
        return bounds(self.least, self.most)

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.4g}{self.unit}, wanted {self.wanted}"

    def judged(self) -> JudgedAim:
        """Return what the result file says of it."""
        value = float(self.value) if isfinite(self.value) else None
        return JudgedAim(self.what, value, self.unit, self.least, self.most, self.verdict)


class AimsTable(Table):
    """A table of nothing but aims: the result file has these without it."""


SIGNS: dict[AimVerdict, str] = {"met": "[green]✓[/]", "missed": "[red]✗[/]", "no aim": "[dim]no aim[/]"}


def aims_table(title: str, aims: Sequence[Aim]) -> AimsTable:
    table = AimsTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("wanted", justify="right", no_wrap=True)
    table.add_column("")
    for aim in aims:
        table.add_row(aim.what, f"{aim.value:.4g}{aim.unit}", aim.wanted, SIGNS[aim.verdict])
    return table


def missed(aims: Sequence[Aim]) -> tuple[str, ...]:
    """Return those that were missed, in words: the one rule by which our experiments fail."""
    return tuple(str(aim) for aim in aims if aim.verdict == "missed")


BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}
"""The throttler's netfilter adapters and what each needs."""


def backends() -> list[str]:
    """Return the netfilter adapters that this host has all for; raise where there is none."""
    found = [name for name, needs in BACKENDS.items() if all(missing(feature) is None for feature in needs)]
    if not found:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    return found
