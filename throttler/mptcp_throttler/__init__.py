# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler: watches Multipath TCP signalling and caps the subflows that the operator's policy chooses.

Each stage has its own package. A package imports only packages that come before it in this list:

- ``mptcp``: bytes to segments and options, then the tracker: which subflow belongs to which connection (pure);
- ``policy``: YAML to :class:`~mptcp_throttler.policy.model.Policy`, and a verdict per subflow (pure);
- ``shaping``: verdicts to the kernel objects they need, and their difference from the actual objects (pure);
- ``kernel``: the ports to the kernel and their adapters: capture, path-manager events, socket
  diagnostics, traffic control, netfilter;
- ``runtime``, ``cli``: the daemon that applies the plan, and the commands; docs/design.md has the other packages.

Words: a *connection* is an MPTCP connection (RFC 8684), named by its local *token*; a *subflow* is one of
its TCP connections, named by its *four-tuple*. *Local* is the proxy's end, *remote* the client's.
"""

from mptcp_common import __version__ as __version__
