"""Real Squid, Apache and clients on the real kernel: topologies as data, built in network namespaces.

``topologies`` declares, ``plan`` turns a topology into commands (pure), ``build`` runs and undoes them,
``node`` is what a test holds in its hand, ``services`` starts Apache, the proxy and the throttler,
``ownership`` finds and removes what a killed run left, ``features`` says what this kernel lacks.
"""

from .build import Testbed
from .commands import TestbedError
from .model import End, Endpoint, Limits, Link, Node, Route, RoutingRule, Topology, TopologyError
from .node import InterfaceBytes, LiveNode
from .process import TMPFS, Process
from .topologies import TWO_PATHS, TWO_PATHS_TWO_INTERFACES, UNSHAPED, PathRate, paths

__all__ = [
    "TMPFS",
    "TWO_PATHS",
    "TWO_PATHS_TWO_INTERFACES",
    "UNSHAPED",
    "End",
    "Endpoint",
    "InterfaceBytes",
    "Limits",
    "Link",
    "LiveNode",
    "Node",
    "PathRate",
    "Process",
    "Route",
    "RoutingRule",
    "Testbed",
    "TestbedError",
    "Topology",
    "TopologyError",
    "paths",
]
