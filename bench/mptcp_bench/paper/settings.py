# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the paper's experiments: ``--set wifi.rate=30mbit --set wifi.rtt=40ms``, or ``--inventory FILE``.

The usual values are the paper's testbed, as far as the paper describes it: a Raspberry Pi Model B with Ethernet (about
94 Mbit/s of payload, short RTT) and Wi-Fi. Wi-Fi's rate and RTT are chosen such that the required receive buffer is the
paper's "maximum of 0.48 MB": 2 × (100 + 20 Mbit/s) × 16 ms (section 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mptcp_common.units import parse_rate
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, PathError, UniformLoss
from mptcp_lab.remote import read_inventory, remote_lab
from mptcp_lab.testbed import Testbed, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.topologies import paths

from ..experiments.parameters import OptionError, parameter, settings, whole, yes_or_no

ETHERNET, WIFI = "ethernet", "wifi"
NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "tcpdump", "mptcpize",
)  # fmt: skip
_TIME = re.compile(r"(\d{1,7}(?:\.\d{1,3})?) *(us|µs|ms|s)")
_MICROSECONDS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000}
_RATE, _RTT = "rate of the link, in each direction", "RTT without queues, half of it in each direction"


def parse_time(text: str) -> int:
    """Return a time such as ``16 ms`` in microseconds. Raises ValueError for other text."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is not a time; write a number and us, ms or s (e.g. "16 ms")')
    return round(float(found[1]) * _MICROSECONDS[found[2]])


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        raise ValueError(f"{text!r} is not a percentage") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r}: 0 % to 100 % is allowed")
    return value


def parse_loss(text: str) -> GilbertElliott | None:
    """Return uniform loss for ``1%``, Gilbert-Elliott loss for ``p,r,1-h,1-k`` (percentages), None for ``0``."""
    numbers = [_percent(part) for part in text.split(",")]
    if len(numbers) == 1:
        return UniformLoss(numbers[0]) if numbers[0] else None
    if len(numbers) != 4:
        raise ValueError(f'{text!r}: one percentage ("1%") or four, p,r,1-h,1-k of the Gilbert-Elliott model')
    if not any(numbers[:2]):
        raise ValueError(f"{text!r}: p and r are both 0, so that the model would never change its state")
    return GilbertElliott(*numbers)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``. Rates are in bits per second, times in microseconds.

    Rate and RTT of a link are None if they were not set, because only emulated links then have a known rate and RTT.
    """

    ethernet_rate: int | None = parameter(f"{_RATE}; emulated 100 Mbit/s", None, parse_rate, name="ethernet.rate")
    ethernet_rtt: int | None = parameter(f"{_RTT}; emulated 2 ms", None, parse_time, name="ethernet.rtt")
    wifi_rate: int | None = parameter(f"{_RATE}; emulated 20 Mbit/s", None, parse_rate, name="wifi.rate")
    wifi_rtt: int | None = parameter(f"{_RTT}; emulated 16 ms", None, parse_time, name="wifi.rtt")
    wifi_jitter: int = parameter(
        "maximum deviation of the delay in each direction, uniform, without reordering", "2 ms", parse_time,
        name="wifi.jitter",
    )  # fmt: skip
    wifi_loss: GilbertElliott | None = parameter(  # noqa: RUF009
        'loss towards the client: "1%", or p,r,1-h,1-k for Gilbert-Elliott', "0%", parse_loss, name="wifi.loss"
    )
    cap: int = parameter("rate to which the throttler limits Ethernet in fig6 and fig7", "5 Mbit/s", parse_rate)
    repetitions: int = parameter("runs of each download; 0: as many as the figure needs", "0", whole(0, 1000))
    short: bool = parameter("smaller files, fewer cells and runs", "no", yes_or_no, quick="yes")
    inventory: Path | None = parameter("file of real hosts, by ssh, instead of namespaces", None, Path)  # noqa: RUF009

    def __post_init__(self) -> None:
        for path in (ETHERNET, WIFI):
            try:
                self.path(path)
            except PathError as error:
                raise OptionError(f"--set: {path}: {error}") from None
        usual = self if self.inventory is None else settings(Settings, {}, quick=False)
        for name in ("wifi_jitter", "wifi_loss"):
            if getattr(self, name) != getattr(usual, name):
                links = "only emulated links have this option; real hosts have their own links"
                raise OptionError(f"--set {name.replace('_', '.')}: {links}")

    def is_known(self, path: str) -> bool:
        """Return whether rate and RTT of *path* are known: it is emulated, or the options state them."""
        return self.inventory is None or None not in (getattr(self, f"{path}_rate"), getattr(self, f"{path}_rtt"))

    def rate(self, path: str) -> int:
        """Return the rate of *path* in bits per second, or the likely rate if it is not known."""
        rate: int = getattr(self, f"{path}_rate") or USUAL[path][0]
        return rate

    def path(self, name: str) -> EmulatedPath:
        """Return the path *name* in the form that the emulation needs. Raises PathError."""
        rtt: int | None = getattr(self, f"{name}_rtt")
        delay = (USUAL[name][1] if rtt is None else rtt) // 2
        jitter, loss = (self.wifi_jitter, self.wifi_loss) if name == WIFI else (0, None)
        up = Direction(self.rate(name), delay, jitter)
        return EmulatedPath(name, down=replace(up, loss=loss), up=up)

    @property
    def buffer_needed(self) -> float | None:
        """2 × sum of bandwidth × greatest RTT in bytes (RFC 6182, 5.3; section 3.3 of the paper); None if unknown."""
        if not (self.is_known(ETHERNET) and self.is_known(WIFI)):
            return None
        links = [self.path(name) for name in (ETHERNET, WIFI)]
        return 2 * sum(link.down.rate or 0 for link in links) / 8 * max(link.rtt for link in links) / 1e6


USUAL = {ETHERNET: (100_000_000, 2_000), WIFI: (20_000_000, 16_000)}
"""Rate in bits per second and RTT in microseconds of each emulated link."""


def check_host(chosen: Settings) -> None:
    """Raise TestbedError if this host lacks something that the emulation needs."""
    if chosen.inventory is None:
        need(*NEEDED)


@contextmanager
def build_lab(chosen: Settings, seed: int) -> Iterator[tuple[Lab, Callable[[], None]]]:
    """Build the paper's testbed, or connect to the real hosts. Yield it with a function that checks the emulation."""
    if chosen.inventory is not None:
        with remote_lab(read_inventory(chosen.inventory)) as hosts:
            yield hosts, lambda: None
        return
    with Testbed(paths([chosen.path(name) for name in (ETHERNET, WIFI)]), seed=seed) as testbed:
        yield lab_of(testbed), testbed.check_emulation
