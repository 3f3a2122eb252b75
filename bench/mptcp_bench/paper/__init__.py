"""The experiments of "Multipath TCP Proxy: Unshackling Network Nodes" (Pollalis, Charalampou, Sykas, WWIC 2016).

``scenarios`` declares them as data, ``parameters`` what of them can be set, ``engine`` runs one on a ``Lab``,
``claims`` judges what the paper says by what was measured, ``conversion`` measures Table 1; ``results`` is the
file that a run writes, ``statistics``, ``figures`` and ``report`` read it.
"""
