# SPDX-License-Identifier: GPL-2.0-or-later
"""A download is capped softly, without tunnels and beside a crowd: what the other path keeps.

It works like the experiment ``onset``, with 100 → 5 Mbit/s beside 30 Mbit/s and an RTT of 20 ms. The crowd's own cap is
always in force.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mptcp_lab.testbed import EmulationError, Testbed, TestbedError, paths
from mptcp_lab.testbed.recorder import Recorder, mean_rate
from mptcp_lab.testbed.services import mptcp_command, start_origin, start_throttler, wait_until

from .columns import Column, Table
from .devices import DEVICES
from .load_crowd import Caps, Crowd, settings_file, with_crowd
from .setup import FILE_SIZE, Setup
from .two_paths import client_ends, two_paths

RATES, RTTS = (100, 30), (20, 20)
"""Rates in Mbit/s and RTTs in ms of Ethernet and Wi-Fi."""
CAP = 5_000_000
"""Cap of the download in bits/s."""
WARM, BEFORE, LANDING, AFTER = 3.5, 2.0, 3.0, 5.6
"""Seconds that a download runs before the cap, and the last of them in which its rate is measured; seconds after the
onset in which the other path may lose, and until the end."""
KEPT = 0.95
"""Least share of its rate that the other path keeps beside a crowd."""
IN_FORCE = 1.05
"""Most rate of the capped path after the landing, as a multiple of the cap."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One download."""

    kept: float
    """Share of its earlier rate that the other path kept while the cap landed."""
    capped: float
    """Rate of the capped path afterwards, as a multiple of the cap."""


@dataclass(frozen=True, slots=True)
class SoftCell:
    """A download beside *tunnels* tunnels."""

    tunnels: int

    def __str__(self) -> str:
        return f"soft cap, {self.tunnels:,} held"

    @contextmanager
    def bed(self, seed: int) -> Iterator[Setup]:
        with Testbed(with_crowd(paths(two_paths(RATES, RTTS))), seed=seed) as testbed:
            policy = testbed["proxy"].write("policy.yaml", Caps(crowd=True).text())
            throttler = start_throttler(testbed["proxy"], settings_file(testbed, policy))
            if not throttler.status()["paced"]:
                raise TestbedError(f"the throttler paces no sockets: no cap can fall softly{throttler.process.tail()}")
            crowd = Crowd.built(testbed, max(self.tunnels, 1))
            origin, url = start_origin(testbed["origin"], {"big": FILE_SIZE}), crowd.proxy.url()
            curl = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-x", url, origin.url("big")]
            crowd.hold(self.tunnels)
            if crowd.joined(self.tunnels) < self.tunnels:
                raise TestbedError(f"not all of {self.tunnels} tunnels have two subflows")
            time.sleep(3)
            # Do not charge a run for packets that were late while the tunnels opened.
            with suppress(EmulationError):
                testbed.check_emulation()
            yield Setup(testbed, throttler, policy, url, mptcp_command(curl))
            throttler.process.kill()
            with suppress(EmulationError):
                testbed.check_emulation()

    def measure(self, bed: Setup, variant: str) -> Kept:
        """Run a download with a cap. Raises TestbedError or ValueError if it does not use both paths."""
        ethernet, wifi = DEVICES
        addresses = [bed.client.address(device) for device in DEVICES]
        bed.load(Caps(crowd=True).text())
        wait_until(lambda: not client_ends(bed.proxy, addresses), "the last download's subflows are gone", timeout=30)
        with bed.client.running(bed.download), Recorder(bed.client, DEVICES) as recorder:
            time.sleep(max(0.0, WARM - recorder.now))
            if len(client_ends(bed.proxy, addresses)) != 2:
                raise TestbedError("the download has not two subflows")
            onset = recorder.now
            bed.load(Caps(crowd=True, client=CAP, landing="soft").text())
            time.sleep(max(0.0, onset + AFTER - recorder.now))
            samples = recorder.samples
        before = mean_rate(samples, wifi, onset - BEFORE, onset)
        if before <= 0:
            raise ValueError("nothing came over the other path before the cap")
        return Kept(
            kept=mean_rate(samples, wifi, onset, onset + LANDING) / before,
            capped=mean_rate(samples, ethernet, onset + LANDING, onset + AFTER) / CAP,
        )


TABLE: Table[Any, Kept] = Table(
    "A download is capped softly",
    [
        Column("the other path keeps", "kept", least=KEPT,
               judged=lambda row: row.cell.tunnels > 0),
        Column("capped path, × its cap", "capped", "most", aim="the capped path afterwards, × its cap",
               most=IN_FORCE),
    ],
    labels=[("beside", lambda row: str(row.cell))],
    of=lambda row: isinstance(row.cell, SoftCell),
)  # fmt: skip
