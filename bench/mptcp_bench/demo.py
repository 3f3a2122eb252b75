"""The demo: three ways to download over Ethernet and Wi-Fi, watched live, then a table and a picture.

1. plain TCP straight to the origin, over Ethernet, then over Wi-Fi;
2. Multipath TCP through the proxy: both links at once;
3. the same while the throttler enforces conf/policy.yaml: as shipped, Ethernet 5 Mbit/s once two subflows are active.

All of it is real: Squid, Apache, wget, the kernel's MPTCP, HTB. Only the links are emulated.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import TWO_PATHS, Host, Testbed
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Origin,
    Proxy,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from . import plot, provenance, style
from .download import Download, fetch, wget
from .live import Path as NetworkPath
from .live import View
from .recorder import Recorder, mean_rate
from .shipped import POLICY, ethernet_cap

SYSCTL = Path("/proc/sys/net/ipv4")
TOLERANCE = 0.05
ETHERNET = NetworkPath("eth0", style.ETHERNET.label, style.ETHERNET.color, ETHERNET_RATE)
WIFI = NetworkPath("wlan0", style.WIFI.label, style.WIFI.color, WIFI_RATE)
PATHS = (ETHERNET, WIFI)
NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "mptcpize",
)  # fmt: skip
PAUSE = 0.8
"""Seconds between two downloads: their queues drain, and the picture shows where one ends."""
PAYLOAD_SHARE = 0.94
"""Payload in what the links carry: only for choosing how long a download takes."""


class DemoError(Exception):
    """The demo did not show what it should; the text says what."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One download and what is expected of it."""

    key: str
    name: str
    """For a table."""
    title: str
    subtitle: str
    seconds: float
    """How long it shall take, if the expectations hold."""
    settle: float
    """From the start to the steady state."""
    expected: Mapping[str, int]
    """Bits per second of each device in the steady state; a device that is left out shall be idle."""
    source: str | None = None
    """Device whose address the client binds; None goes through the proxy by Multipath TCP."""
    policy: bool = False

    @property
    def multipath(self) -> bool:
        return self.source is None

    @property
    def size(self) -> int:
        return int(sum(self.expected.values()) / 8 * PAYLOAD_SHARE * self.seconds)


