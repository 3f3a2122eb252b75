# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the preload library tests: they run a small program under the libraries in its own network namespace."""

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
"""File names of the libraries, in the order of LD_PRELOAD."""
PREAMBLE = """
import errno, fcntl, json, os, socket, subprocess, sys
from socket import *
def protocol(s): return s.getsockopt(SOL_SOCKET, SO_PROTOCOL)
def has_library(): maps = open("/proc/self/maps").read(); return "mptcp_listen" in maps or "squid_turns" in maps
def report(**values): print(json.dumps(values))
"""
REPORT = (
    "import json, os; maps = open('/proc/self/maps').read();"
    " print(json.dumps({'libraries': [each for each in ('squid_turns.so', 'mptcp_listen.so') if each in maps],"
    " 'preload': os.environ.get('LD_PRELOAD'), 'ports': os.environ.get('MPTCP_LISTEN_PORTS'),"
    " 'congestion': os.environ.get('MPTCP_CONGESTION'), 'parents': os.environ.get('MPTCP_PARENTS'),"
    " 'turns': os.environ.get('MPTCP_TURNS')}))"
)


BUILD_DIRECTORY = Path(sys.prefix) / "built"
"""Directory in the virtual environment for libraries whose build takes long."""
SANITIZERS = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
"""Values of gcc's -fsanitize, and the runtime libraries that must be loaded first."""


def sanitized_libraries(sanitizer: str = "address,undefined") -> tuple[str, ...]:
    """Build the libraries with *sanitizer*, once per version of their sources.

    Return all libraries in loading order.
    """
    return (*map(runtime_path, SANITIZERS[sanitizer]), *(_sanitized_library(sanitizer, name) for name in NAMES))


def _sanitized_library(sanitizer: str, name: str) -> str:
    flags = (
        *("-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-g", "-O1"),
        *(f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"),
    )
    sources = [path.read_bytes() for path in sorted(Path(shim.__file__).parent.glob("*/*.[ch]"))]
    target = BUILD_DIRECTORY / hashlib.sha256(b"\0".join([*sources, *map(str.encode, flags)])).hexdigest()[:16] / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            new_library = target.with_suffix(".new")
            subprocess.run(["gcc", *flags, *map(str, shim.sources(name)), "-ldl", "-o", str(new_library)], check=True)
            new_library.rename(target)
    return str(target)


def runtime_path(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


class Preloaded:
    """Runs Python code with the preload *libraries*, and with the sanitizer's *runtimes*, which are loaded first."""

    def __init__(self, libraries: Sequence[Path], runtimes: Sequence[str] = ()) -> None:
        self.libraries = libraries
        self.preload = " ".join([*runtimes, *map(str, libraries)])
        # The thread sanitizer needs fixed addresses, so disable address randomization.
        self.start = ("setarch", "-R", "env") if runtimes else ("env",)
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
        """Run *code* in a new network namespace, after the shell command *setup*. Return the JSON that it prints."""
        # env(1) sets the variables only for the program: unshare and the shell must not be preloaded.
        variable_settings = [f"LD_PRELOAD={self.preload}"]
        if ports is not None:
            variable_settings.append(f"MPTCP_LISTEN_PORTS={ports}")
        if congestion is not None:
            variable_settings.append(f"MPTCP_CONGESTION={congestion}")
        if parents is not None:
            variable_settings.append(f"MPTCP_PARENTS={parents}")
        if turns is not None:
            variable_settings.append(f"MPTCP_TURNS={turns}")
        # Python 3.12 and later warn of fork(2) in programs with threads; this does not matter here.
        program = [*self.start, *variable_settings, interpreter, "-W", "ignore::DeprecationWarning", "-c"]
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
"""Sets the same limits as mptcp-proxy: there is room for the library's own descriptors above the program's soft
limit."""
BUILDS = ("plain", "address,undefined", "thread")
"""The libraries as shipped, and built with each sanitizer. Only nightly tests use the last one."""


def build_parameter(build: str, *others: str) -> Any:
    """Return *build* and *others* as one pytest parameter, which is marked as nightly for the last of ``BUILDS``."""
    value = (build, *others) if others else build
    marks = [pytest.mark.nightly] if build == BUILDS[-1] else []
    return pytest.param(value, id="-".join((build, *others)), marks=marks)


def scene_runner(preloaded: Preloaded, scene: str) -> Callable[..., Any]:
    """Return a function that runs code after *scene*, with fair turns, and requires an empty standard error."""

    def run(code: str, turns: str | None = "fair", **variables: str) -> Any:
        found = preloaded(scene + code, turns=turns, setup=DESCRIPTORS, ASAN_OPTIONS="detect_leaks=0", **variables)
        assert preloaded.stderr == ""
        return found

    return run


def build_preloaded(build: str) -> Preloaded:
    """Build the libraries in one of ``BUILDS``."""
    if build == "plain":
        return Preloaded([shim.library(name) for name in NAMES])
    *runtimes, turns, listen = sanitized_libraries(build)
    return Preloaded([Path(turns), Path(listen)], runtimes)
