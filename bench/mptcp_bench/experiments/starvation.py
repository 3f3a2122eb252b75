# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a path or client starves beside a low cap: what each path carries, also beside clients that vanished.

A download runs under a policy that gives some of its paths low caps. Shown is the rate of each path in the steady
state, as a share of its link or cap. For comparison, the same download runs without a policy over links that really are
as slow as the caps. In the layouts ``vanished-N``, N other downloads share the cap, and then their client is cut off on
both paths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Proxy,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

from .attempts import Attempts
from .findings import Findings
from .load_crowd import Crowd
from .options import choice, count
from .packet_counters import PacketCounters
from .setup import FILE_SIZE
from .starvation_judging import UNDER_POLICY, Measured, aims, judge, mean_outcomes, recovered, together
from .starvation_layouts import LAYOUTS, OTHERS, Layout
from .subflow_ends import client_ends
from .tables import new_table
from .two_paths import dropping

VARIANTS = (UNDER_POLICY, "link")
"""The download under the policy; and without a policy, over links as slow as the caps."""
OPTIONS = {
    "layout": f"{', '.join(LAYOUTS)}; default all but vanished-1000",
    "variant": f"{', '.join(VARIANTS)}; default both",
    "runs": "of each, default 3",
}
RUNS, QUICK_RUNS = 3, 1
SILENT = f'iifname "to-{OTHERS}*" drop; oifname "to-{OTHERS}*" drop'
"""Rules for nft(8) that drop all packets from and to the other clients."""
CROWDED = 50
"""If at least this many clients vanish, they are one program (a crowd)."""
WARM, MEASURED = 4.0, 8.0
"""Seconds that a download runs before the measurement, and seconds of the measurement."""
GIVEN_UP = 2.0
"""Seconds from the vanishing of the other clients to the measurement."""
CROWD_GIVEN_UP = 30.0
"""The same seconds for a thousand clients. Each had a packet in 2.4 seconds, and TCP waits that long for a retry."""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the layouts and variants that *options* choose."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    usual = [name for name in LAYOUTS if name != "vanished-1000"]
    layouts = [LAYOUTS[name]() for name in choice(options, "layout", LAYOUTS, usual)]
    variants = choice(options, "variant", VARIANTS)
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    measured: list[Measured] = []
    planned = [
        (layout, variant)
        for layout, variant in product(layouts, variants)
        if variant == UNDER_POLICY or not (layout.one_link or layout.vanishing)
    ]
    attempts = Attempts(console)
    for layout, variant in planned:
        topology = layout.topology(variant == "link")
        with attempts.keeping(f"{layout.name}, {variant}", measured), Testbed(topology, seed=seed) as testbed:
            site = _Site.built(testbed, layout, variant)
            for number in range(runs):
                name = f"{layout.name}, {variant}, {number + 1} of {runs}"
                console.print(name, style="dim", highlight=False)
                one = attempts.of(site.run, name, check=testbed.check_emulation)
                measured += [one] if one else []
    asked = aims(measured, [(layout.name, variant) for layout, variant in planned], runs)
    data = {"runs": [_as_data(each) for each in measured]}
    return attempts.judged(Findings((table_of(measured),), data, aims=tuple(asked)))


@dataclass(frozen=True, slots=True)
class _Site:
    testbed: Testbed
    layout: Layout
    variant: str
    proxy: Proxy
    download: Sequence[str]
    crowd: Crowd | None

    @classmethod
    def built(cls, testbed: Testbed, layout: Layout, variant: str) -> _Site:
        host = testbed["proxy"]
        if variant == UNDER_POLICY:
            start_throttler(host, write_throttler_config(host, host.write("policy.yaml", layout.policy())))
        crowd = Crowd.built(testbed, layout.vanishing, OTHERS) if layout.vanishing >= CROWDED else None
        proxy = crowd.proxy if crowd else start_proxy(host, control="bbr")
        origin = start_origin(testbed["origin"], {"big": FILE_SIZE})
        # Use the proxy's IPv4 address in IPv6 form: Linux joins by IPv6 only if the connection was opened on an IPv6
        # socket.
        through = f"http://[::ffff:{host.service_address()}]:{PROXY_PORT}" if layout.mapped else proxy.url()
        download = ["curl", "-s", "-m", "90", "-o", "/dev/null", "-x", through, origin.url("big")]
        return cls(testbed, layout, variant, proxy, mptcp_command(download), crowd)

    def run(self) -> Measured:
        """Run one download. Raises TestbedError if a subflow is missing, EmulationError if the paths were wrong."""
        client = self.testbed["client"]
        wait_until(lambda: not self._subflows(), "the last download's subflows are gone", timeout=30)
        addresses = {load.name: load.address for load in self.layout.loads}
        with self._others(), PacketCounters(client, addresses) as counters, client.running(self.download) as process:
            counters.wait(WARM)
            subflows = self._subflows()
            if any(address not in subflows for address in addresses.values()):
                raise TestbedError(f"{self.layout.name}: there are subflows from {', '.join(subflows)} alone")
            begin, vanished_at = counters.now, None
            if self.layout.vanishing:
                vanished_at = begin
                with dropping(self.testbed["core"], SILENT):
                    begin += CROWD_GIVEN_UP if self.crowd else GIVEN_UP
                    counters.wait(begin + MEASURED + 0.5)
                    process.kill()
            else:
                counters.wait(begin + MEASURED + 0.5)
            samples = counters.samples
        self.testbed.check_emulation()
        outcomes = judge(samples, self.layout.loads, begin, begin + MEASURED)
        again = None if vanished_at is None else recovered(samples, self.layout.loads[0], vanished_at)
        return Measured(self.layout.name, self.variant, tuple(outcomes), again)

    @contextmanager
    def _others(self) -> Iterator[None]:
        if self.crowd is not None:
            self.crowd.hold(self.layout.vanishing)
            self.crowd.joined(self.layout.vanishing)
            yield
            return
        with ExitStack() as stack:
            for _ in range(self.layout.vanishing):
                stack.enter_context(self.testbed[OTHERS].running(self.download, name="other"))
            time.sleep(WARM if self.layout.vanishing else 0)
            yield

    def _subflows(self) -> set[str]:
        return set(client_ends(self.testbed["proxy"], [load.address for load in self.layout.loads]))


def table_of(measured: Sequence[Measured]) -> Table:
    """Return the table of the worst paths, by the means over the runs."""
    columns = ("layout", "variant", "runs", "uncapped: worst path", "capped: worst path", "together", "again s")
    table = new_table("Who starves beside a low cap", columns, left=("layout", "variant"))
    for layout, variant in dict.fromkeys((m.layout, m.variant) for m in measured):
        runs = [m for m in measured if (m.layout, m.variant) == (layout, variant)]
        means = mean_outcomes(runs)
        worst = {
            capped: min((each for each in means if (each.path.cap is not None) is capped), key=lambda o: o.share)
            for capped in {each.path.cap is not None for each in means}
        }
        again = (
            ""
            if LAYOUTS[layout]().vanishing == 0
            else " ".join("never" if m.whole_again is None else f"{m.whole_again:.1f}" for m in runs)
        )
        table.add_row(
            layout, variant, str(len(runs)),
            *(f"{worst[c].path.name} {worst[c].share:.3f}" if c in worst else "" for c in (False, True)),
            f"{together(means):.3f}",
            again,
        )  # fmt: skip
    return table


def _as_data(measured: Measured) -> dict[str, object]:
    shares = {each.path.name: each.share for each in measured.outcomes}
    again = measured.whole_again
    return {"layout": measured.layout, "variant": measured.variant, "shares": shares, "whole_again": again}
