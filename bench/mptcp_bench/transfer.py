"""One download by the client of a lab, observed by the agent on the client's own host and clock.

Unlike ``download``, which the demo watches live, it works the same in namespaces and over ssh.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Lab, Program

from .recorder import Sample

POLL = 0.1
GRACE = 15.0
"""Seconds that the agent may take beyond its download's timeout."""
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent saw. Times are seconds since the client's program was started; it ended at :attr:`ended`."""

    ended: float
    status: int
    """Exit status of the client's program."""
    timed_out: bool
    octets: int
    sha256: str
    said: str
    """The end of what the program wrote to its standard error."""
    samples: tuple[Sample, ...]
    """Bytes received, by path."""
    memory: tuple[tuple[float, int], ...]
    """Bytes held in the receive memory of MPTCP sockets, sampled right after :attr:`samples`."""
    joined: float | None
    """When a second subflow was first seen."""
    counters: Mapping[str, int]
    """What was added to the client's protocol counters."""
    proxy_counters: Mapping[str, int]
    origin_counters: Mapping[str, int]

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / self.ended

    @property
    def requested(self) -> int:
        """MPTCP connections that the client asked for."""
        return self.counters.get("MPTcpExtMPCapableSYNTX", 0)

    @property
    def joins(self) -> int:
        """Joined subflows that were established."""
        return self.counters.get("MPTcpExtMPJoinSynAckRx", 0)

    @property
    def fallbacks(self) -> int:
        """Connections of client and proxy that became plain TCP, by whatever way: RFC 8684, 3.7."""
        return fallbacks(self.counters) + fallbacks(self.proxy_counters)


def _added(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def still_there(lab: Lab, *programs: Program) -> None:
    """Raise TestbedError where a host of *lab* cannot be reached any more, or one of *programs* has ended."""
    for host in (lab.client, lab.proxy, lab.origin):
        host.run(["true"])
    for program in programs:
        if not program.running:
            raise TestbedError(f"{program.name} ended with {program.returncode}{program.tail()}")


def observe(
    lab: Lab,
    argv: Sequence[str],
    *,
    timeout: float,
    interval: float = 0.1,
    memory: bool = False,
    watch: Callable[[float], None] = lambda elapsed: None,
) -> Observation:
    """Have the client run *argv*, which writes what it downloads to its output, and return what was seen.

    *timeout* and *interval* are seconds; *watch* is called some ten times a second with the seconds gone.
    Raises TestbedError where the observation itself fails; a download that fails is an observation.
    """
    client = lab.client
    specification = {
        "argv": list(argv),
        "devices": [path.device for path in lab.paths],
        "interval": interval,
        "memory": memory,
        "timeout": timeout,
    }
    target = client.directory / f"transfer-{next(_numbers)}.json"
    before = lab.proxy.mib(), lab.origin.mib()
    process = client.popen(client.agent("transfer", json.dumps(specification), str(target)), name="transfer")
    started = time.monotonic()
    try:
        while process.running:
            elapsed = time.monotonic() - started
            watch(elapsed)
            if elapsed > timeout + GRACE:
                raise TestbedError(f"{client.name}: the download's observer has not ended after {elapsed:.0f} s")
            time.sleep(POLL)
    finally:
        process.stop()
    if process.returncode != 0:
        raise TestbedError(f"{client.name}: the download's observer ended with {process.returncode}{process.tail()}")
    after = lab.proxy.mib(), lab.origin.mib()
    seen: dict[str, Any] = json.loads(client.read(target))
    if seen["sampling_error"] is not None:
        raise TestbedError(f"{client.name}: the observer could not read the counters: {seen['sampling_error']}")
    names = [path.name for path in lab.paths]
    return Observation(
        ended=seen["ended"],
        status=seen["status"],
        timed_out=seen["timed_out"],
        octets=seen["octets"],
        sha256=seen["sha256"],
        said=seen["said"].strip(),
        samples=tuple(Sample(t, dict(zip(names, octets, strict=True))) for t, *octets in seen["samples"]),
        memory=tuple((t, octets) for t, octets in seen["memory"]),
        joined=seen["joined"],
        counters=seen["counters"],
        proxy_counters=_added(before[0], after[0]),
        origin_counters=_added(before[1], after[1]),
    )
