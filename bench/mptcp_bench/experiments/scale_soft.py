# SPDX-License-Identifier: GPL-2.0-or-later
"""The last part of the experiment ``scale``: a download is capped softly, without tunnels and beside a crowd.

It works like the experiment ``onset``, with 100 → 5 Mbit/s beside 30 Mbit/s and an RTT of 20 ms. The crowd's own cap is
always in force.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from mptcp_lab.testbed import EmulationError, Testbed, TestbedError, paths
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import mptcp_command, start_origin, start_throttler, wait_until

from .attempts import Attempts
from .devices import DEVICES
from .onset import judge
from .scale_crowd import Crowd, with_crowd
from .scale_policy import Caps, settings_file
from .setup import FILE_SIZE, Setup
from .subflow_ends import client_ends
from .two_paths import two_paths

RATES, RTTS = (100, 30), (20, 20)
"""Rates in Mbit/s and RTTs in ms of Ethernet and Wi-Fi."""
CAP = 5_000_000
"""Cap of the download in bits/s."""
WARM, AFTER = 3.5, 5.6
"""Seconds that a download runs before the cap, and after it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Share of its earlier rate that the other path kept in each run, without tunnels and with held ones."""

    none: tuple[float, ...]
    held: tuple[float, ...]


def kept(setup: Setup) -> float:
    """Run a download with a cap. Return the share that the other path kept. Raises TestbedError or ValueError."""
    setup.load(Caps(crowd=True).text())
    wait_until(lambda: not subflows(setup.testbed), "the last download's subflows are gone", timeout=30)
    with setup.client.running(setup.download), Recorder(setup.client, DEVICES) as recorder:
        time.sleep(max(0.0, WARM - recorder.now))
        if subflows(setup.testbed) != 2:
            raise TestbedError("the download has not two subflows")
        onset = recorder.now
        setup.load(Caps(crowd=True, client=CAP, landing="soft").text())
        time.sleep(max(0.0, onset + AFTER - recorder.now))
        samples = recorder.samples
    setup.testbed.check_emulation()
    outcome = judge(samples, *DEVICES, onset, CAP, RATES[1] * 1_000_000, 0.0)
    if outcome.in_force > AFTER / 2:
        raise TestbedError("the cap did not come into force")
    return outcome.kept


def subflows(testbed: Testbed) -> int:
    """Return the number of the download's subflows, since its client has no other connection."""
    return len(client_ends(testbed["proxy"], [testbed["client"].address(device) for device in DEVICES]))


def measure(beside: int, runs: int, seed: int, console: Console, attempts: Attempts) -> Kept:
    """Run *runs* downloads without tunnels, then as many with *beside* tunnels."""
    with Testbed(with_crowd(paths(two_paths(RATES, RTTS))), seed=seed) as testbed:
        policy = testbed["proxy"].write("policy.yaml", Caps(crowd=True).text())
        throttler = start_throttler(testbed["proxy"], settings_file(testbed, policy))
        if not throttler.status()["paced"]:
            raise TestbedError(f"the throttler paces no sockets here: no cap can fall softly{throttler.process.tail()}")
        crowd = Crowd.built(testbed, beside)
        origin = start_origin(testbed["origin"], {"big": FILE_SIZE})
        url = crowd.proxy.url()
        curl = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-x", url, origin.url("big")]
        setup = Setup(testbed, throttler, policy, url, mptcp_command(curl))
        none = _runs(setup, runs, attempts, "0 held")
        console.print(f"opening {beside:,} tunnels", style="dim", highlight=False)
        crowd.hold(beside)
        if crowd.joined(beside).two_subflows < beside:
            raise TestbedError(f"not all of {beside} tunnels have two subflows")
        time.sleep(3)
        # Do not charge a run for packets that were late while the tunnels opened.
        _forget_lateness(testbed)
        found = Kept(none, _runs(setup, runs, attempts, f"{beside:,} held"))
        throttler.process.kill()
        _forget_lateness(testbed)
        return found


def _runs(setup: Setup, runs: int, attempts: Attempts, name: str) -> tuple[float, ...]:
    """Return the share that the other path kept in each run, without runs that failed each time."""
    check = setup.testbed.check_emulation
    each = (attempts.of(partial(kept, setup), f"soft cap, {name}", check=check) for _ in range(runs))
    return tuple(one for one in each if one is not None)


def _forget_lateness(testbed: Testbed) -> None:
    try:
        testbed.check_emulation()
    except EmulationError:
        return
