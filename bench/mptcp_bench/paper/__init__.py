# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

They are scenarios of the bench. ``figures`` declares the downloads of Figures 2 to 7, ``downloads`` makes and measures
them; ``conversion`` declares and measures Table 1. ``claims`` and ``conversion_claims`` have the paper's claims about
the figures and the table. ``drawing`` draws the figures.
"""

from __future__ import annotations

from ..experiments import Experiment

PAPER: dict[str, Experiment] = {
    name: Experiment(name, summary, module, scenario, __name__)
    for name, summary, module, scenario in (
        ("fig2", "Figure 2: Legacy TCP, client to origin without the proxy", "figures", "FIG2"),
        ("fig3", "Figure 3: Multipath TCP through the proxy", "figures", "FIG3"),
        ("fig4", "Figure 4: Receive buffer", "figures", "FIG4"),
        ("fig5", "Figure 5: MTU 1000 against 1500, receive buffer 0.72 MB", "figures", "FIG5"),
        ("fig6", "Figure 6: Throttled Ethernet, a file of 5 MB, first and repeated", "figures", "FIG6"),
        ("fig7", "Figure 7: Throttled Ethernet, a file of 200 MB", "figures", "FIG7"),
        ("table1", "Table 1: Protocol conversion delay", "conversion", "SCENARIO"),
    )
}
"""The paper's experiments by name, in its order."""
