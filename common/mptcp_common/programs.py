# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs programs that read and change the kernel's state: nft(8), ip(8), iptables(8)."""

from __future__ import annotations

import os
import subprocess

from mptcp_common.kernel_error import KernelError

_TIMEOUT_SECONDS = 10
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}
"""Debian's package of a program, if it has another name."""


def run(*command: str, text: str = "") -> str:
    """Run *command* with *text* as its input; return its output. Raises KernelError with the first line of its errors,
    in English."""
    program = command[0]
    try:
        finished = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise KernelError(f"{program} is not installed (Debian: {_PACKAGES.get(program, program)})") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{' '.join(command)}: {error}") from error
    if finished.returncode:
        lines = [each for each in finished.stderr.splitlines() if each.strip()]
        raise KernelError(f"{' '.join(command)}: {lines[0] if lines else 'failed'}")
    return finished.stdout