def phases(cap: int) -> tuple[Phase, ...]:
    """Return the downloads; *cap* is what the policy leaves Ethernet, in bits per second."""
    return (
        Phase(
            "tcp-ethernet",
            "TCP, Ethernet",
            "TCP over Ethernet",
            "straight to the origin",
            6,
            1.0,
            {"eth0": ETHERNET_RATE},
            "eth0",
        ),
        Phase(
            "tcp-wifi",
            "TCP, Wi-Fi",
            "TCP over Wi-Fi",
            "straight to the origin",
            6,
            1.0,
            {"wlan0": WIFI_RATE},
            "wlan0",
        ),
        Phase(
            "mptcp",
            "MPTCP",
            "MPTCP through the proxy",
            "no policy: both links at once",
            9,
            1.0,
            {"eth0": ETHERNET_RATE, "wlan0": WIFI_RATE},
        ),
        Phase(
            "mptcp-policy",
            "MPTCP, policy",
            "MPTCP through the proxy + policy",
            f"Ethernet {cap / 1e6:g} Mbit/s once two subflows are active",
            16,
            5.0,
            {"eth0": min(cap, ETHERNET_RATE), "wlan0": WIFI_RATE},
            policy=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A download, its steady state, and what is wrong with it."""

    phase: Phase
    download: Download
    steady: Mapping[str, float]
    complaints: tuple[str, ...]
    congestion_control: tuple[str, ...] = ()
    """What the proxy's subflows to the client used; empty where the download did not go through the proxy."""


def judge(phase: Phase, download: Download, steady: Mapping[str, float]) -> tuple[str, ...]:
    """Return what of *phase*'s expectations was not met, in plain words."""
    complaints = []
    if not download.digest_ok:
        complaints.append("the bytes received are not those the origin has (SHA-256)")
    protocol = download.protocol.complaint(multipath=phase.multipath)
    if protocol is not None:
        complaints.append(protocol)
    for path in PATHS:
        rate = steady[path.device]
        expected = phase.expected.get(path.device)
        shown = f"{path.label} carried {rate / 1e6:.1f} Mbit/s in the steady state"
        if expected is None:
            if rate > 0.01 * path.rate:
                complaints.append(f"{shown} and should have been idle")
        elif not (1 - TOLERANCE) * expected <= rate <= (1 + TOLERANCE) * expected:
            complaints.append(f"{shown} instead of {expected / 1e6:g} within {TOLERANCE:.0%}")
    return tuple(complaints)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the downloads have in common."""

    testbed: Testbed
    origin: Origin
    proxy: Proxy
    recorder: Recorder
    view: View


def congestion_control(proxy: Host) -> frozenset[str]:
    """Return the congestion control of the subflows between *proxy* and its client, as ss(8) tells."""
    shown = proxy.run(["ss", "-Htin", "state", "established", "sport", "=", f":{PROXY_PORT}"]).stdout
    known = (SYSCTL / "tcp_available_congestion_control").read_text().split()
    return frozenset(word for word in shown.split() if word in known)


def measure(stage: Stage, phase: Phase) -> Outcome:
    """Run one download and judge it."""
    recorder, view = stage.recorder, stage.view
    client = stage.testbed["client"]
    source = client.address(phase.source) if phase.source else None
    through = stage.proxy if phase.multipath else None
    argv = wget(stage.origin.url(phase.key), proxy=through, source=source, multipath=phase.multipath)
    controls: frozenset[str] = frozenset()

    def watch() -> None:
        nonlocal controls
        if through is not None and not controls:
            controls = congestion_control(through.host)
        view.refresh()

    view.begin(f"{phase.title}: {phase.subtitle}")
    download = fetch(
        stage.testbed,
        stage.origin,
        phase.key,
        argv,
        lambda: recorder.now,
        label=phase.key,
        timeout=4 * phase.seconds + 10,
        watch=watch,
    )
    start, end = download.start + phase.settle, download.end - 0.3
    complaints: tuple[str, ...] = ()
    if end - start < 1:
        complaints = (f"over after {download.end - download.start:.1f} s, before a steady state",)
        start = download.start
    steady = {path.device: mean_rate(recorder.samples, path.device, start, end) for path in PATHS}
    found = tuple(sorted(controls))
    outcome = Outcome(phase, download, steady, (*complaints, *judge(phase, download, steady)), found)
    sign = "[green]✓[/]" if not outcome.complaints else "[red]✗[/]"
    by = f", congestion control of the proxy towards the client: {', '.join(found)}" if found else ""
    view.finish(f"{sign} {phase.title}: {download.goodput / 1e6:.1f} Mbit/s of payload{by}")
    for complaint in outcome.complaints:
        view.finish(f"    [red]{complaint}[/]")
    return outcome


def table(outcomes: list[Outcome]) -> Table:
    """Return the demo's results as a table that fits into 80 columns."""
    result = Table(
        title="Mbit/s; each path in the steady state, measured / expected", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    result.add_column("download", no_wrap=True)
    result.add_column("payload", justify="right")
    for path in PATHS:
        result.add_column(path.label, justify="right", style=path.color, no_wrap=True)
    result.add_column("subflows", justify="right")
    result.add_column("MB", justify="right")
    result.add_column("SHA-256")
    for outcome in outcomes:
        phase, download = outcome.phase, outcome.download
        cells = [phase.name, f"{download.goodput / 1e6:.1f}"]
        for path in PATHS:
            expected, rate = phase.expected.get(path.device), outcome.steady[path.device] / 1e6
            wanted = "idle" if expected is None else f"{expected / 1e6:g}"
            cells.append(f"{rate:.{2 if rate < 10 else 1}f} / {wanted}")
        cells.append(str(1 + download.protocol.joins) if phase.multipath else "TCP")
        cells += [f"{download.octets / 1e6:.1f}", "equal" if download.digest_ok else "differs"]
        result.add_row(*cells, style=None if not outcome.complaints else "bold red")
    return result


def draw(target: Path, recorder: Recorder, outcomes: list[Outcome], cap: int) -> None:
    """Write the picture."""
    bands = [
        plot.Band(
            outcome.download.start,
            outcome.download.end,
            outcome.phase.title,
            outcome.phase.subtitle,
            f"{outcome.download.goodput / 1e6:.0f} Mbit/s of payload",
        )
        for outcome in outcomes
    ]
    capped = [number for number, outcome in enumerate(outcomes) if outcome.phase.policy]
    plot.throughput(
        target,
        recorder.samples,
        PATHS,
        bands=bands,
        levels=[plot.Level(n, cap, f"cap on Ethernet: {cap / 1e6:g} Mbit/s", ETHERNET.color) for n in capped],
        title="Four downloads over an Ethernet link of 100 Mbit/s and a Wi-Fi link of 30 Mbit/s",
        subtitle="wget from Apache; Multipath TCP ends at the proxy, which goes on by plain TCP. "
        "Shown are bytes on the wire at the client, mean over 0.3 s.",
    )


def save(output: Path, recorder: Recorder, outcomes: list[Outcome]) -> None:
    """Write the numbers and the samples."""
    results: dict[str, Any] = {
        "downloads": [
            {
                "name": o.phase.key,
                "title": o.phase.title,
                "goodput": round(o.download.goodput),
                "steady": {d: round(r) for d, r in o.steady.items()},
                "expected": dict(o.phase.expected),
                "complaints": list(o.complaints),
                "congestion_control": list(o.congestion_control),
                **asdict(o.download),
            }
            for o in outcomes
        ]
    }
    (output / "demo.json").write_text(provenance.document(provenance.collect(), results))
    with (output / "samples.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", *(f"{path.device}_bytes" for path in PATHS)])
        for sample in recorder.samples:
            writer.writerow([f"{sample.time:.4f}", *(sample.octets[path.device] for path in PATHS)])


def save_logs(output: Path, testbed: Testbed) -> None:
    for log in sorted(testbed.directory.glob("**/*.log")):
        shutil.copyfile(log, output / "-".join(log.relative_to(testbed.directory).parts))


def run(output: Path, console: Console) -> None:
    """Run the demo and leave its files in *output*; raise where something is not as it should be."""
    lacking = [reason for reason in map(missing, NEEDED) if reason is not None]
    if lacking:
        raise DemoError("this host cannot run the demo:\n" + "\n".join(f"  - {reason}" for reason in lacking))
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("*.log"), *output.glob("demo.json"), *output.glob("*.png"), *output.glob("*.csv")):
        old.unlink()
    cap = ethernet_cap()
    with Testbed(TWO_PATHS) as testbed:
        try:
            _downloads(testbed, output, console, cap)
        finally:
            save_logs(output, testbed)


def _downloads(testbed: Testbed, output: Path, console: Console, cap: int) -> None:
    console.print("Building client, core, proxy and origin; starting Apache and the proxy …", style="dim")
    planned = phases(cap)
    origin = start_origin(testbed["origin"], {phase.key: phase.size for phase in planned})
    proxy = start_proxy(testbed["proxy"])
    outcomes = []
    recorder = Recorder(testbed["client"], [path.device for path in PATHS])
    with recorder, View(console, recorder, PATHS) as view:
        stage = Stage(testbed, origin, proxy, recorder, view)
        for phase in planned:
            if phase.policy:
                start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], POLICY))
            outcomes.append(measure(stage, phase))
            view.rest(PAUSE)
    picture = output / "throughput.png"
    draw(picture, recorder, outcomes, cap)
    save(output, recorder, outcomes)
    console.print()
    console.print(table(outcomes))
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"Numbers and logs: {output}", highlight=False, soft_wrap=True)
    failed = [o.phase.title for o in outcomes if o.complaints]
    if failed:
        raise DemoError(f"not as it should be: {'; '.join(failed)} (see above)")
