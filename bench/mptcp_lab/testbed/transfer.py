# SPDX-License-Identifier: GPL-2.0-or-later
"""Observe a download of a lab's client. An agent on the client's host records bytes, paths and protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mptcp_common.units import counted

from ..agent import processors
from ..agent.counters import fallbacks, increments
from .commands import TestbedError
from .host import Host, Lab
from .recorder import Sample
from .services import Proxy, mptcp_command

POLL_SECONDS = 0.1
_numbers = count(1)


class Added:
    """The increments of the protocol counters of *hosts* from now on."""

    def __init__(self, *hosts: Host) -> None:
        self._hosts = hosts
        self._before = [host.mib() for host in hosts]

    def read(self) -> list[dict[str, int]]:
        """Return the counters that changed, with their increments, for each host."""
        return [increments(before, host.mib()) for before, host in zip(self._before, self._hosts, strict=True)]


def processors_of(host: Host) -> processors.Reading:
    """Return the processor counters of *host*, without pressure information."""
    return processors.parse(time.monotonic(), host.read(processors.STAT).decode(), None)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How often MPTCP was requested and used during a download, from the kernels' counters."""

    requested: int
    """MPTCP connections that the client requested."""
    fallbacks: int
    """Connections that became plain TCP in any way (RFC 8684, 3.7), of client and proxy together."""
    joins: int
    """Joins that the proxy counted as established. The client also counts subflows that the proxy refuses."""
    proxy_requested: int
    """MPTCP connections that the proxy requested; it should use plain TCP to the origin."""

    @classmethod
    def of(cls, client: Mapping[str, int], proxy: Mapping[str, int]) -> Protocol:
        """Return the protocol that the increments of the counters of *client* and *proxy* show."""
        requests = "MPTcpExtMPCapableSYNTX"
        return cls(
            requested=client.get(requests, 0),
            fallbacks=fallbacks(client) + fallbacks(proxy),
            joins=proxy.get("MPTcpExtMPJoinAckRx", 0),
            proxy_requested=proxy.get(requests, 0),
        )

    def complaint(self, *, multipath: bool) -> str | None:
        """Return the fault of a download that should use MPTCP (*multipath*) or TCP; None if there is no fault."""
        if self.proxy_requested:
            return f"the proxy sent {counted(self.proxy_requested, 'SYN')} with MP_CAPABLE towards the origin"
        if multipath and not self.requested:
            return "the client opened no MPTCP connection"
        if multipath and self.fallbacks:
            return "the connection fell back to plain TCP"
        if multipath and not self.joins:
            return "no second subflow was established"
        if not multipath and self.requested:
            return "the client opened an MPTCP connection instead of plain TCP"
        return None


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of the agent. Times are seconds since the client's program started."""

    ended: float
    status: int
    """Exit status of the client's program."""
    timed_out: bool
    octets: int
    sha256: str
    error_output: str
    """End of the program's standard error."""
    samples: tuple[Sample, ...]
    """Bytes that the client received over each path."""
    joined: float | None
    """Time at which the client first had a second subflow. The proxy may have refused it later."""
    counters: Mapping[str, int]
    """Increments of the client's protocol counters; then those of the proxy and of the origin."""
    proxy_counters: Mapping[str, int]
    origin_counters: Mapping[str, int]
    began: float = 0.0
    """Start of the client's program, as time.monotonic() of the client's host."""

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / self.ended

    @property
    def protocol(self) -> Protocol:
        return Protocol.of(self.counters, self.proxy_counters)


def observe(
    lab: Lab,
    argv: Sequence[str],
    *,
    timeout: float,
    interval: float = 0.1,
    watch: Callable[[float], None] = lambda elapsed: None,
) -> Observation:
    """Run *argv* on the client, which writes its download to its output. Return the observation.

    *timeout* and *interval* are in seconds. *watch* is called about ten times a second with the elapsed seconds. Raises
    TestbedError if the observation itself fails. A failed download is an observation.
    """
    client = lab.client
    specification = {
        "argv": list(argv), "devices": [path.device for path in lab.paths], "interval": interval,
        "timeout": timeout,
    }  # fmt: skip
    target = client.directory / f"transfer-{next(_numbers)}.json"
    added = Added(lab.proxy, lab.origin)
    process = client.popen(client.agent("transfer", json.dumps(specification), str(target)), name="transfer")
    started = time.monotonic()
    try:
        while process.running:
            watch(time.monotonic() - started)
            time.sleep(POLL_SECONDS)
    finally:
        process.stop()
    if process.returncode != 0:
        raise TestbedError(f"{client.name}: the download's observer ended with {process.returncode}{process.tail()}")
    proxy_counters, origin_counters = added.read()
    seen: dict[str, Any] = json.loads(client.read(target))
    names = [path.name for path in lab.paths]
    samples = tuple(Sample(moment, dict(zip(names, octets, strict=True))) for moment, octets in seen.pop("samples"))
    return Observation(**seen, samples=samples, proxy_counters=proxy_counters, origin_counters=origin_counters)


def download(
    lab: Lab, argv: Sequence[str], *, timeout: float, may_time_out: bool = False, **options: Any
) -> Observation:
    """Observe a download, with the *options* of :func:`observe`.

    Raises TestbedError if the download fails. A timeout is no failure if it *may_time_out*.
    """
    seen = observe(lab, argv, timeout=timeout, **options)
    if seen.timed_out and not may_time_out:
        raise TestbedError(f"download by {argv[0]}: not ended within {timeout:g} s")
    if not seen.timed_out and seen.status != 0:
        raise TestbedError(f"download by {argv[0]}: it ended with {seen.status}: {seen.error_output}")
    return seen


def wget(url: str, *, proxy: Proxy | None = None, source: str | None = None, multipath: bool = False) -> list[str]:
    """Return the command of a wget that writes *url* to its standard output."""
    argv = ["wget", "-nv", "-O", "-", "--tries=1", "--timeout=20"]
    if proxy is None:
        argv.append("--no-proxy")
    else:
        argv += ["-e", "use_proxy=yes", "-e", f"http_proxy={proxy.url()}", "-e", "no_proxy="]
    if source is not None:
        argv.append(f"--bind-address={source}")
    argv.append(url)
    return mptcp_command(argv) if multipath else argv
