# SPDX-License-Identifier: GPL-2.0-or-later
"""Collect the provenance of a result: command, commit, kernel, versions, seed."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from mptcp_lab.remote import read_inventory, remote_lab
from mptcp_lab.testbed.commands import TestbedError, run
from mptcp_lab.testbed.services import REPOSITORY

from .result_file import Provenance

RESULTS = REPOSITORY / "results"
UNKNOWN = "unknown"


def _output(*argv: str) -> str | None:
    """Return a command's output; None if the command is missing or fails."""
    try:
        done = run(argv, check=False)
    except TestbedError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _commit(repository: Path = REPOSITORY) -> str:
    git = ("git", "--no-optional-locks", "-c", f"safe.directory={repository}", "-C", str(repository))
    commit = _output(*git, "rev-parse", "HEAD")
    if commit is None:
        return UNKNOWN
    # Git's command describe writes the index, or takes a file for changed that only has another time stamp.
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return commit + ("-broken" if changed is None else "-dirty" if changed else "")


def _squid_version() -> str:
    lines = (_output("squid", "-v") or UNKNOWN).splitlines()
    return lines[0].removeprefix("Squid Cache: Version ")


def _command(words: Sequence[str]) -> str:
    """Return the command line *words* without ``--output``, which does not affect the results."""
    relevant = [
        word
        for before, word in pairwise(words)
        if "--output" not in (before, word) and not word.startswith("--output=")
    ]
    return shlex.join([Path(words[0]).name, *relevant])


def collect(seed: int | None = None) -> Provenance:
    """Return the provenance of the current run."""
    return Provenance(
        command=_command(sys.argv),
        commit=_commit(),
        kernel=platform.release(),
        processors=os.cpu_count() or 1,
        squid=_squid_version(),
        python=platform.python_version(),
        seed=seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def collect_from_hosts(inventory: Path) -> dict[str, Any]:
    """Return the fields of the provenance that describe the real hosts of *inventory*."""
    with remote_lab(read_inventory(inventory)) as lab:
        hosts = (lab.client, lab.proxy, lab.origin)
        kernels = ", ".join(f"{host.name} {host.run(['uname', '-r']).stdout.strip()}" for host in hosts)
        squid = lab.proxy.run(["squid", "-v"]).stdout.splitlines()[0].removeprefix("Squid Cache: Version ")
        return {"kernel": kernels, "processors": int(lab.proxy.run(["nproc"]).stdout), "squid": squid}
