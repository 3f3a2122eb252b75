"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

``scenarios`` declares them as data, ``parameters`` what of them can be set. ``session`` runs what is ordered:
``engine`` a figure on a ``Lab``, of whose observations ``measures`` makes numbers, ``conversion`` Table 1. ``results``
is the file that a run writes, ``summary`` its statistics. ``claims``, ``throttling_claims`` and ``conversion_claims``
judge what the paper says by what was measured; ``verdicts`` has them all. ``figures`` and ``chapter`` show a result.
"""
