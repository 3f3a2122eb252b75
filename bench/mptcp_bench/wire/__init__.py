# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy's two sides on the wire: captures, segments, connections, and each request's way through the proxy."""
