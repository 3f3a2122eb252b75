# SPDX-License-Identifier: GPL-2.0-or-later
"""Real hosts instead of namespaces: client, proxy and origin, which are reached by ssh and listed in an inventory."""

from .inventory import Inventory, InventoryError, read_inventory
from .lab import remote_lab
from .ssh import SshHost

__all__ = ["Inventory", "InventoryError", "SshHost", "read_inventory", "remote_lab"]
