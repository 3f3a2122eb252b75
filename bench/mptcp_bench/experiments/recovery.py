# SPDX-License-Identifier: GPL-2.0-or-later
"""Kill -9 and restart in mid-transfer; SIGTERM, and clean-up after a crash, in mid-transfer too.

This runs with each netfilter adapter that this kernel offers, during downloads through the proxy, with conf/policy.yaml
and two more rules. One rule steers other clients by order, so that the throttler sets sysctls. The other caps uploads,
so that it creates an IFB device. A restored state can only be recognized where the start has changed something: a run
is void if the start does not change things of each kind.

- After kill -9, the keeper restores the sysctls at once. Everything else stays, and the caps are in force while no
  throttler runs. A new throttler adopts them: the same classes for the same subflows, the same entries and classes in
  the kernel. The traffic never exceeds the cap, and goodput has no gap.
- The throttler is ended by SIGTERM under a cap; later it is killed under a cap, and ``mptcp-throttler cleanup`` runs.
  Each time, the kernel's dumps (``system_state``), the processes, the BPF objects that they hold, and the files are at
  once as before the first start. After SIGTERM the keeper ends with the last connection, so processes and files are
  compared after the download.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import TWO_PATHS, LiveNode, Process, Testbed, TestbedError
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Recorder, Sample, greatest_rate, longest_gap, mean_rate
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    Throttler,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import (
    BPF,
    CLASSES,
    FAILED,
    FILES,
    LINKS,
    PROCESSES,
    QDISCS,
    SYSCTLS,
    State,
    changed_sysctls,
    differences,
    kernel_state,
    sysctls,
    whole_state,
    without,
)
from mptcp_lab.testbed.topologies import WIFI_RATE
from mptcp_lab.testbed.transfer import Added, wget

from ..shipped import POLICY, ethernet_cap
from .backends import BACKENDS, lacking
from .columns import Column, Table, Turn
from .devices import DEVICES
from .parameters import parameter, words
from .scenario import Scenario

SETTLE, DOWN, AFTER = 5.0, 2.0, 4.0
"""Seconds of the download until it is steady, seconds without a throttler, and seconds after the restart."""
CONNECTIONS = 90.0
"""Seconds until the proxy has dropped the connections of a client that vanished. It tries to deliver for a minute."""
FILE_SIZE = 200_000_000
"""Size of the file in bytes: more than the client can download before it is stopped."""
RULES = (
    {
        "name": "others-in-order",
        "when": {"clients": ["192.0.2.0/24"]},
        "steer": {"mode": "waterfall", "order": ["wifi", "ethernet"]},
    },
    {"name": "uploads", "paths": ["wifi"], "direction": "up", "throttle": {"rate": "10 Mbit/s"}},
)
"""Rules that are added to conf/policy.yaml. Neither matches the download, so its rates do not change."""
OF_PROGRAMS = (PROCESSES, BPF, FILES)
"""The parts of a whole state that are not in the kernel's state."""
CHANGED = (SYSCTLS, LINKS, QDISCS, CLASSES, "nft list ruleset", *OF_PROGRAMS)
"""The parts of the state that every start changes. Whichever adapter downloads use, uploads are shaped by nftables on
ingress."""
BEFORE = 2.0
"""Seconds before the kill over which the steady rates are measured."""
GAP = 0.25
"""Maximum seconds for which goodput may be below half of the steady rate: two and a half samples."""
WINDOW = 0.5
"""Length in seconds of every window, from the kill to the end, in which the cap must hold."""
RESTART = 10.0
"""Maximum seconds until the restarted throttler has the same caps again."""
KEEPER = 1.0
"""Maximum seconds from kill -9 until the sysctls are as before the start. The keeper needs only milliseconds of
processor time."""
LEAST, MOST = 0.95, 1.05
"""Minimum and maximum rate, as a share of a cap, a link, or the earlier goodput."""
USED = 0.9
"""Minimum rate, as a share of a cap. Senders use a cap to varying degrees: 0.94 was observed before the kill."""
SHARES: Mapping[str, tuple[float | None, float | None, str]] = {
    "Wi-Fi / its link, before": (LEAST, MOST, ""),
    "Ethernet / its cap, before": (USED, MOST, ""),
    "Ethernet / its cap, dead": (USED, MOST, ""),
    "Ethernet / its cap, after": (USED, MOST, ""),
    # The time from the end of a throttler to the next start is too short for a mean.
    f"Ethernet / its cap, greatest over {WINDOW:g} s from the kill to the end": (None, MOST, ""),
    "goodput after / before": (LEAST, None, ""),
    "longest gap in goodput": (None, GAP, " s"),
}
"""The judged values of the rates around the kill, each with its minimum, its maximum and its unit."""


