# SPDX-License-Identifier: GPL-2.0-or-later
"""Real Squid, Apache and clients on a real kernel: topologies as data, which are built in network namespaces.

``topologies`` declares topologies. ``plan`` turns a topology into commands (pure), ``build`` runs and undoes these.
``host`` is the interface of a host that scenarios use, ``node`` a host in a namespace. ``services`` starts Apache, the
proxy and the throttler on any host. ``system_state`` dumps the state that a throttler may leave on a host.
``ownership`` finds and removes the remains of a killed run. ``features`` tests what this kernel lacks.
"""

from ..agent.processes import TMPFS
from .build import Testbed, lab_of
from .commands import TestbedError
from .hops import EmulationError
from .host import Lab, Program
from .model import End, Link, Node, Topology
from .node import LiveNode
from .process import Process
from .topologies import RELAY, TWO_PATHS, TWO_PATHS_TWO_INTERFACES, UNSHAPED, paths

__all__ = [
    "RELAY", "TMPFS", "TWO_PATHS", "TWO_PATHS_TWO_INTERFACES", "UNSHAPED", "EmulationError", "End", "Lab", "Link",
    "LiveNode", "Node", "Process", "Program", "Testbed", "TestbedError", "Topology", "lab_of", "paths",
]  # fmt: skip
