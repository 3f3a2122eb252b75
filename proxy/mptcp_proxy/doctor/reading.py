# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the state of the host for the checks of both roles, and runs the probes of kernel features."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from mptcp_common.throttler_needs import BACKENDS, KERNEL_FEATURES, UPLOAD_FEATURES, backends_without_modules
from mptcp_common.throttler_trial import Results, in_fresh_namespace

from .. import shim
from ..places import Role


def text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def is_hidden(path: str) -> bool:
    """Return whether *path* exists but this user lacks the permission to read it."""
    try:
        with Path(path).open("rb"):
            return False
    except PermissionError:
        return os.geteuid() != 0
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Return whether *path* exists, as far as this user can see. Path.exists would raise an error below a directory
    that this user may not enter."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def sysctl(key: str) -> str | None:
    try:
        return Path("/proc/sys", *key.split(".")).read_text().strip()
    except OSError:
        return None


def modules() -> str:
    """Return modules.dep of this kernel (depmod(8)), or an empty string."""
    return text(f"/lib/modules/{os.uname().release}/modules.dep")


def output(*command: str) -> str:
    """Return the output of *command*; empty if it cannot be run or takes too long."""
    try:
        # The output may contain bytes that are invalid in any encoding, for example in interface names.
        answer = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def json_list(*command: str) -> list[dict[str, Any]]:
    """Return the JSON list that a command prints; an empty list if it prints none."""
    try:
        answer: list[dict[str, Any]] = json.loads(output(*command) or "[]")
    except json.JSONDecodeError:
        return []
    return answer


def mptcp_error() -> int | None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError as error:
        return error.errno
    return None


def library() -> tuple[str, str]:
    """Return the path of mptcp_listen.so, and why one of the preload libraries is missing or outdated, or an empty
    text. This function does not build them."""
    error = ""
    for name in (shim.TURNS, shim.LISTEN):
        found = shim.DEFAULT_LIBRARY.with_name(name)
        try:
            packaged = shim.packaged_library(name)
        except shim.ShimError as problem:
            error = str(problem)
            continue
        found = packaged or found
        if not found.is_file():
            error = f"{found} is not built"
        elif not packaged and not shim.is_current(found):
            error = f"{found} is older than its source"
    return str(found), error


def probe(role: Role, library: str) -> tuple[Results, str]:
    """Run the probe, and for a proxy also the throttler's probe, in temporary network namespaces. Return their results
    and an empty text, or the reason why a probe could not run."""
    library_arguments = [library] if Path(library).is_file() else []
    results, refusal = in_fresh_namespace("mptcp_proxy.doctor.probe", [role.value, *library_arguments])
    if role is Role.PROXY and not refusal:
        throttler_results, refusal = _probe_throttler()
        results |= throttler_results
    return results, refusal


def _probe_throttler() -> tuple[Results, str]:
    # Test a backend whose kernel modules are not loaded yet only if no other backend works.
    loaded = backends_without_modules()
    others = [each for each in BACKENDS if each not in loaded]
    module = "mptcp_throttler.kernel.feature_probe"
    results, refusal = in_fresh_namespace(module, (*KERNEL_FEATURES, *UPLOAD_FEATURES, *loaded))
    if others and all(map(results.get, loaded)):
        other_results, _ = in_fresh_namespace(module, others)
        results |= other_results
    return results, refusal
