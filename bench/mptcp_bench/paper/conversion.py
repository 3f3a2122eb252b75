"""Table 1: how long the proxy takes to turn a segment of MPTCP into one of TCP, and back.

A client sends requests one after the other, each on a connection of its own and with a target of its own; tcpdump on
the proxy's host stamps both sides; ``conversion_analysis`` makes intervals of the stamps. Rules:

- The shipped configuration, but that connections to the origin are not kept: one that is used again has no SYN.
- Every request is done by Multipath TCP where that is wanted: a run with one that fell back is no data point. The same
  requests by plain TCP through the same proxy, each time right before or after, show what Multipath TCP adds.
- Waiting is distinguished from converting. Paths delay a connection in the bulk downloads alone: bytes wait there in
  the proxy for the client's window, as they do in any proxy between a fast link and a slow one.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.agent.processors import usage
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Host, Lab
from mptcp_lab.testbed.services import PROXY_PORT, SQUID_CONFIG, Origin, Proxy, mptcp_command, start_origin, start_proxy
from mptcp_lab.testbed.transfer import Added, processors_of

from ..statistics import percentile
from .conversion_analysis import Body, Exchange, exchanges
from .conversion_capture import captured, device_towards
from .conversion_streams import Leg, follow
from .results import BULK, DATA, DOWN, IDLE, STREAM, SYN, UP, WHOLE, Case, Reference, Run

SCENARIO = "table1"
ATTEMPTS = 3
"""How often a workload is tried before its repetition goes without a run."""
OVERHEAD = 2.2
"""Seconds that a capture takes beside its requests."""
ORIGIN_PORT = 80
REQUEST_TIMEOUT = 20
"""Seconds for one request."""

MPTCP, TCP = "mptcp", "tcp"
PROTOCOLS = {MPTCP: "Multipath TCP", TCP: "plain TCP"}
"""Of the client: the cases."""

WHOLE_SYN, OWN_SYN, OWN_REQUEST = "syn_whole", "syn_own", "request_own"
HANDSHAKE, ANSWER, REQUEST_WAIT, RESPONSE = "handshake", "answer", "request_wait", "response"
PARTS = (HANDSHAKE, ANSWER, REQUEST_WAIT, WHOLE_SYN, OWN_SYN, OWN_REQUEST, RESPONSE)
"""Fields of ``conversion_analysis.Exchange`` whose medians are metrics: what the intervals of Table 1 are made of."""

_DATA = 0.0153311 + 0.0080645
REFERENCES = (
    *(Reference(kind, 0.0078341 + 0.0006805, "paper, SYN: 8.5 ms") for kind in (SYN, WHOLE)),
    *(Reference(kind, _DATA, "paper, data: 23.4 ms") for kind in (DATA, STREAM, BULK)),
)
"""Table 1: 0.0078341 + 0.0006805 s and 0.0153311 + 0.0080645 s."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of request, sent some number of times."""

    key: str
    requests: int
    down: int
    """Octets of the file that is fetched."""
    up: int = 0
    """Octets of content that the request carries."""
    pace: int = 40
    """Requests a second, at most; the next one is not begun before the last one is over."""
    origin_rate: int | None = None
    """Bits per second to which the origin's link is shaped, so that the proxy never waits for the client."""

    @property
    def seconds(self) -> float:
        """About how long the requests take."""
        sending = 8 * (self.down + self.up) / (self.origin_rate or 50_000_000)
        return self.requests * max(1 / self.pace, sending)


@dataclass(frozen=True, slots=True)
class Conversions:
    """What was measured of a workload."""

    exchanges: tuple[Exchange, ...]
    idle: float
    """Share of the processor time of the proxy's host that was idle meanwhile."""


SMALL = Workload("small", 120, 1024)
PACED = Workload("paced", 5, 262_144, origin_rate=10_000_000)
FAST = Workload("bulk", 4, 1_048_576)
UPLOAD = Workload("upload", 20, 1024, up=65_536)
WORKLOADS = (SMALL, PACED, FAST, UPLOAD)
ROUNDS, QUICK_ROUNDS = 5, 1
_numbers = count(1)


