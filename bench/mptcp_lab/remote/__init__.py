# SPDX-License-Identifier: GPL-2.0-or-later
"""Real hosts instead of namespaces: client, proxy and origin, which are reached by ssh and listed in an inventory file.

``inventory`` reads the file. ``connection`` is an ssh session with the agent at its other end. ``ssh``
implements :class:`~mptcp_lab.testbed.host.Host` with such a session. ``lab`` connects to an experiment's three hosts,
checks and prepares them, and restores them.
"""

from .inventory import Inventory, InventoryError, read_inventory
from .lab import remote_lab
from .ssh import SshHost

__all__ = ["Inventory", "InventoryError", "SshHost", "read_inventory", "remote_lab"]
