# SPDX-License-Identifier: GPL-2.0-or-later
"""Make the downloads of a figure on a lab, and decide whether each is a data point.

A download is not a data point if the client fell back from MPTCP, had no second subflow or received corrupted data, or
if the emulation failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from mptcp_lab.agent.processors import Usage, usage
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.mtu import mtu
from mptcp_lab.testbed.services import (
    Throttler,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import Observation, observe, processors_of, wget

from . import measures
from .parameters import Settings
from .results import LEAST_IDLE, NO_FALLBACK, Case, Run, rtt
from .scenarios import PaperFigure, Trial

HEADERS = 1.08
"""Approximate bytes on the wire per byte of payload, used only to estimate a download's duration."""
CONNECTIONS = 5
"""Number of connections over each path that measure its RTT."""
GIVEN_UP = 4
"""Seconds after which such a connection is aborted, because its packets were lost."""
SLOWEST = 4.0
"""Multiple of the expected duration of a download after which the download is aborted."""


def planned(figure: PaperFigure, *, quick: bool) -> list[Trial]:
    """Return the downloads of each repetition."""
    return [replace(each, size=each.quick) for each in figure.trials if each.in_quick] if quick else [*figure.trials]


def seconds(trial: Trial, settings: Settings) -> float:
    """Return the approximate duration of a download in seconds."""
    ethernet, wifi = settings.rate("ethernet"), settings.rate("wifi")
    if trial.alone is not None:
        rate = settings.rate(trial.alone)
    else:
        rate = wifi + (min(settings.cap, ethernet) if trial.throttled else ethernet)
    return trial.size * 8 * HEADERS / rate


def case(trial: Trial, settings: Settings) -> Case:
    """Return the case of *trial*."""
    values: dict[str, str | int | float | bool | None] = {"size": trial.size}
    if trial.receive_buffer is not None:
        values["receive_buffer"] = trial.receive_buffer
    if trial.mtu is not None:
        values["mtu"] = trial.mtu
    return Case(
        trial.key,
        trial.title,
        values,
        kind=trial.kind,
        path=trial.alone,
        caps={"ethernet": float(settings.cap)} if trial.throttled else {},
        at=float(trial.receive_buffer) if trial.kind == "sweep" and trial.receive_buffer else None,
    )


def complaint(trial: Trial, seen: Observation, digest: str) -> str | None:
    """Return why a download is not a data point; None if it is one."""
    if trial.alone and seen.status == 0 and seen.protocol.requested == 1 and not seen.protocol.fallbacks:
        return NO_FALLBACK
    if seen.timed_out:
        return f"no end after {seen.ended:.0f} s"
    if seen.status != 0:
        said = seen.said.splitlines()
        return f"the client's program ended with {seen.status}: {said[-1] if said else 'it said nothing'}"
    if seen.sha256 != digest:
        return "the bytes received are not those the origin has (SHA-256)"
    if seen.protocol.requested != 1:
        return f"the client asked for {seen.protocol.requested} Multipath TCP connections instead of one"
    return None if trial.alone else seen.protocol.complaint(multipath=True)


def data_point(
    trial: Trial,
    number: int,
    seen: Observation,
    digest: str,
    settings: Settings,
    *,
    used: Sequence[Usage],
    rtts: Mapping[str, float],
) -> Run:
    """Return run *number* of *trial*. It is valid if it is a data point.

    *digest* is the expected SHA-256, *used* the processor usage of each host, *rtts* the RTTs in seconds by path.
    """
    wrong = complaint(trial, seen, digest)
    numbers: dict[str, float] = {}
    if wrong is None:
        try:
            numbers = measures.values(seen, trial, settings.cap)
        except ValueError as error:
            wrong = f"too short to be measured: {error}"
        else:
            if least := [each.least_idle for each in used if each.least_idle is not None]:
                numbers[LEAST_IDLE] = min(least)
            numbers |= {rtt(path): seconds for path, seconds in rtts.items()}
    return Run(
        trial.key,
        number,
        valid=wrong is None,
        reason=wrong or "",
        end=seen.ended,
        series=measures.series(seen),
        values=numbers,
    )


def policy(lab: Lab, cap: int) -> str:
    """Return the policy of Figures 6 and 7 for *lab*'s client: *cap* (bits/s) for Ethernet once Wi-Fi has joined.

    The policy is JSON, which is valid YAML.
    """
    paths = {path.name: {"clients": [lab.client.address(path.device, 4)]} for path in lab.paths}
    rule = {
        "name": "spare-ethernet",
        "paths": ["ethernet"],
        "when": {"min_subflows": 2},
        "throttle": {"rate": f"{cap} bit/s"},
    }
    return json.dumps({"version": 1, "paths": paths, "rules": [rule]}, indent=1)


