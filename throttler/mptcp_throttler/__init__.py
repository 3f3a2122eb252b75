# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler: watches Multipath TCP signalling and caps the subflows that the operator's policy chooses.

docs/design.md describes the packages and their imports, docs/glossary.md the terms, and ``runtime/engine.py`` how a
change passes through the daemon.
"""

from mptcp_common import __version__ as __version__
