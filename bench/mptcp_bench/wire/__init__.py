# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy's two sides on the wire: captures, segments, connections, a request's way.

``packets`` reads capture files, ``streams`` turns segments into connections, ``exchanges`` matches the proxy's two
sides, ``capture`` runs tcpdump, ``workload`` sends the requests.
"""
