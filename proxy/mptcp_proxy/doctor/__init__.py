"""``mptcp-proxy doctor``: what stands between this host and a working proxy.

Each check is a small function from what was read to findings, so that the unit tests can feed it any host's words;
``gather`` reads, ``probe`` tries kernel features out in a network namespace of its own, ``report`` prints.
"""