@dataclass(frozen=True, slots=True)
class Settings:
    netfilter: tuple[str, ...] = parameter(
        "adapters of the throttler", ",".join(BACKENDS), words(*BACKENDS), quick="nftables"
    )


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run with one adapter."""

    shares: Mapping[str, float]
    """A download's rates around the kill, as shares; see ``SHARES``."""
    changed: Mapping[str, Sequence[str]]
    """The lines that differ in each comparison of dumps."""
    sysctls_back: float
    """Seconds from the kill until the sysctls were as before the start; infinity if they never were."""
    same_caps: float
    """Seconds from the restart until the same caps were on the same subflows; infinity if they never were."""
    exit_code: float
    """Exit code after SIGTERM; NaN if the throttler did not end."""


KEPT_BY_KILL = "dumps that changed by kill -9, less sysctls"
KEPT_BY_RESTART = "dumps that changed by the restart"
AT_STOP = "SIGTERM in mid-download: dumps that differ, less processes and files"
AFTER_STOP = "SIGTERM, after the download: dumps that differ"
AT_CLEANUP = "cleanup after kill -9, in mid-download: dumps that differ"
COMPARED = (KEPT_BY_KILL, KEPT_BY_RESTART, AT_STOP, AFTER_STOP, AT_CLEANUP)


def measure(testbed: Testbed, turn: Turn[str]) -> Measurement:
    """Start, kill, restart, stop, start, kill, clean up, and compare the kernel's state after each step."""
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file": FILE_SIZE})
    proxy = start_proxy(node)
    config = write_throttler_config(node, node.write("policy.yaml", policy()), settings={"netfilter": turn.cell})
    state = Path(throttler_mounts(node)["/run/mptcp-throttler"])
    changed: dict[str, Sequence[str]] = {}
    before = whole_state(node, state)
    with Recorder(testbed["client"], DEVICES) as recorder:
        throttler = start_throttler(node, config)
        client = download(testbed, origin, proxy, recorder, throttler)
        capped = caps(throttler)
        under = whole_state(node, state)
        unchanged = [name for name in CHANGED if before[name] == under[name]]
        if unchanged:
            raise TestbedError(f"the start changed nothing of {', '.join(unchanged)}")
        objects = without(under, *OF_PROGRAMS)
        # Wait, because the dumps take processor time from the download.
        pause(client, recorder, recorder.now + BEFORE)
        killed, sysctls_back = recorder.now, math.inf
        throttler.process.kill()
        with suppress(TestbedError):
            wait_until(lambda: are_back(before[SYSCTLS], sysctls(node)), "the sysctls are back", timeout=RESTART)
            sysctls_back = recorder.now - killed
        changed[KEPT_BY_KILL] = differences(without(objects, SYSCTLS), without(kernel_state(node), SYSCTLS))
        pause(client, recorder, killed + DOWN)
        restarted, same_caps = recorder.now, math.inf
        throttler = start_throttler(node, config)
        with suppress(TestbedError):
            wait_until(lambda: caps(throttler) == capped, "it has the same caps", timeout=RESTART)
            same_caps = recorder.now - restarted
        changed[KEPT_BY_RESTART] = differences(objects, kernel_state(node))
        ready = recorder.now
        pause(client, recorder, ready + AFTER)
        shares = shares_of(recorder.samples, killed, restarted, ready, recorder.now, ethernet_cap())
        exit_code = throttler.process.stop(grace=15)
        # Leave out processes and files, because the keeper runs until the last connection ends.
        now = without(whole_state(node, state), PROCESSES, FILES)
        changed[AT_STOP] = differences(without(before, PROCESSES, FILES), now)
        still_running(client)
        client.stop()
        changed[AFTER_STOP] = settled(before, node, state)
        throttler = start_throttler(node, config)
        client = download(testbed, origin, proxy, recorder, throttler)
        throttler.process.kill()
        cleanup = [program("mptcp-throttler"), "cleanup", "--config", str(config)]
        node.run(with_mounts(cleanup, throttler_mounts(node)))
        changed[AT_CLEANUP] = differences(before, whole_state(node, state))
        still_running(client)
        client.stop()
    return Measurement(shares, changed, sysctls_back, same_caps, math.nan if exit_code is None else exit_code)


def are_back(before: str, now: str) -> bool:
    """Return whether the sysctls are as *before*. Interfaces that were added or removed do not count."""
    return not now.startswith(FAILED) and not changed_sysctls(before, now)


