# SPDX-License-Identifier: GPL-2.0-or-later
"""The policies of the experiment ``scale``, and the throttler's settings in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, write_throttler_config

from .devices import POLICY_PATHS

PROBE_PORT = PROXY_PORT + 1
"""Port for measuring the reaction, because Squid listens on the other port."""
CROWD_CAP = "1 Gbit/s"
"""A real cap that never limits: more than twice the rate of 10,000 trickling tunnels on both paths together."""
_PATHS = f"""\
{POLICY_PATHS}\
  first: {{clients: [10.77.3.0/24]}}
  second: {{clients: [10.77.4.0/24]}}
"""


@dataclass(frozen=True, slots=True)
class Caps:
    """The rules of a policy: which caps and budgets it has."""

    crowd: bool = False
    """Whether the crowd's first path is capped, all its subflows together."""
    client: int | None = None
    """Cap of the client's Ethernet in bits/s; None for no cap."""
    landing: str = "at-once"
    """How the client's cap begins. A soft cap's entry comes half a second later, which the reaction would include."""
    budget: bool = False
    """Whether the crowd has a volume budget, which is never used up."""

    def text(self) -> str:
        rules, options = [], ""
        if self.client is not None:
            if self.landing == "at-once":
                options = "anticipate: false\n"  #  # otherwise the entry exists before the measured join
            throttle = f"rate: {self.client} bit/s, landing: {self.landing}"
            rules.append(f"{{name: client, paths: [ethernet], throttle: {{{throttle}}}}}")
        if self.crowd:
            rules.append(f"{{name: crowd, paths: [first], throttle: {{rate: {CROWD_CAP}, share: path}}}}")
        if self.budget:
            # This rule counts the second path's bytes, whichever rule decides about the first path.
            steps = "[{after: 100 TB, throttle: {rate: 1 Mbit/s}}]"
            rules.append(f"{{name: volume, paths: [first, second], budget: {{period: month, steps: {steps}}}}}")
        return _PATHS + options + "rules:" + ("".join(f"\n  - {rule}" for rule in rules) or " []") + "\n"


UNCAPPED = Caps()
CAPPED = Caps(crowd=True)
FULL = Caps(crowd=True, client=5_000_000, budget=True)
"""A policy with caps, the guard (on by default) and a budget."""


def settings_file(testbed: Testbed, policy: Path) -> Path:
    """Write the throttler's settings for *policy*, with a new ledger and the probe's port."""
    settings = {
        "listen_ports": [PROXY_PORT, PROBE_PORT],
        "netfilter": "iptables",
        "ledger": str(testbed.directory / "ledger.sqlite"),
    }
    return write_throttler_config(testbed["proxy"], policy, settings=settings)
