# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments behind the project's claims. Each is a module that ``mptcp-bench run NAME`` runs.

A module declares a ``SCENARIO`` (:mod:`.scenario`). ``EXPERIMENTS`` lists all modules; a module is imported when it is
used. A module without a scenario has a function ``run(console, seed, quick) -> Findings``; if it has options, also
``OPTIONS``, which maps each option's name to its meaning, and its ``run`` takes ``options``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from rich.console import Console

from .findings import Findings
from .parameters import OptionError, given


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment's name, a line about what it shows, and its module."""

    name: str
    summary: str
    module: str
    package: str = __name__

    @property
    def file(self) -> str:
        """The module's name. :attr:`module` may add a colon and the name of one experiment in that module."""
        return self.module.partition(":")[0]

    def load(self) -> Any:
        found = import_module(f"{self.package}.{self.file}")
        part = self.module.partition(":")[2]
        return getattr(found, part) if part else getattr(found, "SCENARIO", found)

    @property
    def explanation(self) -> str:
        """How the experiment measures: the module's docstring."""
        return inspect.getdoc(import_module(f"{self.package}.{self.file}")) or ""

    def options(self, settings: Iterable[str]) -> dict[str, str]:
        """Return *settings*, each ``NAME=VALUE``, by name. Raises OptionError with one line for an unknown option."""
        with self._named():
            return given(settings, getattr(self.load(), "OPTIONS", {}))

    def run(
        self,
        console: Console,
        seed: int,
        quick: bool,
        options: Mapping[str, str],
        keep: Callable[[Findings], None] | None = None,
    ) -> Findings:
        """Run the experiment. Raises OptionError for an invalid option, TestbedError if this host cannot run it.

        A scenario calls *keep*, if given, after each run with the findings so far.
        """
        module = self.load() if keep is None else replace(self.load(), keep=keep)
        more = (options,) if hasattr(module, "OPTIONS") else ()
        with self._named():
            result: Findings = module.run(console, seed, quick, *more)
        return result

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OptionError as error:
            raise OptionError(f"run {self.name}: {error}") from None


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment("goodput", "Goodput over both paths, without and with the policy; others untouched", "goodput"),
        Experiment("recovery", "kill -9 and restart in mid-transfer; nothing is left after clean-up", "recovery"),
        Experiment("load", "What joins, connections, 10,000 tunnels and the console cost and delay", "load"),
        Experiment("soak", "Tunnels come and go for an hour: nothing grows, nothing is missed, caps are right", "soak"),
        Experiment("onset", "A cap falls on a running download: at once and softly, side by side", "onset"),
        Experiment("overshoot", "What passes beyond a cap: ours, a poller of counters, a static class", "overshoot"),
        Experiment("pages", "Many short downloads under a cap: what the capped path carries, and their time", "pages"),
        Experiment("starvation", "Who starves beside a low cap, and beside clients that vanished", "starvation"),
        Experiment(
            "crowds", "A client beside thousands of idle connections, or a busy client: does it wait?", "crowds"
        ),
        Experiment("guard", "The uncapped path fails: with the guard and without it", "guard"),
        Experiment("steering", "Each steering mode: who carries what, and how fast it reacts", "steering"),
        Experiment("middleboxes", "What middleboxes make of Multipath TCP, and what status says of it", "middleboxes"),
        Experiment("relay", "What carrying a byte and a request costs: ours beside Squid, HAProxy and nginx", "relay"),
        Experiment("home", "Devices without any setting: goodput, delay, outages and cost of a gateway", "home"),
        Experiment(
            "tunnel", "Multipath UDP: OpenVPN over two paths, beside one path, 50/50 and Multipath TCP", "tunnel"
        ),
        Experiment(
            "mimbox-goodput", "MiMBox's Figure 4: goodput against the MSS, ours beside a router", "mimbox:GOODPUT"
        ),
        Experiment("mimbox-delay", "MiMBox's Table 1: what our proxy adds to SYN, SYN+ACK and data", "mimbox:DELAY"),
        Experiment("mimbox-http", "MiMBox's Figure 5: requests on connections of their own", "mimbox:HTTP"),
        Experiment(
            "mimbox-memory", "MiMBox's Figure 6: goodput against buffers, and memory of a connection", "mimbox:MEMORY"
        ),
        Experiment("vpn-fig3", "VPNs, Figure 3: two congestion controls outside, loss 0.1 %", "vpn_figures:FIG3"),
        Experiment("vpn-fig4", "VPNs, Figure 4: Multipath TCP beside TCP, loss 1 %", "vpn_figures:FIG4"),
        Experiment("vpn-fig5", "VPNs, Figure 5: Multipath TCP, delays that differ, losses", "vpn_figures:FIG5"),
        Experiment("vpn-fig6", "VPNs, Figure 6: UDP beside TCP, one path", "vpn_figures:FIG6"),
        Experiment("vpn-fig7", "VPNs, Figure 7: Multipath UDP beside Multipath TCP, no loss", "vpn_figures:FIG7"),
        Experiment("vpn-fig8", "VPNs, Figure 8: the first 0.3 s of a download, at the web server", "vpn_trace"),
        Experiment("vpn-fig9", "VPNs, Figure 9: the same with losses", "vpn_figures:FIG9"),
        Experiment("vpn-fig10", "VPNs, Figure 10: the same, delays that differ, losses", "vpn_figures:FIG10"),
        Experiment("vpn-fig11", "VPNs, Figure 11: less by the longer path, and our scheduler", "vpn_figures:FIG11"),
        Experiment("vpn-table1", "VPNs, Table 1: Gilbert-Elliott losses, as pings observe them", "vpn_losses"),
    )
}
