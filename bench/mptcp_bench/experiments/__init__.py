# SPDX-License-Identifier: GPL-2.0-or-later
"""The project's own experiments. ``mptcp-bench run NAME`` runs one of them.

Each is a :class:`.scenario.Scenario`. Its module is imported when it is used.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class Experiment:
    """Name and summary of an experiment, and where its scenario is."""

    name: str
    summary: str
    module: str
    scenario: str = "SCENARIO"
    package: str = __name__

    def load(self) -> Scenario[Any, Any, Any, Any]:
        scenario: Scenario[Any, Any, Any, Any] = getattr(self._import(), self.scenario)
        return scenario

    @property
    def explanation(self) -> str:
        """How the experiment measures: the module's docstring."""
        return inspect.getdoc(self._import()) or ""

    def _import(self) -> ModuleType:
        return import_module(f"{self.package}.{self.module}")


_EXPERIMENTS = (
    Experiment("goodput", "Goodput over both paths, without and with the policy; other clients", "goodput"),
    Experiment("recovery", "kill -9 and restart during a transfer; nothing remains after clean-up", "recovery"),
    Experiment("load", "The throttler with many joins, new connections and open tunnels: delays, cost", "load"),
    Experiment("soak", "Tunnels come and go for an hour: nothing grows or is missed, caps are correct", "soak"),
    Experiment("onset", "A cap begins during a download: at once, or softly", "onset"),
    Experiment("overshoot", "Bytes above a cap: our throttler, a poller of counters, a static class", "overshoot"),
    Experiment("pages", "Many short downloads under a cap: rate of the capped path, and duration", "pages"),
    Experiment("starvation", "Other clients during a low cap, and after clients that vanished", "starvation"),
    Experiment("crowds", "Delay of a client while another client is busy", "crowds"),
    Experiment("guard", "The uncapped path of a capped connection fails: with and without the guard", "guard"),
    Experiment("steering", "Each steering mode: the paths' shares, and the time until it reacts", "steering"),
    Experiment("middleboxes", "Effect of middleboxes on Multipath TCP, and what status shows", "middleboxes"),
    Experiment("relay", "Cost of a byte and a request: ours, Squid, HAProxy and nginx", "relay"),
    Experiment("home", "Devices without any setting: goodput, delay, outages and cost of a gateway", "home"),
    Experiment("tunnel", "Multipath UDP: OpenVPN over two paths, one path, 50/50, Multipath TCP", "tunnel"),
    Experiment("mimbox-goodput", "MiMBox's Figure 4: goodput by MSS, ours and a router", "mimbox", "GOODPUT"),
    Experiment("mimbox-delay", "MiMBox's Table 1: delay of SYN, SYN+ACK and data in our proxy", "mimbox", "DELAY"),
    Experiment("mimbox-http", "MiMBox's Figure 5: requests, each on its own connection", "mimbox", "HTTP"),
    Experiment("mimbox-memory", "MiMBox's Figure 6: goodput by buffer, memory of a connection", "mimbox", "MEMORY"),
    Experiment("vpn-fig3", "VPNs, Figure 3: two congestion controls outside, loss 0.1 %", "vpn_figures", "FIG3"),
    Experiment("vpn-fig4", "VPNs, Figure 4: Multipath TCP and TCP, loss 1 %", "vpn_figures", "FIG4"),
    Experiment("vpn-fig5", "VPNs, Figure 5: Multipath TCP, delays that differ, losses", "vpn_figures", "FIG5"),
    Experiment("vpn-fig6", "VPNs, Figure 6: UDP and TCP, one path", "vpn_figures", "FIG6"),
    Experiment("vpn-fig7", "VPNs, Figure 7: Multipath UDP and Multipath TCP, no loss", "vpn_figures", "FIG7"),
    Experiment("vpn-fig8", "VPNs, Figure 8: the first 0.3 s of a download", "vpn_figures", "FIG8"),
    Experiment("vpn-fig9", "VPNs, Figure 9: as Figure 7, with losses", "vpn_figures", "FIG9"),
    Experiment("vpn-fig10", "VPNs, Figure 10: as Figure 7, delays that differ, losses", "vpn_figures", "FIG10"),
    Experiment("vpn-fig11", "VPNs, Figure 11: fewer bytes by the longer path; our scheduler", "vpn_figures", "FIG11"),
    Experiment("vpn-table1", "VPNs, Table 1: Gilbert-Elliott losses, as pings observe them", "vpn_figures", "TABLE1"),
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _EXPERIMENTS}
