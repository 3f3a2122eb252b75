# SPDX-License-Identifier: GPL-2.0-or-later
"""Parameters of the paper's experiments on the command line: ``--set wifi.rate=30mbit --set wifi.rtt=40ms``.

The usual values are the paper's testbed, as far as the paper describes it: a Raspberry Pi Model B with Ethernet (about
94 Mbit/s of payload, short RTT) and Wi-Fi. Wi-Fi's rate and RTT are chosen such that the required receive buffer is the
paper's "maximum of 0.48 MB": 2 × (100 + 20 Mbit/s) × 16 ms (section 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_common.units import parse_rate
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, PathError, UniformLoss

from ..experiments.parameters import OptionError, meanings, parameter, parameters, settings, whole, word
from .results import ETHERNET, WIFI

_TIME = re.compile(r"(\d{1,7}(?:\.\d{1,3})?) *(us|µs|ms|s)")
_MICROSECONDS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000}
_RATE, _RTT = "of the link, in each direction", "without queues, half of it in each direction"
_JITTER = "delay drawn evenly from ± this much, in each direction, order kept"
_LOSS = 'towards the client: "1%", or p,r,1-h,1-k for Gilbert-Elliott'
_MTU = "in both directions"


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


def parse_loss(text: str) -> Loss | None:
    """Return uniform loss for ``1%``, Gilbert-Elliott loss for ``p,r,1-h,1-k`` (percentages), None for ``0``."""
    numbers = [_percent(part) for part in text.split(",")]
    if len(numbers) == 1:
        return UniformLoss(numbers[0]) if numbers[0] else None
    if len(numbers) != 4:
        raise ValueError(f'{text!r}: one percentage ("1%") or four, p,r,1-h,1-k of the Gilbert-Elliott model')
    return GilbertElliott(*numbers)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``. Rates are in bits per second, times in microseconds."""

    ethernet_rate: int = parameter(_RATE, "100 Mbit/s", parse_rate, name="ethernet.rate")
    ethernet_rtt: int = parameter(_RTT, "2 ms", parse_time, name="ethernet.rtt")
    ethernet_jitter: int = parameter(_JITTER, "0 ms", parse_time, name="ethernet.jitter")
    ethernet_loss: Loss | None = parameter(_LOSS, "0%", parse_loss, name="ethernet.loss")  # noqa: RUF009
    ethernet_mtu: int = parameter(_MTU, "1500", whole(576, 9000), name="ethernet.mtu")
    wifi_rate: int = parameter(_RATE, "20 Mbit/s", parse_rate, name="wifi.rate")
    wifi_rtt: int = parameter(_RTT, "16 ms", parse_time, name="wifi.rtt")
    wifi_jitter: int = parameter(_JITTER, "2 ms", parse_time, name="wifi.jitter")
    wifi_loss: Loss | None = parameter(_LOSS, "0%", parse_loss, name="wifi.loss")  # noqa: RUF009
    wifi_mtu: int = parameter(_MTU, "1500", whole(576, 9000), name="wifi.mtu")
    queue: int = parameter("how long a packet may wait at a link's shaper (drop-tail)", "50 ms", parse_time)
    cap: int = parameter("what the throttler leaves Ethernet in fig6 and fig7", "5 Mbit/s", parse_rate)
    congestion_control: str = parameter(
        "of the proxy towards clients", "bbr", word("bbr", "cubic", "reno"), name="congestion-control"
    )
    repetitions: int = parameter("of each case; 0: as the figure has it", "0", whole(0, 1000))

    def __post_init__(self) -> None:
        for path in (ETHERNET, WIFI):
            try:
                self.path(path)
            except PathError as error:
                raise OptionError(f"--set: {path}: {error}") from None

    def rate(self, path: str) -> int:
        """Return the rate of *path* in bits per second."""
        rate: int = getattr(self, f"{path}_rate")
        return rate

    def path(self, name: str) -> EmulatedPath:
        """Return the path *name* in the form that the emulation needs."""
        rtt, jitter, loss, mtu = (getattr(self, f"{name}_{what}") for what in ("rtt", "jitter", "loss", "mtu"))
        rate, queue = self.rate(name), max(1, self.queue // 1000)
        return EmulatedPath(
            name,
            down=Direction(rate, rtt // 2, jitter, loss, queue_ms=queue, mtu=mtu),
            up=Direction(rate, rtt // 2, jitter, queue_ms=queue, mtu=mtu),
        )


OPTIONS = meanings(Settings)
STATED = frozenset(f"{path}.{what}" for path in (ETHERNET, WIFI) for what in ("rate", "rtt"))
"""Options that describe the links of real hosts. Without these options, rates and RTTs are unknown."""
EMULATED = {"queue", *(f"{path}.{what}" for path in (ETHERNET, WIFI) for what in ("jitter", "loss", "mtu"))}
"""Options that can be set only for emulated links."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings, and which of them are known to be true of the links."""

    settings: Settings
    texts: dict[str, str]
    """Texts of the known parameters, as in the result file."""

    @classmethod
    def of(cls, options: Mapping[str, str] | None = None, *, emulated: bool = True) -> Chosen:
        """Return the settings that *options* choose. Raises OptionError, for real hosts also if links are set."""
        given = options or {}
        for name in given.keys() & EMULATED if not emulated else ():
            links = "real hosts have the links they have; this can be set of emulated ones"
            raise OptionError(f"--set {name}={given[name]}: {links}")
        texts = {name: given.get(name, each.usual or "") for name, each in parameters(Settings).items()}
        unknown = set() if emulated else (STATED | EMULATED) - given.keys()
        known = {name: text for name, text in texts.items() if name not in unknown}
        return cls(settings(Settings, given, quick=False), known)

    def receive_buffer_needed(self) -> float | None:
        """Return 2 × sum of bandwidth × greatest RTT in bytes (RFC 6182, 5.3; section 3.3 of the paper).

        Return None for real links whose rates and RTTs were not stated.
        """
        if not self.texts.keys() >= STATED:
            return None
        paths = [self.settings.path(name) for name in (ETHERNET, WIFI)]
        bandwidth = sum(path.down.rate or 0 for path in paths) / 8
        return 2 * bandwidth * max(path.rtt for path in paths) / 1e6
