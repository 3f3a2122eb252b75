# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy's two sides on the wire: captures, segments, connections, and each request's way through the proxy.

``capture`` runs tcpdump, ``streams`` combines segments to connections, ``exchanges`` matches the connections of the
proxy's two sides, ``workload`` sends the requests.
"""