def workloads(*, emulated: bool) -> tuple[Workload, ...]:
    """Return what can be measured; the link of a real origin is not ours to shape."""
    return tuple(w for w in WORKLOADS if emulated or w.origin_rate is None)


def cases() -> tuple[Case, ...]:
    return tuple(Case(key, title, {"client": title}) for key, title in PROTOCOLS.items())


def rounds(*, quick: bool) -> int:
    return QUICK_ROUNDS if quick else ROUNDS


def estimate(repetitions: int, *, emulated: bool = True) -> float:
    """Return about how many seconds :func:`runs` takes."""
    return repetitions * len(PROTOCOLS) * sum(OVERHEAD + w.seconds for w in workloads(emulated=emulated))


def runs(
    lab: Lab,
    *,
    congestion_control: str,
    repetitions: int,
    seed: int,
    advance: Callable[[float], None] = lambda seconds: None,
) -> Iterator[Run]:
    """Start origin and proxy on *lab* and measure *repetitions* times, in an order drawn from *seed*.

    Each repetition yields one run of each protocol with all workloads. What is no data point is yielded with its
    reason and tried again a few times. *advance* gets how many seconds of :func:`estimate` are done.

    :raises TestbedError: origin or proxy does not start
    """
    todo = workloads(emulated=lab.emulated)
    draw = random.Random(seed)
    origin = start_origin(lab.origin, {f"{w.down}.bin": w.down for w in todo}, ports=(ORIGIN_PORT,))
    proxy = start_proxy(
        lab.proxy, squid_configuration(lab.proxy), arguments=("--congestion-control", congestion_control)
    )
    done = 0.0
    for number in range(1, repetitions + 1):
        measured: dict[str, dict[str, Conversions]] = {protocol: {} for protocol in PROTOCOLS}
        for workload in draw.sample(todo, len(todo)):
            for protocol in draw.sample(list(PROTOCOLS), len(PROTOCOLS)):
                for _ in range(ATTEMPTS):
                    try:
                        got = measure(lab, proxy, origin, workload, multipath=protocol == MPTCP)
                    except TestbedError as error:
                        yield Run(protocol, number, valid=False, reason=str(error))
                    else:
                        measured[protocol][workload.key] = got
                        break
                done += OVERHEAD + workload.seconds
                advance(done)
        for protocol, parts in measured.items():
            if len(parts) == len(todo):
                yield run_of(protocol, number, parts)


def run_of(protocol: str, number: int, measured: Mapping[str, Conversions]) -> Run:
    """Return a run of what was *measured* of all workloads."""
    parts = {key: conversions.exchanges for key, conversions in measured.items()}
    small, paced = parts[SMALL.key], parts.get(PACED.key, ())
    seconds = {
        f"{SYN} {UP}": [e.syn for e in small],
        f"{WHOLE} {UP}": [e.syn_whole for e in small],
        f"{DATA} {UP}": [e.request for e in small],
        f"{DATA} {DOWN}": [value for e in small for value in e.down],
        f"{STREAM} {UP}": [value for e in parts[UPLOAD.key] for value in e.up],
        f"{STREAM} {DOWN}": [value for e in paced for value in e.down],
        f"{BULK} {DOWN}": [value for e in parts[FAST.key] for value in e.down],
    }
    delays = {name: tuple(round(value, 9) for value in values) for name, values in seconds.items() if values}
    values = {median(name): percentile(values, 50) for name, values in delays.items()}
    values |= {part: percentile([getattr(e, part) for e in small], 50) for part in PARTS}
    values[IDLE] = measured[SMALL.key].idle
    return Run(protocol, number, valid=True, values=values, distributions=delays)


def median(distribution: str) -> str:
    """Return the name of the metric: the median of *distribution*."""
    return f"median_{distribution.replace(' ', '_')}"


def squid_configuration(proxy: Host) -> Path:
    """Write the shipped configuration, with a connection to the origin for each request, and return the file."""
    return proxy.write(f"{SCENARIO}-squid.conf", f"{SQUID_CONFIG.read_text()}\nserver_persistent_connections off\n")


