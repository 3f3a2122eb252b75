# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests the kernel features that the throttler needs, in a network namespace that ends with the process.

``in_fresh_namespace`` starts that process, which prints one JSON object with a member for each feature: null if it
works, otherwise the reason why it does not. ``TRIALS`` has all features except netfilter, which the throttler tests
with its own adapters.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyroute2 import DiagSocket, IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.reasons import reason
from mptcp_common.throttler_needs import HTB, IFB, PACKETS, PFIFO, SOCKETS, TBF

Results = dict[str, str | None]
_LO = 1  # the loopback interface's index, the only interface of a fresh namespace
_ROOT, _CLASS, _QUEUE, _CUTTING_QUEUE = 0x10000, 0x10010, 0x20000, 0x30000
_ESTABLISHED = 1 << 1


def _htb() -> None:
    with IPRoute() as tc:
        tc.tc("replace", "htb", _LO, _ROOT, default=0)
        tc.tc("add-class", "htb", _LO, _CLASS, parent=_ROOT, rate="1mbit", ceil="1mbit")


# The queue is added at the root, so that it does not need HTB: each missing feature is reported once.
def _pfifo() -> None:
    with IPRoute() as tc:
        tc.tc("replace", "pfifo", _LO, _QUEUE, limit=10)


def _tbf() -> None:
    with IPRoute() as tc:
        tc.tc("replace", "tbf", _LO, _CUTTING_QUEUE, rate="1mbit", burst=4000, limit=8000)


def _ifb() -> None:
    # Loading the module would create ifb0 and ifb1 in the host's namespace. So if the module is not loaded, the test
    # only checks that its file exists.
    modules = Path(f"/lib/modules/{os.uname().release}/modules.dep")
    if not Path("/sys/module/ifb").exists() and modules.exists() and "/ifb.ko" in modules.read_text():
        return
    with IPRoute() as links:
        links.link("add", ifname="mpxprobe", kind="ifb")


def _packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


def _socket_diagnostics() -> None:
    with DiagSocket() as sockets:
        sockets.bind()
        list(sockets.get_sock_stats(family=socket.AF_INET, states=_ESTABLISHED))


TRIALS: Mapping[str, Callable[[], None]] = {
    HTB: _htb,
    PFIFO: _pfifo,
    TBF: _tbf,
    IFB: _ifb,
    PACKETS: _packets,
    SOCKETS: _socket_diagnostics,
}


def attempt(trials: Mapping[str, Callable[[], None]]) -> Results:
    """Test each feature; its result is None if it works, otherwise the reason why it does not."""
    results: Results = {}
    for feature, trial in trials.items():
        try:
            trial()
            results[feature] = None
        except FileNotFoundError as error:
            results[feature] = f"{error.filename} is not installed" if error.filename else reason(error)
        except NetlinkError as error:
            results[feature] = os.strerror(error.code)
        except Exception as error:  # any error of the kernel or a library is the finding
            results[feature] = reason(error)
    return results


def in_fresh_namespace(module: str, arguments: Sequence[str]) -> tuple[Results, str]:
    """Run *module* in a new network namespace. Return the results that it prints, or why it could not run."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0:
        return {}, "only root may create a network namespace"
    if unshare is None:
        return {}, "unshare is not installed (apt install util-linux)"
    command = [unshare, "--net", "--", sys.executable, "-I", "-m", module, *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        results: Results = json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        # The last line has the error of unshare(1) or Python.
        lines = error.stderr.strip().splitlines()
        return {}, f"the test failed: {lines[-1] if lines else f'exit status {error.returncode}'}"
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {}, f"the test failed: {error}"
    return results, ""
