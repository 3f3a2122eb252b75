# SPDX-License-Identifier: GPL-2.0-or-later
"""What remains after the throttler's end during a download: by kill -9 with a restart or a clean-up, and by SIGTERM.

Each netfilter adapter that this kernel offers is measured, with conf/policy.yaml and two more rules. One rule steers
other clients by order, so that the throttler sets sysctls. The other caps uploads, so that it creates an IFB device. A
run counts only if the start changes every part in ``CHANGED_PARTS``, because otherwise the run cannot show that the
part is restored.

- After kill -9, the keeper restores the sysctls at once. Everything else stays, and the caps are in force while no
  throttler runs. A new throttler adopts them: the same classes for the same subflows, the same entries and classes in
  the kernel. The traffic never exceeds the cap, and goodput has no gap.
- The throttler gets SIGTERM under a cap. Later it is killed under a cap, and ``mptcp-throttler cleanup`` runs. Each
  time, the kernel's dumps (``system_state``), the processes, the BPF objects that they hold, and the files must be the
  same as before the first start: processes and files after SIGTERM at the end of the download, all others at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import TWO_PATHS, Process, Testbed, TestbedError, services
from mptcp_lab.testbed import system_state as dumps
from mptcp_lab.testbed.recorder import Recorder, Sample, greatest_rate, longest_gap, mean_rate
from mptcp_lab.testbed.services import Origin, Proxy, Throttler
from mptcp_lab.testbed.topologies import WIFI_RATE
from mptcp_lab.testbed.transfer import Added, Protocol, wget

from .columns import Table, Turn, columns_of, figure
from .devices import DEVICES
from .parameters import choices
from .scenario import Scenario
from .setup import BACKENDS, FILE_SIZE, POLICY, ethernet_cap, lacking

SETTLE_SECONDS, BEFORE_SECONDS, DOWN_SECONDS, AFTER_SECONDS = 5.0, 2.0, 2.0, 4.0
"""Seconds of the download: until it is steady, from then to the kill, without a throttler, and after the restart."""
DROP_TIMEOUT = 90.0
"""Seconds until the proxy has dropped the connections of a client that vanished. It retransmits for a minute."""
RULES = """
  - {name: others-in-order, when: {clients: [192.0.2.0/24]}, steer: {mode: waterfall, order: [wifi, ethernet]}}
  - {name: uploads, paths: [wifi], direction: up, throttle: {rate: 10 Mbit/s}}
"""
"""Rules that are appended to conf/policy.yaml. Neither matches the download, so its rates do not change."""
PROCESS_PARTS = (dumps.PROCESSES, dumps.BPF, dumps.FILES)
"""The dumps of ``whole_state`` that ``kernel_state`` lacks."""
CHANGED_PARTS = (dumps.SYSCTLS, dumps.LINKS, dumps.QDISCS, dumps.CLASSES, "nft list ruleset", *PROCESS_PARTS)
"""The dumps that every start of the throttler changes."""
MAX_GAP_SECONDS = 0.25
"""Maximum seconds for which goodput may be below half of the steady rate: two and a half samples."""
WINDOW_SECONDS = 0.5
"""Length in seconds of every window, from the kill to the end, in which the cap must hold."""
RESTART_TIMEOUT, MAX_RESTORE_SECONDS = 10.0, 1.0
"""Maximum seconds until the restarted throttler has the same caps again, and from kill -9 until the sysctls are as
before the start."""
MIN_RATE, MAX_RATE = 0.95, 1.05
"""Minimum and maximum rate, as a share of a cap, a link, or the earlier goodput."""
MIN_CAP_USE = 0.9
"""Minimum rate of a capped path, as a share of its cap. Senders use a cap to varying degrees: 0.94 was observed."""


@dataclass(frozen=True, slots=True)
class Settings:
    netfilter: tuple[str, ...] = choices("netfilter adapters of the throttler", BACKENDS, quick="nftables")


def _cap_share(heading: str, least: float | None = MIN_CAP_USE) -> Any:
    """Return a field for Ethernet's rate as a share of its cap."""
    return figure(f"Ethernet / its cap, {heading}", least=least, most=MAX_RATE, digits=3)