@contextmanager
def configured(lab: Lab, trial: Trial) -> Iterator[None]:
    """Set the client's receive buffer and MTU for *trial*; restore them at the end of the scope."""
    client = lab.client
    with ExitStack() as stack:
        if trial.receive_buffer is not None:
            key = "net.ipv4.tcp_rmem"
            least, initial, _ = map(int, client.run(["sysctl", "-n", key]).stdout.split())
            most = trial.receive_buffer
            stack.enter_context(client.sysctl(key, f"{min(least, most)} {min(initial, most)} {most}"))
        if trial.mtu is not None:
            for path in lab.paths:
                stack.enter_context(mtu(client, path.device, trial.mtu))
        yield


class Downloads:
    """Makes the downloads of one figure on a lab."""

    def __init__(
        self,
        lab: Lab,
        figure: PaperFigure,
        trials: Sequence[Trial],
        settings: Settings,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start origin and proxy on *lab*. *check* raises if the emulation failed. Raises TestbedError."""
        self._lab, self._figure, self._settings = lab, figure, settings
        self.check_emulation = check
        sizes = sorted({trial.size for trial in trials})
        self._origin = start_origin(lab.origin, {f"{size}.bin": size for size in sizes}, ports=(80,))
        self._proxy = start_proxy(lab.proxy, control=settings.congestion_control)
        self._smallest = self._origin.url(f"{sizes[0]}.bin")
        self._throttler: Throttler | None = None
        self._rtts: tuple[int, Mapping[str, float]] = (0, {})

    def run(self, trial: Trial, number: int) -> Run:
        """Make download *number* of *trial*. Raises TestbedError if it is not a data point.

        A run without a fallback is returned, because a claim is about such runs.
        """
        if self._rtts[0] != number:
            self._rtts = number, round_trips(self._lab, self._smallest)
        lab, name = self._lab, f"{trial.size}.bin"
        try:
            source = lab.client.address(lab.path(trial.alone).device) if trial.alone else None
        except KeyError as error:
            # The interface has lost its address; the argument is the message.
            raise TestbedError(str(error.args[0])) from None
        through = None if trial.alone else self._proxy
        argv = wget(self._origin.url(name), proxy=through, source=source, multipath=True)
        with configured(lab, trial):
            self._throttle(trial)
            before = [processors_of(host) for host in (lab.client, lab.proxy)]
            seen = observe(
                lab,
                argv,
                timeout=SLOWEST * seconds(trial, self._settings) + 20,
                interval=self._figure.interval,
                memory=self._figure.memory,
            )
            after = [processors_of(host) for host in (lab.client, lab.proxy)]
        run = data_point(
            trial,
            number,
            seen,
            self._origin.digests[name],
            self._settings,
            used=[usage(*readings) for readings in zip(before, after, strict=True)],
            rtts=self._rtts[1],
        )
        if not run.valid and run.reason != NO_FALLBACK:
            raise TestbedError(run.reason)
        return run

    def _throttle(self, trial: Trial) -> None:
        if self._throttler is not None and (trial.fresh_throttler or not trial.throttled):
            self._throttler.process.stop()
            self._throttler = None
        if self._throttler is None and trial.throttled:
            proxy = self._lab.proxy
            rules = proxy.write("paper-policy.yaml", policy(self._lab, self._settings.cap))
            config = write_throttler_config(proxy, rules, interfaces=self._lab.proxy_devices)
            self._throttler = start_throttler(proxy, config)


def round_trips(lab: Lab, url: str) -> dict[str, float]:
    """Return, by path, the minimum seconds until a connection to *url* was open, if any connection opened."""
    found = {}
    for path in lab.paths:
        source = lab.client.address(path.device)
        argv = ["curl", "-sS", "-I", "-o", "/dev/null", "--noproxy", "*", "--interface", source, "-m", str(GIVEN_UP)]
        argv += ["-H", "Connection: close", "-w", r"%{time_connect}\n", f"{url}?[1-{CONNECTIONS}]"]
        said = lab.client.run(argv, check=False, timeout=2 * GIVEN_UP * CONNECTIONS).stdout
        if opened := [seconds for seconds in map(float, said.split()) if seconds > 0]:
            found[path.name] = min(opened)
    return found
