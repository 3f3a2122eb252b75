# SPDX-License-Identifier: GPL-2.0-or-later
"""Observe one download on the client: ``agent.transfer SPECIFICATION RESULT``.

SPECIFICATION is a JSON object: ``argv``, a program that writes its download to its standard output; ``devices``, whose
received bytes are sampled; ``interval`` and ``timeout`` in seconds. The program writes a JSON object with fields of
``transfer.Observation`` to the file RESULT. Samples and download use the same clock of this host, and nothing is sent
to the driver during the download.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from . import counters

LEAD_SECONDS = 0.3
"""Seconds that are sampled before and after the download."""
JOINED = "MPTcpExtMPJoinSynAckRx"
CHUNK = 1 << 18


def download(argv: list[str], timeout: float) -> dict[str, Any]:
    """Run *argv* and compute the hash of its output. After *timeout* seconds the program is killed."""
    digest, octets = hashlib.sha256(), 0
    started = time.monotonic()
    # Write the errors to a file, because a client would block when a pipe is full.
    with tempfile.TemporaryFile() as errors, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        output = process.stdout.fileno()
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            while chunk := os.read(output, CHUNK):
                digest.update(chunk)
                octets += len(chunk)
            status = process.wait()
        finally:
            process.kill()
            timer.cancel()
        ended = time.monotonic()
        errors.seek(0)
        return {
            "began": started,
            "ended": ended - started,
            "timed_out": ended - started >= timeout,
            "status": status,
            "octets": octets,
            "sha256": digest.hexdigest(),
            "error_output": errors.read().decode(errors="replace")[-2000:].strip(),
        }


def observe(specification: dict[str, Any]) -> dict[str, Any]:
    """Return the observations of a download. Times are seconds since its start."""
    samples: list[tuple[float, list[int]]] = []
    before = counters.read_protocols()
    joined: float | None = None

    def take_sample() -> None:
        nonlocal joined
        devices = counters.read_devices()
        now = time.monotonic()
        samples.append((now, [devices[name][0] for name in specification["devices"]]))
        # Read the protocol counters, which takes longer, only until the first join.
        if joined is None and counters.read_protocols().get(JOINED, 0) > before.get(JOINED, 0):
            joined = now

    sampler = counters.PeriodicCalls(take_sample, specification["interval"])
    sampler.start()
    time.sleep(LEAD_SECONDS)
    result = download(specification["argv"], specification["timeout"])
    time.sleep(LEAD_SECONDS)
    sampler.stop()
    if sampler.error is not None:
        raise sampler.error
    start = result["began"]
    return {
        **result,
        "samples": [(time - start, octets) for time, octets in samples],
        "joined": None if joined is None else joined - start,
        "counters": counters.increments(before, counters.read_protocols()),
    }


def main() -> None:
    specification, result = sys.argv[1:]
    Path(result).write_text(json.dumps(observe(json.loads(specification))))


if __name__ == "__main__":
    main()
