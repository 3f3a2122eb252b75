# SPDX-License-Identifier: GPL-2.0-or-later
"""Send many requests one after another, and count the open descriptors of Squid's workers."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..agent.counters import fallbacks
from ..agent.processes import descendants
from .host import Host
from .services import PROXY_PORT, Origin, Proxy, mptcp_command
from .transfer import Added

REQUEST_TIMEOUT = 60.0
TOTAL_TIMEOUT = 600.0
"""Maximum seconds for one request, and for all requests."""


class RequestTimes(NamedTuple):
    """Results of requests that were sent one after another, each on its own connection."""

    seconds: list[float]
    """Times from connect(2) to the last byte of the answered requests."""
    failed: int
    multipath: int
    """Number of connections that did not fall back to TCP."""


def timed_requests(host: Host, proxy: Proxy, origin: Origin, count: int) -> RequestTimes:
    """Request ``/file`` from *host* *count* times with MPTCP. Raises TestbedError after ``TOTAL_TIMEOUT`` seconds."""
    specification = {
        "proxy": [proxy.host.service_address(), PROXY_PORT],
        "target": [origin.host.service_address(), 80],
        "kind": "get",
        "at_once": 1,
        "files": [["file", origin.sizes["file"]]] * count,
        "timeout": REQUEST_TIMEOUT,
    }
    added = Added(host)
    file = host.write(f"{host.name}-requests.json", json.dumps(specification))
    answers = json.loads(host.run(mptcp_command(host.agent("fetch", str(file))), timeout=TOTAL_TIMEOUT).stdout)
    (counters,) = added.read()
    seconds = [each["end"] - each["began"] for each in answers if each["error"] is None]
    multipath = counters.get("MPTcpExtMPCapableSYNTX", 0) - fallbacks(counters)
    return RequestTimes(seconds, count - len(seconds), multipath)


class Descriptors(NamedTuple):
    """Number of open descriptors of one process, and the maximum number."""

    open: int
    limit: int


def worker_descriptors(proxy: Proxy) -> list[Descriptors]:
    """Return the descriptors of each Squid worker on this machine, without the coordinator, which has no clients."""
    workers = []
    for pid in descendants(proxy.process.pid):
        directory = Path(f"/proc/{pid}")
        with suppress(OSError):
            title = (directory / "cmdline").read_bytes().partition(b"\0")[0]
            if title.startswith(b"(squid-") and b"coord" not in title:
                # Do not use prlimit(2), which would need CAP_SYS_RESOURCE.
                limits = re.search(r"^Max open files +(\d+)", (directory / "limits").read_text(), re.MULTILINE)
                assert limits is not None
                workers.append(Descriptors(len(list((directory / "fd").iterdir())), int(limits[1])))
    return workers
