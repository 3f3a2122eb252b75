# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

``scenarios`` declares the figures as data, ``parameters`` their settings. ``session`` turns each
into a scenario of the bench: ``engine`` makes a figure's downloads on a ``Lab``, ``measures`` computes numbers from the
observations, ``conversion`` measures Table 1. ``results`` has the measurements with their statistics. ``claims``,
``throttling_claims`` and ``conversion_claims`` judge the paper's claims by the measurements; ``verdicts`` calls them
all. ``figures`` and ``tables`` show the measurements.
"""
