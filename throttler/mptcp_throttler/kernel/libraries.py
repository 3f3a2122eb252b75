# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads python-iptables without setuptools, and Scapy without its names of all vendors of network cards (9 MB). Other
importers in this process get the complete libraries, except for the names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def _substitute(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Substitute *modules* (None: not found) during imports, except those that are already loaded."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None is allowed: the module is then not found
    try:
        yield
    finally:
        for name, module in absent.items():
            if sys.modules.get(name, absent) is module:
                del sys.modules[name]


def python_iptables() -> Any:
    """Return the package iptc. Loading it loads the kernel modules ip_tables and ip6_tables."""
    with _substitute({"distutils": None}):
        import iptc
    # To distinguish a target from a chain, iptc would read all of the kernel's tables, and so create them (nat too).
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
        with _substitute({"scapy.libs.manuf": names, "scapy.libs.bluetoothids": names}):
            from scapy.data import MANUFDB
        MANUFDB.d.clear()  # if Wireshark is installed, Scapy has read Wireshark's file of vendors instead
    from scapy.arch.linux import L2ListenSocket
    from scapy.error import Scapy_Exception

    return L2ListenSocket, Scapy_Exception
