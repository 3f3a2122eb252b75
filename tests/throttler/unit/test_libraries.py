# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the daemon does not load unused parts of libraries, and that other code can still import these parts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DAEMON = """
import mptcp_throttler.cli, mptcp_throttler.config.files, mptcp_throttler.runtime.daemon
from mptcp_throttler.kernel.libraries import scapy_sniffer
scapy_sniffer()
"""


def modules_loaded_by(code: str) -> list[str]:
    """Return the modules that a new interpreter has loaded after running *code*."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    modules: list[str] = json.loads(done.stdout)
    return modules


@pytest.fixture(scope="module")
def daemon() -> frozenset[str]:
    return frozenset(modules_loaded_by(DAEMON))


@pytest.mark.parametrize(
    "module",
    [
        "setuptools",
        "pkg_resources",
        "distutils",
        "scapy.libs.manuf",
        "scapy.layers.inet",
        "rich",
        "iptc",
    ],
)
def test_daemon_does_not_load_module(daemon: frozenset[str], module: str) -> None:
    assert "scapy.arch.linux" in daemon, "the daemon's own libraries were not loaded"
    assert module not in daemon


WIRESHARK = """
import builtins, io, os
exists, original_open = os.path.exists, open
os.path.exists = lambda path: str(path).endswith("wireshark/manuf") or exists(path)
def stub(path, *arguments, **keywords):
    manuf = str(path).endswith("wireshark/manuf")
    return io.StringIO("00:00:01\\tMaker\\tMaker Ltd\\n") if manuf else original_open(path, *arguments, **keywords)
builtins.open = stub
"""


@pytest.mark.nightly(except_for=("with Wireshark",))
@pytest.mark.parametrize("preparation", ["", WIRESHARK], ids=["plain", "with Wireshark"])
def test_scapy_does_not_load_names_of_manufacturers(preparation: str) -> None:
    modules_loaded_by(preparation + DAEMON + "import scapy.data\nassert not scapy.data.MANUFDB.d")


def test_python_iptables_is_loaded_with_its_adapter_only() -> None:
    # python-iptables makes the kernel load the modules of iptables.
    assert "iptc" not in modules_loaded_by("import mptcp_throttler.kernel.netfilter.backends")
    modules = modules_loaded_by("import mptcp_throttler.kernel.libraries as libraries\nlibraries.python_iptables()")
    assert "iptc" in modules
    assert "setuptools" not in modules


@pytest.mark.nightly
def test_libraries_that_are_already_loaded_are_not_changed() -> None:
    pytest.importorskip("distutils", reason="Python has it up to 3.11")
    modules_loaded_by("import distutils, scapy.data\n" + DAEMON + "assert scapy.data.MANUFDB.d")


def test_replaced_library_can_be_imported_afterwards() -> None:
    check = "import mptcp_throttler.kernel.libraries\nimport sys\nassert 'distutils' not in sys.modules\n"
    modules_loaded_by(check + DAEMON + "from scapy.libs.manuf import DATA\nassert len(DATA) > 100_000")