def _no_lines(heading: str) -> Any:
    """Return a field for lines of dumps, of which there must be none."""
    return figure(heading, most=0, digits=0)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurements of one run. Lines are those that differ between two dumps."""

    wifi_before: float = figure("Wi-Fi / its link, before", least=MIN_RATE, most=MAX_RATE, digits=3)
    ethernet_before: float = _cap_share("before")
    ethernet_killed: float = _cap_share("without a throttler")
    ethernet_after: float = _cap_share("after")
    # The greatest rate, because a mean would hide a cap that is missing for a moment.
    greatest: float = _cap_share(f"greatest over {WINDOW_SECONDS:g} s from the kill to the end", None)
    goodput: float = figure("goodput after / before", least=MIN_RATE, digits=3)
    gap: float = figure("longest gap in goodput", most=MAX_GAP_SECONDS, unit=" s", digits=3)
    restored: float = figure("kill -9 until the sysctls are restored", unit=" s", most=MAX_RESTORE_SECONDS)
    same_caps: float = figure("restart until the same subflows have the same caps", unit=" s", most=RESTART_TIMEOUT)
    exit_code: float = figure("exit code after SIGTERM", least=0, most=0, digits=0)
    after_kill: tuple[str, ...] = _no_lines("lines changed by kill -9, without sysctls")
    after_restart: tuple[str, ...] = _no_lines("lines changed by the restart")
    at_stop: tuple[str, ...] = _no_lines("SIGTERM during a download: lines that differ, without processes and files")
    after_stop: tuple[str, ...] = _no_lines("SIGTERM, after the download: lines that differ")
    after_cleanup: tuple[str, ...] = _no_lines("cleanup after kill -9, during a download: lines that differ")


def measure(testbed: Testbed, turn: Turn[str]) -> Measurement:
    """Start, kill, restart, stop, start, kill and clean up. Compare the state of the host after each step."""
    node = testbed["proxy"]
    origin = services.start_origin(testbed["origin"], {"file": FILE_SIZE})
    proxy = services.start_proxy(node)
    policy = node.write("policy.yaml", POLICY.read_text() + RULES)
    config = services.write_throttler_config(node, policy, settings={"netfilter": turn.cell})
    state = partial(dumps.whole_state, node, Path(services.throttler_mounts(node)["/run/mptcp-throttler"]))
    before = state()
    with Recorder(testbed["client"], DEVICES) as recorder:
        throttler = services.start_throttler(node, config)
        client = _download(testbed, origin, proxy, recorder, throttler)
        capped, running = _caps(throttler), state()
        unchanged = [name for name in CHANGED_PARTS if before[name] == running[name]]
        if unchanged:
            raise TestbedError(f"the start did not change {', '.join(unchanged)}")
        objects = dumps.without_dumps(running, *PROCESS_PARTS)
        # The dumps take processor time from the download.
        _pause(client, recorder, BEFORE_SECONDS)
        killed = recorder.now
        throttler.process.kill()

        def restored() -> bool:
            """Return whether the sysctls are as before. Interfaces that were added or removed do not count."""
            return not dumps.changed_sysctls(before[dumps.SYSCTLS], dumps.sysctls(node))

        restored_after = _seconds_until(restored, RESTART_TIMEOUT)
        after_kill = _differences(objects, dumps.kernel_state(node), dumps.SYSCTLS)
        _pause(client, recorder, killed + DOWN_SECONDS - recorder.now)
        restarted = recorder.now
        throttler = services.start_throttler(node, config)
        started = recorder.now
        same_caps = started - restarted + _seconds_until(lambda: _caps(throttler) == capped, RESTART_TIMEOUT)
        after_restart = _differences(objects, dumps.kernel_state(node))
        in_force = recorder.now
        _pause(client, recorder, AFTER_SECONDS)
        shares = shares_of(recorder.samples, killed, restarted, in_force, recorder.now, ethernet_cap())
        exit_code = throttler.process.stop(grace=15)
        # Leave out processes and files, because the keeper runs until the last connection ends.
        at_stop = _differences(before, state(), dumps.PROCESSES, dumps.FILES)
        _pause(client, recorder, 0)
        client.stop()
        _seconds_until(lambda: not _differences(before, state()), DROP_TIMEOUT)
        after_stop = _differences(before, state())
        throttler = services.start_throttler(node, config)
        client = _download(testbed, origin, proxy, recorder, throttler)
        throttler.process.kill()
        cleanup = [services.program("mptcp-throttler"), "cleanup", "--config", str(config)]
        node.run(with_mounts(cleanup, services.throttler_mounts(node)))
        after_cleanup = _differences(before, state())
        _pause(client, recorder, 0)
        client.stop()
    return Measurement(
        **shares, restored=restored_after, same_caps=same_caps, exit_code=exit_code, after_kill=after_kill,
        after_restart=after_restart, at_stop=at_stop, after_stop=after_stop, after_cleanup=after_cleanup,
    )  # fmt: skip


def _differences(before: dumps.State, after: dumps.State, *without: str) -> tuple[str, ...]:
    """Return the lines that differ, except in the dumps *without*."""
    return tuple(dumps.differences(dumps.without_dumps(before, *without), dumps.without_dumps(after, *without)))


def _seconds_until(is_reached: Callable[[], bool], timeout: float) -> float:
    """Return the seconds until *is_reached*; infinity after *timeout*."""
    begin = time.monotonic()
    try:
        services.wait_until(is_reached, "the state is reached", timeout=timeout)
    except TestbedError:
        return math.inf
    return time.monotonic() - begin


def _download(testbed: Testbed, origin: Origin, proxy: Proxy, recorder: Recorder, throttler: Throttler) -> Process:
    """Start a download; return it when it is steady. Raises TestbedError if it lacks a path or a cap."""
    added = Added(testbed["client"], testbed["proxy"])
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    client = testbed["client"].popen(["sh", "-c", '"$@" >/dev/null', "sh", *argv], name="wget")
    _pause(client, recorder, SETTLE_SECONDS)
    if (complaint := Protocol.of(*added.read()).complaint(multipath=True)) is not None:
        raise TestbedError(complaint)
    if not _caps(throttler):
        raise TestbedError("no subflow of the download is capped")
    return client


def _pause(client: Process, recorder: Recorder, seconds: float) -> None:
    """Wait for *seconds*. Raises TestbedError if the download has ended."""
    recorder.wait(recorder.now + seconds)
    if not client.running:
        raise TestbedError(f"the download ended early with {client.returncode}{client.tail()}")


def _caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return the class ID and rate of each capped subflow, by the client's address and port, from the status socket."""
    subflows = (each for connection in throttler.status()["connections"] for each in connection["subflows"])
    return {each["remote"]: (each["classid"], each["rate"]) for each in subflows if each["classid"] is not None}


