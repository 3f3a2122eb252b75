# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings that the experiment ``onset`` varies: congestion control, RTTs, rates, capped path, direction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from .devices import DEVICE
from .onset_judging import DOWN, UP, Windows
from .options import choice, listed, refused, rtts

OTHER_RATE = {"ethernet": 30, "wifi": 50}
"""Rate of the uncapped path in Mbit/s, by the capped path."""
NETWORKS = {"ethernet": "10.77.1.", "wifi": "10.77.2."}
CONTROLS = ("bbr", "cubic")
RTTS = ("2/2", "20/20", "60/60", "20/80")
"""RTTs of Ethernet and Wi-Fi in milliseconds."""
CAPS = ("100-5", "100-1", "30-2")
"""The capped path's rate before the cap, and the cap, in Mbit/s."""
UPLOAD_CAPS = (*CAPS, "wifi:30-2")
VARIANTS = ("at-once", "soft", "no cap")
OPTIONS = {
    "cc": f"congestion controls of the sender, default {','.join(CONTROLS)}",
    "rtt": f"RTTs in ms, Ethernet/Wi-Fi, default {','.join(RTTS)}",
    "cap": f"Ethernet's rate and its cap in Mbit/s, wifi: before them for Wi-Fi's, default {','.join(CAPS)}, with "
    "direction=up wifi:30-2 besides",
    "runs": "of each variant, default 10",
    "variant": f"which of {', '.join(VARIANTS)}, default all",
    "direction": "of the transfer and the cap, down or up, default down",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings."""

    control: str
    ethernet_rtt: float
    """RTT of Ethernet in milliseconds, as :attr:`wifi_rtt` of Wi-Fi."""
    wifi_rtt: float
    rate: int
    """Rate of the capped path before the cap, in Mbit/s."""
    cap: int
    direction: str = "down"
    path: str = "ethernet"
    """The capped path."""

    def __str__(self) -> str:
        what = ", upload" if self.direction == "up" else ""
        where = "" if self.path == "ethernet" else f", {self.path}"
        rtts = f"{self.ethernet_rtt:g}/{self.wifi_rtt:g} ms"
        return f"{self.control}, {rtts}, {self.rate}→{self.cap} Mbit/s{where}{what}"

    @property
    def other(self) -> str:
        """The uncapped path."""
        return next(path for path in DEVICE if path != self.path)

    @property
    def rates(self) -> tuple[int, int]:
        """Rates of Ethernet and Wi-Fi in Mbit/s."""
        other = OTHER_RATE[self.path]
        return (self.rate, other) if self.path == "ethernet" else (other, self.rate)

    @property
    def rtt(self) -> float:
        """RTT of the capped path in seconds."""
        return (self.ethernet_rtt if self.path == "ethernet" else self.wifi_rtt) / 1e3

    @property
    def windows(self) -> Windows:
        return UP if self.direction == "up" else DOWN


def cells(options: Mapping[str, str], quick: bool) -> list[Cell]:
    """Return the cells that *options* choose. Raises OptionError for an invalid one."""
    controls = listed(options, "cc", "bbr,cubic")
    delays = listed(options, "rtt", "20/20" if quick else ",".join(RTTS))
    found = []
    for direction in listed(options, "direction", "down"):
        caps = listed(options, "cap", "100-5" if quick else ",".join(UPLOAD_CAPS if direction == "up" else CAPS))
        try:
            found += [_cell(*each, direction) for each in product(controls, delays, caps)]
        except ValueError:
            raise refused(OPTIONS) from None
    return found


def variants_of(options: Mapping[str, str]) -> list[str]:
    """Return the variants that *options* choose. Raises OptionError for an unknown one."""
    return choice(options, "variant", VARIANTS)


def _cell(control: str, rtt: str, cap: str, direction: str) -> Cell:
    ethernet_rtt, wifi_rtt = rtts(rtt)
    path, _, rates = cap.rpartition(":")
    before, after = (int(word) for word in rates.split("-"))
    if direction not in ("down", "up") or path not in ("", *DEVICE) or not control:
        raise ValueError
    # A policy cannot have a cap of 0, and a cap above the path's rate has no effect.
    if not 0 < after < before:
        raise ValueError
    return Cell(control, ethernet_rtt, wifi_rtt, before, after, direction, path or "ethernet")
