# SPDX-License-Identifier: GPL-2.0-or-later
"""Real hosts instead of namespaces: client, proxy and origin reached by ssh, declared in an inventory file.

``inventory`` reads the file; ``connection`` is one ssh session with the agent at its other end; ``ssh`` turns it into a
:class:`~mptcp_lab.testbed.host.Host`; ``lab`` connects, checks and sets up an experiment's three hosts, and undoes it.
"""

from .inventory import Inventory, InventoryError, read_inventory
from .lab import cleanup, remote_lab
from .ssh import SshHost

__all__ = ["Inventory", "InventoryError", "SshHost", "cleanup", "read_inventory", "remote_lab"]
