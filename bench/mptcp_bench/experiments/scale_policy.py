"""The policies of the experiment ``scale``, and the throttler's settings there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, write_throttler_config

from .devices import POLICY_PATHS

PROBE_PORT = PROXY_PORT + 1
"""Where the reaction is measured: Squid has the other port."""
CROWD_CAP = "1 Gbit/s"
"""More than twice what 10,000 tunnels trickle on both paths together: a real cap that touches nobody."""
_PATHS = f"""\
{POLICY_PATHS}\
  first: {{clients: [10.77.3.0/24]}}
  second: {{clients: [10.77.4.0/24]}}
"""


@dataclass(frozen=True, slots=True)
class Caps:
    """What a policy caps and counts."""

    crowd: bool = False
    """The crowd's first path, all its subflows together."""
    client: int | None = None
    """The client's Ethernet, bits/s."""
    landing: str = "at-once"
    """Softly, the entry comes half a second later, and the reaction measured would be that."""
    budget: bool = False
    """A volume for the crowd that is never used up."""

    def text(self) -> str:
        rules, options = [], ""
        if self.client is not None:
            if self.landing == "at-once":
                options = "anticipate: false\n"  # else the entry is there before the join whose reaction is measured
            throttle = f"rate: {self.client} bit/s, landing: {self.landing}"
            rules.append(f"{{name: client, paths: [ethernet], throttle: {{{throttle}}}}}")
        if self.crowd:
            rules.append(f"{{name: crowd, paths: [first], throttle: {{rate: {CROWD_CAP}, share: path}}}}")
        if self.budget:
            # Whatever decides first about the first path, the second path's bytes are counted.
            steps = "[{after: 100 TB, throttle: {rate: 1 Mbit/s}}]"
            rules.append(f"{{name: volume, paths: [first, second], budget: {{period: month, steps: {steps}}}}}")
        return _PATHS + options + "rules:" + ("".join(f"\n  - {rule}" for rule in rules) or " []") + "\n"


UNCAPPED = Caps()
CAPPED = Caps(crowd=True)
FULL = Caps(crowd=True, client=5_000_000, budget=True)
"""Caps, the guard, which is on by default, and a budget."""


def settings_file(testbed: Testbed, policy: Path) -> Path:
    """Write the throttler's settings for *policy*: with a ledger of its own, and the port of the probe."""
    settings = {
        "listen_ports": [PROXY_PORT, PROBE_PORT],
        "netfilter": "iptables",
        "ledger": str(testbed.directory / "ledger.sqlite"),
    }
    return write_throttler_config(testbed["proxy"], policy, settings=settings)
