# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

``scenarios`` declares the experiments as data, ``parameters`` their settings. ``session`` runs the requested
experiments: ``engine`` runs a figure on a ``Lab``, ``measures`` computes numbers from its observations, ``conversion``
runs Table 1. ``results`` has all that was measured, with its statistics. ``claims``, ``throttling_claims`` and
``conversion_claims`` judge the paper's claims by the measurements; ``verdicts`` calls them all. ``figures`` and
``tables`` show the measurements.
"""
