# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the preload libraries share: a small program in its place, in a network namespace of its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptcp_proxy import shim

TCP, MPTCP = 6, 262
NAMES = (shim.TURNS, shim.LISTEN)
"""The libraries, in the order of LD_PRELOAD."""
PREAMBLE = """
import errno, fcntl, json, os, socket, subprocess, sys
from socket import *
def protocol(s): return s.getsockopt(SOL_SOCKET, SO_PROTOCOL)
def has_library(): maps = open("/proc/self/maps").read(); return "mptcp_listen" in maps or "squid_turns" in maps
def tell(**values): print(json.dumps(values))
"""
REPORT = (
    "import json, os; maps = open('/proc/self/maps').read();"
    " print(json.dumps({'libraries': [each for each in ('squid_turns.so', 'mptcp_listen.so') if each in maps],"
    " 'preload': os.environ.get('LD_PRELOAD'), 'ports': os.environ.get('MPTCP_LISTEN_PORTS'),"
    " 'congestion': os.environ.get('MPTCP_CONGESTION'), 'parents': os.environ.get('MPTCP_PARENTS'),"
    " 'turns': os.environ.get('MPTCP_TURNS')}))"
)


BUILT = Path(sys.prefix) / "built"
"""Where libraries stay that take long to build, in the virtual environment."""
SANITIZERS = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
"""What gcc(1) takes for -fsanitize, and what must then be loaded before the library."""


def sanitized(sanitizer: str = "address,undefined") -> tuple[str, ...]:
    """Build the libraries with *sanitizer*, once for their sources, and return what is to be loaded, in its order."""
    return (*map(runtime, SANITIZERS[sanitizer]), *(_sanitized(sanitizer, name) for name in NAMES))


def _sanitized(sanitizer: str, name: str) -> str:
    flags = (
        *("-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-g", "-O1"),
        *(f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"),
    )
    sources = [path.read_bytes() for path in sorted(Path(shim.__file__).parent.glob("*/*.[ch]"))]
    target = BUILT / hashlib.sha256(b"\0".join([*sources, *map(str.encode, flags)])).hexdigest()[:16] / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            fresh = target.with_suffix(".new")
            subprocess.run(["gcc", *flags, *map(str, shim.sources(name)), "-ldl", "-o", str(fresh)], check=True)
            fresh.rename(target)
    return str(target)


def runtime(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


class Preloaded:
    """Runs Python code with the *libraries* preloaded, and *before* them what they need."""

    def __init__(self, libraries: Sequence[Path], before: Sequence[str] = ()) -> None:
        self.libraries = libraries
        self.preload = " ".join([*before, *map(str, libraries)])
        # The thread sanitizer has fixed addresses, which a program's own may not take.
        self.start = ("setarch", "-R", "env") if before else ("env",)
        self.stderr = ""

    def __call__(
        self,
        code: str,
        *,
        ports: str | None = "3128,3129",
        congestion: str | None = None,
        parents: str | None = None,
        turns: str | None = None,
        interpreter: str = sys.executable,
        setup: str = "true",
        **variables: str,
    ) -> Any:
        # env(1) sets the variables for the program alone: neither unshare nor the shell shall be preloaded.
        own = [f"LD_PRELOAD={self.preload}"]
        if ports is not None:
            own.append(f"MPTCP_LISTEN_PORTS={ports}")
        if congestion is not None:
            own.append(f"MPTCP_CONGESTION={congestion}")
        if parents is not None:
            own.append(f"MPTCP_PARENTS={parents}")
        if turns is not None:
            own.append(f"MPTCP_TURNS={turns}")
        # What a program does is its matter: Python 3.12 and later warn of fork(2) beside threads.
        program = [*self.start, *own, interpreter, "-W", "ignore::DeprecationWarning", "-c"]
        answer = subprocess.run(
            [
                "unshare",
                "--net",
                "sh",
                "-c",
                f'ip link set lo up && {setup} && exec "$@"',
                "sh",
                *program,
                PREAMBLE + code,
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "REPORT": REPORT, **variables},
        )
        self.stderr = answer.stderr
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)


DESCRIPTORS = "ulimit -Sn 4096; ulimit -Hn 8192"
"""As mptcp-proxy has it: there is room for the library's own beyond those of the program."""
WAYS = ("plain", "address,undefined", "thread")
"""The libraries as they are shipped, and as each sanitizer watches them; the last is left to the nightly tests."""


def marked(way: str, *more: str) -> Any:
    """Return the parameter *way*, and *more*, with the mark of ``WAYS``."""
    found = (way, *more) if more else way
    return pytest.param(found, id="-".join((way, *more)), marks=[pytest.mark.nightly] if way == WAYS[-1] else [])


def playing(preloaded: Preloaded, scene: str) -> Callable[..., Any]:
    """Return what runs code after *scene*, with fair turns, and takes it that nothing is said on standard error."""

    def run(code: str, turns: str | None = "fair", **variables: str) -> Any:
        found = preloaded(scene + code, turns=turns, setup=DESCRIPTORS, ASAN_OPTIONS="detect_leaks=0", **variables)
        assert preloaded.stderr == ""
        return found

    return run


def preloaded_as(way: str) -> Preloaded:
    """Return the libraries in one of ``WAYS``."""
    if way == "plain":
        return Preloaded([shim.library(name) for name in NAMES])
    *before, turns, listen = sanitized(way)
    return Preloaded([Path(turns), Path(listen)], before)
