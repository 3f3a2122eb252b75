"""The libraries that the adapters use, loaded without what nobody here uses of them: 35 MB less of resident memory.

``import pyroute2`` loads all that it has, a database among it. python-iptables loads setuptools to find one directory,
and can do without. Scapy keeps the names of all makers of network cards. Whoever else imports these libraries in this
process finds them whole, but for those names. A library that is loaded already stays as it is.
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
    """Have the package *name* loaded with those of its modules alone that are imported; the rest, when asked for."""
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
    """Have *modules* stand where others import them, but for those that are loaded already; None: not to be found."""
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
    """Return the package iptc. Loading it loads the kernel's modules ip_tables and ip6_tables."""
    with _replaced({"distutils": None}):
        import iptc
    return iptc


def scapy_sniffer() -> tuple[Any, type[Exception]]:
    """Return Scapy's L2ListenSocket and its exception; they are slow to load."""
    import scapy.main

    names: Any = ModuleType("no names")
    names.DATA = ""
    cache = getattr(scapy.main, "SCAPY_CACHE_FOLDER", None)
    scapy.main.SCAPY_CACHE_FOLDER = None
    try:
        with _replaced({"scapy.libs.manuf": names, "scapy.libs.bluetoothids": names}):
            if "scapy.data" not in sys.modules:
                from scapy.data import MANUFDB

                # Where Wireshark is installed, Scapy has read its file of makers instead.
                MANUFDB.d.clear()
            from scapy.arch.linux import L2ListenSocket
            from scapy.error import Scapy_Exception
    finally:
        scapy.main.SCAPY_CACHE_FOLDER = cache
    return L2ListenSocket, Scapy_Exception
