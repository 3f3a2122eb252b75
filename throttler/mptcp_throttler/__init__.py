# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler: watches Multipath TCP signalling and caps the subflows that the operator's policy chooses.

docs/design.md has the packages and which of them imports which. ``runtime/engine.py`` has the way of each change.

Words: a *connection* is an MPTCP connection (RFC 8684), named by its local *token*; a *subflow* is one of
its TCP connections, named by its *four-tuple*. *Local* is the proxy's end, *remote* the client's.
"""

from mptcp_common import __version__ as __version__
