# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler: watches Multipath TCP signalling and caps the subflows that the operator's policy chooses.

docs/design.md has the packages and which of them imports which, docs/glossary.md the words. ``runtime/engine.py`` has
the way of each change.
"""

from mptcp_common import __version__ as __version__
