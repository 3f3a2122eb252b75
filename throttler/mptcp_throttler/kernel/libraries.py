# SPDX-License-Identifier: GPL-2.0-or-later
"""The adapters' libraries, loaded without their unused parts, which saves 35 MB of resident memory.

``import pyroute2`` loads a database too, python-iptables setuptools (to find one directory), and Scapy the names of all
network card vendors. Other importers in this process get the complete libraries, except for Scapy's vendor names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def _without_its_contents(name: str) -> None:
    """Load the package *name* lazily: each module on import, the rest on attribute access."""
    spec = find_spec(name)
    if name in sys.modules or spec is None:
        return
    package: Any = module_from_spec(spec)

    def load(attribute: str) -> Any:
        if attribute.startswith("__") and attribute not in ("__all__", "__version__"):
            raise AttributeError(attribute)
        with suppress(ModuleNotFoundError):
            return import_module(f"{name}.{attribute}")
        del package.__getattr__
        spec.loader.exec_module(package)  # type: ignore[union-attr]  # a package that was found has one
        return getattr(package, attribute)

    package.__getattr__ = load
    sys.modules[name] = package


@contextmanager
def _replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Substitute *modules* (None: not found) during imports, except those that are already loaded."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None is allowed there, and says that there is none
    try:
        yield
    finally:
        for name, module in absent.items():
            if sys.modules.get(name, absent) is module:
                del sys.modules[name]


_without_its_contents("pyroute2")
with _replaced({"distutils": None}):
    from pyroute2.iproute.linux import AsyncIPRoute
    from pyroute2.ipset import AsyncIPSet
    from pyroute2.netlink.exceptions import IPSetError, NetlinkError

__all__ = ["AsyncIPRoute", "AsyncIPSet", "IPSetError", "NetlinkError", "python_iptables", "scapy_sniffer"]


def python_iptables() -> Any:
    """Return the package iptc. Loading it loads the kernel modules ip_tables and ip6_tables."""
    with _replaced({"distutils": None}):
        import iptc
    # To distinguish a target from a chain it would read all of the kernel's tables, and thereby create them (nat too).
    iptc.Rule.tables = property(lambda _: [iptc.Table("mangle", False)])
    iptc.Rule6.tables = property(lambda _: [iptc.Table6("mangle", False)])
    return iptc


def scapy_sniffer() -> tuple[Any, type[Exception]]:
    """Return Scapy's L2ListenSocket and exception class; slow to load."""
    import scapy.main

    if "scapy.data" not in sys.modules:
        names: Any = ModuleType("no names")
        names.DATA = ""
        scapy.main.SCAPY_CACHE_FOLDER = None  # a cache of another process may have the names
        with _replaced({"scapy.libs.manuf": names, "scapy.libs.bluetoothids": names}):
            from scapy.data import MANUFDB
        MANUFDB.d.clear()  # if Wireshark is installed, Scapy has read Wireshark's file of vendors instead
    from scapy.arch.linux import L2ListenSocket
    from scapy.error import Scapy_Exception

    return L2ListenSocket, Scapy_Exception
