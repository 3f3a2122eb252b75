# SPDX-License-Identifier: GPL-2.0-or-later
"""Read the counters of this process's network namespace, and call a function periodically; see proc(5), nstat(8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

NET = Path("/proc/thread-self/net")


def parse_devices(text: str) -> dict[str, tuple[int, int, int]]:
    """Return, for each device in /proc/net/dev: received and sent bytes with Ethernet headers, and received packets."""
    result = {}
    for line in text.splitlines()[2:]:
        device, _, numbers = line.partition(":")
        fields = numbers.split()
        result[device.strip()] = int(fields[0]), int(fields[8]), int(fields[1])
    return result


def parse_protocols(*texts: str) -> dict[str, int]:
    """Return the counters in *texts*, those of /proc/net/snmp and /proc/net/netstat, by their nstat(8) names."""
    result = {}
    for text in texts:
        lines = [line.split() for line in text.splitlines()]
        # zip(strict=) would need Python 3.10.
        for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905
            for name, value in zip(names[1:], values[1:]):  # noqa: B905
                result[names[0].rstrip(":") + name] = int(value)
    return result


def increments(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counters that changed, with their increments."""
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def fallbacks(added: Mapping[str, int]) -> int:
    """Return the number of connections that became plain TCP (RFC 8684, 3.7), from the counters' increments."""
    return sum(
        value
        for name, value in added.items()
        if name.startswith("MPTcpExt") and ("Fallback" in name or "InfiniteMap" in name)
    )


def read_devices() -> dict[str, tuple[int, int, int]]:
    return parse_devices((NET / "dev").read_text())


def read_protocols() -> dict[str, int]:
    return parse_protocols((NET / "snmp").read_text(), (NET / "netstat").read_text())


class PeriodicCalls:
    """A thread that calls *take* every *interval* seconds, from :meth:`start` to :meth:`stop`."""

    def __init__(self, take: Callable[[], object], interval: float) -> None:
        self.error: Exception | None = None
        """The error that *take* raised. After an error, *take* is not called again."""
        self._take, self._interval = take, interval
        self._stop = threading.Event()
        self._due = 0.0
        self._thread = threading.Thread(target=self._run, name="periodic-calls", daemon=True)

    def start(self) -> None:
        """Call *take* now and raise its error; then every interval."""
        self._due = time.monotonic()
        self._take()
        self._thread.start()

    def stop(self) -> None:
        """Stop the calls and wait for the last one."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                # Delays must not add up. But the time between two readings must not be short either, or their rate
                # would depend on a single packet.
                self._due = max(self._due + self._interval, time.monotonic() + self._interval / 2)
                if self._stop.wait(max(0.0, self._due - time.monotonic())):
                    return
                self._take()
        except Exception as error:
            self.error = error
