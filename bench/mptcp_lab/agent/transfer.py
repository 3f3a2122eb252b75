# SPDX-License-Identifier: GPL-2.0-or-later
"""One observed download on the client: ``agent.transfer SPECIFICATION RESULT``.

SPECIFICATION is a JSON object: ``argv``, a program that writes its download to its standard output; ``devices``, whose
received bytes are sampled; ``interval`` in seconds; ``memory``, whether the memory of MPTCP sockets is sampled, too;
``timeout`` in seconds. The program writes a JSON object with the fields of ``transfer.Observation`` to the file RESULT.
Samples and download use the same clock of this host, and nothing is sent to the driver during the download.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import counters
from .pacing import Paced

LEAD = 0.3
"""Seconds that are sampled before and after the download."""
JOINED = "MPTcpExtMPJoinSynAckRx"
CHUNK = 1 << 18


class Sampler:
    """Samples the counters at a steady pace until it is stopped."""

    def __init__(self, devices: list[str], interval: float, memory: bool) -> None:
        self.samples: list[tuple[float, list[int], int]] = []
        """For each sample its time in seconds, the received bytes of each device, and the number of joins."""
        self.memory: list[tuple[float, int]] = []
        self._devices, self._with_memory = devices, memory
        self._joins_before = counters.read_protocols().get(JOINED, 0)
        self._joins = 0
        self.paced = Paced(self._take, interval)

    def _take(self) -> None:
        seen = counters.read_devices()
        now = time.monotonic()
        # Read the longer of the two files only until the first join.
        if not self._joins:
            self._joins = counters.read_protocols().get(JOINED, 0) - self._joins_before
        self.samples.append((now, [seen[d][0] for d in self._devices], self._joins))
        if self._with_memory:
            self.memory.append((time.monotonic(), counters.mptcp_receive_memory()))


def download(argv: list[str], timeout: float) -> dict[str, Any]:
    """Run *argv* and compute the hash of its output. After *timeout* seconds the program is killed."""
    digest, octets = hashlib.sha256(), 0
    started = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        output, complaints = process.stdout.fileno(), process.stderr
        assert complaints is not None
        errors: list[bytes] = []
        # Read the errors in a thread, because a client would block when the pipe is full.
        reader = threading.Thread(target=lambda: errors.append(complaints.read()), daemon=True)
        reader.start()
        guard = threading.Timer(timeout, process.kill)
        guard.start()
        try:
            while chunk := os.read(output, CHUNK):
                digest.update(chunk)
                octets += len(chunk)
            status = process.wait()
        finally:
            process.kill()
            guard.cancel()
    ended = time.monotonic()
    reader.join()
    return {
        "started": started,
        "ended": ended,
        "timed_out": ended - started >= timeout,
        "status": status,
        "octets": octets,
        "sha256": digest.hexdigest(),
        "said": b"".join(errors).decode(errors="replace")[-2000:],
    }


def observe(specification: dict[str, Any]) -> dict[str, Any]:
    """Return all observations of one download. Times are seconds since its start."""
    sampler = Sampler(specification["devices"], specification["interval"], specification["memory"])
    before = counters.read_protocols()
    sampler.paced.start()
    time.sleep(LEAD)
    result = download(specification["argv"], specification["timeout"])
    time.sleep(LEAD)
    sampler.paced.stop()
    after = counters.read_protocols()
    zero = result["started"]
    for key in ("started", "ended"):
        result[key] -= zero
    return {
        **result,
        "samples": [[t - zero, *octets] for t, octets, _ in sampler.samples],
        "joined": next((t - zero for t, _, joins in sampler.samples if joins), None),
        "memory": [[t - zero, octets] for t, octets in sampler.memory],
        "counters": counters.added_to(before, after),
        "began": zero,
        "sampling_error": None if sampler.paced.error is None else repr(sampler.paced.error),
    }


def main() -> None:
    specification, result = sys.argv[1:]
    Path(result).write_text(json.dumps(observe(json.loads(specification))))


if __name__ == "__main__":
    main()