def shares_of(
    samples: Sequence[Sample], killed: float, restarted: float, in_force: float, end: float, cap: int
) -> dict[str, float]:
    """Return the shares and the gap of :class:`Measurement`. *cap* is Ethernet's cap in bits/s.

    All times are on the clock of *samples*: of the kill, of the restart, from which on the caps must hold again
    (*in_force*), and of the end. Raises ValueError if there are too few samples.
    """
    ethernet, wifi = DEVICES
    before = {device: mean_rate(samples, device, killed - BEFORE_SECONDS, killed) for device in DEVICES}
    after = {device: mean_rate(samples, device, in_force, end) for device in DEVICES}
    total = sum(before.values())
    return {
        "wifi_before": before[wifi] / WIFI_RATE,
        "ethernet_before": before[ethernet] / cap,
        "ethernet_killed": mean_rate(samples, ethernet, killed, restarted) / cap,
        "ethernet_after": after[ethernet] / cap,
        "greatest": greatest_rate(samples, ethernet, WINDOW_SECONDS, killed, end) / cap,
        "goodput": sum(after.values()) / total if total else math.nan,
        "gap": longest_gap(samples, DEVICES, total / 2, killed, end),
    }


SCENARIO = Scenario(
    settings=Settings,
    # Whichever adapter is used for downloads, uploads need nftables on ingress and an IFB device.
    needs=(
        "root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize", "nftables", "nft-ingress",
        "ifb", "bpf-pacing",
    ),
    cells=lambda chosen: chosen.netfilter,
    attempts=1,
    skip_reason=lacking,
    bed=lambda chosen, cells, seed: Testbed(TWO_PATHS),
    measure=measure,
    tables=[Table("Recovery", columns_of(Measurement), transposed=True)],
)  # fmt: skip