def policy() -> str:
    """Return conf/policy.yaml with the additional ``RULES``, as JSON, which is valid YAML."""
    shipped = YAML(typ="safe").load(POLICY.read_text())
    return json.dumps({**shipped, "rules": [*shipped["rules"], *RULES]})


def download(testbed: Testbed, origin: Origin, proxy: Proxy, recorder: Recorder, throttler: Throttler) -> Process:
    """Start a download and return it when it is steady. Raises TestbedError without both paths, or without a cap."""
    added, begin = Added(testbed["client"], testbed["proxy"]), recorder.now
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    client = testbed["client"].popen(["sh", "-c", '"$@" >/dev/null', "sh", *argv], name="wget")
    pause(client, recorder, begin + SETTLE)
    if (complaint := Protocol.of(*added.read()).complaint(multipath=True)) is not None:
        raise TestbedError(complaint)
    if not caps(throttler):
        raise TestbedError("no subflow of the download is capped")
    return client


def still_running(client: Process) -> None:
    if not client.running:
        raise TestbedError(f"the download ended with {client.returncode} before its time{client.tail()}")


def settled(before: State, node: LiveNode, state: Path) -> list[str]:
    """Wait until nothing differs from *before*, up to ``CONNECTIONS`` seconds. Return what still differs then."""
    with suppress(TestbedError):
        wait_until(lambda: not differences(before, whole_state(node, state)), "it is as before", timeout=CONNECTIONS)
    return differences(before, whole_state(node, state))


def pause(client: Process, recorder: Recorder, until: float) -> None:
    """Wait until *until* on the clock of *recorder*. Raises TestbedError if the download ends before."""
    while recorder.now < until:
        still_running(client)
        time.sleep(0.02)


def caps(throttler: Throttler) -> dict[str, tuple[str, int]]:
    """Return the class ID and rate of each capped subflow, by the client's address and port, from the status socket."""
    subflows = (each for connection in throttler.status()["connections"] for each in connection["subflows"])
    return {each["remote"]: (each["classid"], each["rate"]) for each in subflows if each["classid"] is not None}


def shares_of(
    samples: Sequence[Sample], killed: float, restarted: float, ready: float, end: float, cap: int
) -> dict[str, float]:
    """Return the values of ``SHARES`` for a download; all times are on the clock of *samples*.

    From *ready* on, after the restart, the caps must hold again. *cap* is Ethernet's. Raises ValueError if there are
    too few samples.
    """
    ethernet, wifi = DEVICES
    before = {device: mean_rate(samples, device, killed - BEFORE, killed) for device in DEVICES}
    after = {device: mean_rate(samples, device, ready, end) for device in DEVICES}
    total = sum(before.values())
    values = (
        before[wifi] / WIFI_RATE,
        before[ethernet] / cap,
        mean_rate(samples, ethernet, killed, restarted) / cap,
        after[ethernet] / cap,
        greatest_rate(samples, ethernet, WINDOW, killed, end) / cap,
        sum(after.values()) / total if total else math.nan,
        longest_gap(samples, DEVICES, total / 2, killed, end),
    )
    return dict(zip(SHARES, values, strict=True))


def _changed(when: str) -> Column[str, Measurement]:
    return Column(when, lambda row: [len(each.changed[when]) for each in row.measured], most=0, digits=0)


def _share(name: str, least: float | None, most: float | None, unit: str) -> Column[str, Measurement]:
    return Column(
        name, lambda row: [each.shares[name] for each in row.measured], least=least, most=most, unit=unit, digits=3
    )


SCENARIO = Scenario(
    settings=Settings,
    # Whichever adapter downloads use, uploads are shaped by nftables on ingress and an IFB device.
    needs=(
        "root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "wget", "mptcpize", "nftables", "nft-ingress",
        "ifb", "bpf-pacing",
    ),
    cells=lambda chosen: chosen.netfilter,
    runs=lambda chosen, cell, variant: 1,
    attempts=lambda cell: 1,
    lacking=lacking,
    bed=lambda chosen, cells, seed: Testbed(TWO_PATHS),
    measure=measure,
    tables=[
        Table(
            "Recovery",
            [
                *map(_changed, COMPARED),
                Column("kill -9 to the sysctls as before the start", "sysctls_back", unit=" s", most=KEEPER),
                Column("restart to the same caps on the same subflows", "same_caps", unit=" s", most=RESTART),
                *(_share(name, *bounds) for name, bounds in SHARES.items()),
                Column("exit code after SIGTERM", "exit_code", least=0, most=0, digits=0),
            ],
            beside=True,
        )
    ],
)  # fmt: skip
