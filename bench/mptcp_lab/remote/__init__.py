# SPDX-License-Identifier: GPL-2.0-or-later
"""Real hosts instead of namespaces: client, proxy and origin, which are reached by ssh and listed in an inventory file.

``inventory`` reads the file, ``connection`` is an ssh session with the agent, ``ssh`` a host with such a session, and
``lab`` prepares and restores an experiment's three hosts.
"""

from .inventory import Inventory, InventoryError, read_inventory
from .lab import remote_lab
from .ssh import SshHost

__all__ = ["Inventory", "InventoryError", "SshHost", "read_inventory", "remote_lab"]
