"""Where a result comes from: command, commit, kernel, versions, seed. Part of every result file."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mptcp_lab.testbed.commands import TestbedError, run
from mptcp_lab.testbed.services import REPOSITORY

RESULTS = REPOSITORY / "results"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Enough to run the same thing again."""

    command: str
    commit: str
    """With ``-dirty`` where the working copy differed from it."""
    kernel: str
    processors: int
    squid: str
    python: str
    seed: int | None
    started: str


def _first_line(*argv: str) -> str:
    try:
        done = run(argv, check=False)
    except TestbedError:
        return "unknown"
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else "unknown"


def _commit() -> str:
    git = ("git", "--no-optional-locks", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY))
    commit = _first_line(*git, "rev-parse", "HEAD")
    if commit != "unknown" and _first_line(*git, "status", "--porcelain") != "unknown":
        commit += "-dirty"
    return commit


def collect(seed: int | None = None) -> Provenance:
    """Describe this run, now."""
    return Provenance(
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        commit=_commit(),
        kernel=platform.release(),
        processors=os.cpu_count() or 1,
        squid=_first_line("squid", "-v").removeprefix("Squid Cache: Version "),
        python=platform.python_version(),
        seed=seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def document(provenance: Provenance, results: dict[str, Any]) -> str:
    """Return *results* with their provenance as JSON text."""
    return json.dumps({"provenance": asdict(provenance), **results}, indent=2) + "\n"
