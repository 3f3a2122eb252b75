# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

``scenarios`` declares the figures as data, ``parameters`` their settings. ``session`` makes a scenario of the bench of
each: ``engine`` makes a figure's downloads on a ``Lab``, ``measures`` computes numbers from what was observed,
``conversion`` measures Table 1. ``results`` has all that was measured, with its statistics. ``claims``,
``throttling_claims`` and ``conversion_claims`` judge the paper's claims by it; ``verdicts`` calls them all. ``figures``
and ``tables`` show it.
"""
