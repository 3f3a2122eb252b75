"""What the experiments share: the payload that a link can carry, and tables of aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.features import missing

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
    """A measured value and the range it should be in."""

    what: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def wanted(self) -> str:
        bounds = []
        if self.least is not None:
            bounds.append(f"≥ {self.least:g}")
        if self.most is not None:
            bounds.append(f"≤ {self.most:g}")
        return " and ".join(bounds)

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.4g}{self.unit}, wanted {self.wanted}"


def aims_table(title: str, aims: Sequence[Aim]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("wanted", justify="right", no_wrap=True)
    table.add_column("")
    for aim in aims:
        sign = "[green]✓[/]" if aim.met else "[red]✗[/]"
        table.add_row(aim.what, f"{aim.value:.4g}{aim.unit}", aim.wanted, sign)
    return table


def missed(aims: Sequence[Aim]) -> tuple[str, ...]:
    return tuple(str(aim) for aim in aims if not aim.met)


def need(*features: str) -> None:
    """Raise, naming all that this host lacks."""
    lacking = [reason for reason in map(missing, features) if reason is not None]
    if lacking:
        raise TestbedError("this host cannot run the experiment:\n" + "\n".join(f"  - {r}" for r in lacking))


BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}
"""The throttler's netfilter adapters and what each needs."""


def backends() -> list[str]:
    """Return the netfilter adapters that this host has all for; raise where there is none."""
    found = [name for name, needs in BACKENDS.items() if all(missing(feature) is None for feature in needs)]
    if not found:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    return found
