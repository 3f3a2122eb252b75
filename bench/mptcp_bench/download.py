"""One download with wget, watched: what came, how fast, over which paths, and was it Multipath TCP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.services import Origin, Proxy, mptcp_command

POLL = 0.05


@dataclass(frozen=True, slots=True)
class Protocol:
    """What the kernel's counters say of one download."""

    requested: int
    """MPTCP connections that the client asked for."""
    fallbacks: int
    """… that became plain TCP."""
    joins: int
    """Joined subflows that were established, counted at the client."""
    proxy_requested: int
    """MPTCP connections that the proxy asked for. It has no business to: towards the origin it speaks plain TCP."""
    # Counted where the SYN leaves: an origin that listens on plain TCP counts no MP_CAPABLE that it is sent.

    def complaint(self, *, multipath: bool) -> str | None:
        """Return what is wrong for a download that should, or should not, be Multipath TCP."""
        if self.proxy_requested:
            return f"the proxy sent {self.proxy_requested} SYNs with MP_CAPABLE towards the origin"
        if multipath and not self.requested:
            return "the client opened no MPTCP connection"
        if multipath and self.fallbacks:
            return "the connection fell back to plain TCP"
        if multipath and not self.joins:
            return "no second subflow was established"
        if not multipath and self.requested:
            return "the client opened an MPTCP connection where plain TCP was wanted"
        return None


@dataclass(frozen=True, slots=True)
class Download:
    """A finished download. Times are those of the recorder's clock."""

    start: float
    end: float
    octets: int
    digest: str
    digest_ok: bool
    protocol: Protocol

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)


class Counting:
    """Differences of the protocol counters of client and proxy since it was made."""

    def __init__(self, testbed: Testbed) -> None:
        self._client, self._proxy = testbed["client"], testbed["proxy"]
        self._before = self._client.mib(), self._proxy.mib()

    def read(self) -> Protocol:
        client, proxy = self._client.mib(), self._proxy.mib()

        def more(name: str) -> int:
            return client.get(name, 0) - self._before[0].get(name, 0)

        asked = "MPTcpExtMPCapableSYNTX"
        added = [
            {name: value - before.get(name, 0) for name, value in now.items()}
            for before, now in zip(self._before, (client, proxy), strict=True)
        ]
        return Protocol(
            requested=more(asked),
            fallbacks=sum(map(fallbacks, added)),
            joins=more("MPTcpExtMPJoinSynAckRx"),
            proxy_requested=proxy.get(asked, 0) - self._before[1].get(asked, 0),
        )


def wget(
    url: str, *, proxy: Proxy | None = None, source: str | None = None, family: int = 4, multipath: bool = False
) -> list[str]:
    """Return the argv of a wget that writes *url* to its standard output."""
    argv = ["wget", "-nv", "-O", "-", "--tries=1", "--timeout=20"]
    if proxy is None:
        argv.append("--no-proxy")
    else:
        argv += ["-e", "use_proxy=yes", "-e", f"http_proxy={proxy.url(family)}", "-e", "no_proxy="]
    if source is not None:
        argv.append(f"--bind-address={source}")
    argv.append(url)
    return mptcp_command(argv) if multipath else argv


def fetch(
    testbed: Testbed,
    origin: Origin,
    name: str,
    argv: Sequence[str],
    clock: Callable[[], float],
    *,
    label: str,
    timeout: float,
    watch: Callable[[], None] = lambda: None,
) -> Download:
    """Run *argv*, which writes file *name* of *origin* to its output, and return how it went.

    *watch* is called some twenty times a second meanwhile.
    """
    counting = Counting(testbed)
    result = testbed.directory / f"digest-{label}"
    # The status of the client, not that of the program that hashes what it writes.
    script = '{ "$@"; echo $? >"$0.status"; } | sha256sum >"$0"'
    start = clock()
    process = testbed["client"].popen(["sh", "-c", script, str(result), *argv], name=label)
    deadline = time.monotonic() + timeout
    while process.running:
        watch()
        if time.monotonic() > deadline:
            process.stop()
            raise TestbedError(f"download {label}: no end after {timeout:g} s{process.tail()}")
        time.sleep(POLL)
    end = clock()
    status = result.with_name(result.name + ".status").read_text().strip()
    if status != "0":
        raise TestbedError(f"download {label}: {argv[0]} ended with {status}{process.tail()}")
    digest = result.read_text().split()[0]
    return Download(start, end, origin.sizes[name], digest, digest == origin.digests[name], counting.read())