def measure(lab: Lab, proxy: Proxy, origin: Origin, workload: Workload, *, multipath: bool) -> Conversions:
    """Have the client send the requests of *workload* through *proxy*, and return how each went.

    The origin must have a file ``{workload.down}.bin``, the proxy a configuration as of :func:`squid_configuration`.

    :raises TestbedError: a request failed, the client's connections were not of the kind wanted, or the capture has
        gaps (``CaptureError``): the run is no data point
    """
    file, label = f"{workload.down}.bin", f"n{next(_numbers)}"
    wanted = {f"/{file}?{label}-{i}": Body(workload.up, workload.down) for i in range(1, workload.requests + 1)}
    address = lab.origin.service_address()
    devices = dict.fromkeys((*lab.proxy_devices, device_towards(lab.proxy, address)))
    expression = f"tcp port {PROXY_PORT} or (tcp port {ORIGIN_PORT} and host {address})"
    with ExitStack() as stack:
        if workload.origin_rate is not None:
            stack.enter_context(_slow_origin(lab, workload.origin_rate))
        packets = stack.enter_context(captured(lab.proxy, tuple(devices), expression))
        added, processors = Added(lab.client, lab.proxy), processors_of(lab.proxy)
        url = f"{origin.url(file)}?{label}-[1-{workload.requests}]"
        _send(lab.client, proxy.url(), url, workload, multipath=multipath)
        counters, used = added.read(), usage(processors, processors_of(lab.proxy))
    client, server = Leg(PROXY_PORT), Leg(ORIGIN_PORT, ip_address(address).packed)
    follow(packets, client, server)
    for name, value in (counted for side in counters for counted in side.items()):
        if fallbacks({name: value}):
            raise TestbedError(f"{value} connections fell back to plain TCP ({name})")
    measured = exchanges(client.connections, server.connections, wanted)
    _check_protocol(measured, multipath=multipath)
    return Conversions(measured, used.idle)


@contextmanager
def _slow_origin(lab: Lab, rate: int) -> Iterator[None]:
    device = device_towards(lab.origin, lab.proxy.service_address())
    root = ["dev", device, "root"]
    # A burst of two packets spaces them out; the queue holds more than a whole window.
    shaper = ["tbf", "rate", f"{rate}bit", "burst", "3028", "limit", "4mb"]
    with lab.origin.changed(["tc", "qdisc", "add", *root, *shaper], ["tc", "qdisc", "del", *root]):
        yield


def _send(client: Host, proxy: str, url: str, workload: Workload, *, multipath: bool) -> None:
    """Send the requests from one program, so that starting it takes no processor time from the proxy meanwhile."""
    argv = ["curl", "-sS", "-o", "/dev/null", "--noproxy", "", "-x", proxy, "--rate", f"{workload.pace}/s"]
    argv += ["-m", str(REQUEST_TIMEOUT), "-H", "Connection: close", "-w", r"%{http_code} %{size_download}\n"]
    if workload.up:
        content = client.write(f"{SCENARIO}-{workload.up}.txt", "x" * workload.up)
        # Without waiting for a "100 Continue": all of the content at once.
        argv += ["--data-binary", f"@{content}", "-H", "Content-Type: text/plain", "-H", "Expect:"]
    argv.append(url)
    timeout = 30 + 4 * workload.seconds
    done = client.run(mptcp_command(argv) if multipath else argv, check=False, timeout=timeout)
    answers = done.stdout.splitlines()
    good = answers.count(f"200 {workload.down}")
    if done.returncode != 0 or good != workload.requests or len(answers) != good:
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"answers {', '.join(sorted(set(answers))) or 'none'}"
        raise TestbedError(f"{good} of {workload.requests} requests were answered in full: {shlex.join(argv)}: {why}")


def _check_protocol(measured: Sequence[Exchange], *, multipath: bool) -> None:
    """Raise where a connection was not of the kind wanted, by what was on the wire."""
    wrong = [e for e in measured if e.multipath is not multipath]
    if wrong:
        got = "plain TCP" if multipath else "Multipath TCP"
        raise TestbedError(f"{len(wrong)} of {len(measured)} requests, such as {wrong[0].target}, came by {got}")
    asked = [e for e in measured if e.origin_asked]
    if asked:
        raise TestbedError(f"the proxy asked the origin for Multipath TCP, for {len(asked)} requests")
