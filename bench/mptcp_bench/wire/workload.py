# SPDX-License-Identifier: GPL-2.0-or-later
"""Send requests one after another, each on its own connection, and measure the proxy's time for each.

tcpdump on the proxy's host records the time of each packet on both sides, from which ``exchanges`` computes intervals.
"""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count

from mptcp_lab.agent.processors import Usage, usage
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Host, Lab
from mptcp_lab.testbed.services import PROXY_PORT, Origin, mptcp_command
from mptcp_lab.testbed.transfer import Added, Protocol, processors_of

from .capture import capture_segments, device_towards
from .exchanges import Body, Exchange, exchanges
from .streams import Leg, follow

ORIGIN_PORT = 80
REQUEST_TIMEOUT = 20
MAX_PER_SECOND = 40
"""Maximum number of requests per second. Each request waits until the previous one has ended."""
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of request, which is sent *requests* times."""

    requests: int
    down: int
    """Bytes of the downloaded file."""
    up: int = 0
    """Bytes of the request's body."""
    origin_rate: int | None = None
    """Rate in bits per second to which the origin's link is limited, so that the proxy never waits for the client."""


def measure(
    lab: Lab, proxy: str, origin: Origin, workload: Workload, *, multipath: bool
) -> tuple[tuple[Exchange, ...], Usage]:
    """Send the requests of *workload* from the client through the *proxy* URL.

    Return the times of each request, and the processor usage of the proxy's host at the same time. The origin needs a
    file ``{workload.down}.bin``; the proxy must open an origin connection for each request. Raises TestbedError if a
    request failed, a connection had the wrong protocol, or the capture has gaps.
    """
    file, label = f"{workload.down}.bin", f"n{next(_numbers)}"
    wanted = {f"/{file}?{label}-{i}": Body(workload.up, workload.down) for i in range(1, workload.requests + 1)}
    address = lab.origin.service_address()
    devices = dict.fromkeys((*lab.proxy_devices, device_towards(lab.proxy, address)))
    expression = f"tcp port {PROXY_PORT} or (tcp port {ORIGIN_PORT} and host {address})"
    with ExitStack() as stack:
        if workload.origin_rate is not None:
            stack.enter_context(_slow_origin(lab, workload.origin_rate))
        packets = stack.enter_context(capture_segments(lab.proxy, tuple(devices), expression))
        added, processors = Added(lab.client, lab.proxy), processors_of(lab.proxy)
        url = f"{origin.url(file)}?{label}-[1-{workload.requests}]"
        send(lab.client, url, workload, multipath=multipath, proxy=proxy)
        protocol, used = Protocol.of(*added.read()), usage(processors, processors_of(lab.proxy))
    if (protocol.requested, protocol.fallbacks, protocol.proxy_requested) != (workload.requests * multipath, 0, 0):
        raise TestbedError(f"{workload.requests} requests, multipath={multipath}, used the wrong protocol: {protocol}")
    client, server = Leg(PROXY_PORT), Leg(ORIGIN_PORT, ip_address(address).packed)
    follow(packets, client, server)
    return exchanges(client.connections, server.connections, wanted), used


def _slow_origin(lab: Lab, rate: int) -> AbstractContextManager[None]:
    device = device_towards(lab.origin, lab.proxy.service_address())
    root = ["dev", device, "root"]
    # A burst of only two packets makes the spacing of packets even. The queue holds more than a whole window.
    shaper = ["tbf", "rate", f"{rate}bit", "burst", "3028", "limit", "4mb"]
    return lab.origin.changed(["tc", "qdisc", "add", *root, *shaper], ["tc", "qdisc", "del", *root])


def send(client: Host, url: str, workload: Workload, *, multipath: bool, proxy: str = "") -> None:
    """Send all requests from one program, because starting programs would take processor time from the proxy.

    *proxy* is the proxy's URL; empty to use no proxy. Raises TestbedError if a request is not answered.
    """
    through = ["--noproxy", "", "-x", proxy] if proxy else ["--noproxy", "*"]
    argv = ["curl", "-sS", "-o", "/dev/null", *through, "--rate", f"{MAX_PER_SECOND}/s"]
    argv += ["-m", str(REQUEST_TIMEOUT), "-H", "Connection: close", "-w", r"%{http_code} %{size_download}\n"]
    if workload.up:
        content = client.write(f"upload-{workload.up}.txt", "x" * workload.up)
        # An empty Expect header, so that curl sends the body without waiting for "100 Continue".
        argv += ["--data-binary", f"@{content}", "-H", "Content-Type: text/plain", "-H", "Expect:"]
    argv.append(url)
    ended = client.run(mptcp_command(argv) if multipath else argv, check=False, timeout=30 + workload.requests)
    answers = ended.stdout.splitlines()
    complete = answers.count(f"200 {workload.down}")
    if ended.returncode != 0 or complete != workload.requests or len(answers) != complete:
        got = f"answers {', '.join(sorted(set(answers))) or 'none'}"
        reason = [got, *ended.stderr.strip().splitlines()][-1]
        raise TestbedError(f"{complete} of {workload.requests} requests were answered: {shlex.join(argv)}: {reason}")
