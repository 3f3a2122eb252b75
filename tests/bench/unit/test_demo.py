# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo, with synthetic downloads instead of testbed and services: verdicts, output and exit status.

With a fault of the product, the demo fails on any machine. With a missed rate, it fails only if the machine had enough
processor time.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from mutants import series
from rich.console import Console

from mptcp_bench import cli
from mptcp_bench.demo import live, running
from mptcp_bench.demo.judging import Measured, Outcome, Verdict, judge, perform
from mptcp_bench.demo.parts import PATHS, PAYLOAD_SHARE, Part, parts
from mptcp_bench.shipped import ethernet_cap
from mptcp_lab.agent import processors
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Sample

CAP = 5_000_000
PARTS = {part.key: part for part in parts(CAP)}
FREE, POLICY = PARTS["mptcp"], PARTS["mptcp-policy"]
MPTCP = Protocol(requested=1, fallbacks=0, joins=1, proxy_requested=0)
TCP = Protocol(requested=0, fallbacks=0, joins=0, proxy_requested=0)
PLAIN = {"eth0": 98.5e6, "wlan0": 29.6e6}
"""Rate of plain TCP over each link, in bits/s."""
IDLE = Usage(stolen=0.0, idle=0.6, waiting=0.3, others=0.05)
BUSY = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.7)
"""Processor usage on two processors if two busy loops run at the same time as the demo."""
BURNT = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.02)
"""Processor usage if the proxy itself uses both processors all the time."""
Change = Callable[[Measured], Measured]


def good(part: Part) -> Measured:
    """Return the measurement of a machine with enough processor time."""
    steady = {"eth0": 0.0, "wlan0": 0.0}
    steady |= {device: min(float(rate), PLAIN[device]) for device, rate in part.allowed.items()}
    protocol = MPTCP if part.multipath else TCP
    return Measured(part, 0.0, part.seconds, part.size, True, protocol, steady, part.seconds - part.settle - 0.3, IDLE)


def with_(*, cut_off: bool = False, eth0: float | None = None, wlan0: float | None = None, **changed: Any) -> Change:
    """Return a function that changes a measurement: rates in Mbit/s, a download that was cut off, or other fields."""

    def change(measured: Measured) -> Measured:
        rates = {device: 1e6 * rate for device, rate in (("eth0", eth0), ("wlan0", wlan0)) if rate is not None}
        found = replace(measured, steady={**measured.steady, **rates}, **changed)
        if not cut_off:
            return found
        limit = 4 * measured.part.seconds + 10
        return replace(found, broken_off=limit, end=limit, octets=measured.octets // 2, digest_ok=False)

    return change


FELL_BACK = replace(MPTCP, fallbacks=1)
WRONG: Mapping[str, tuple[Part, Change, str]] = {
    "throttler dead": (POLICY, with_(eth0=97, throttler=-9), "the throttler ended .exit status -9."),
    "cap on the wrong path": (POLICY, with_(eth0=97, wlan0=5), "Ethernet carried 97.0 .* and its cap allows 5$"),
    "cap exceeded": (POLICY, with_(eth0=5.55), "its cap allows 5$"),
    "cut off, no cap": (POLICY, with_(cut_off=True, eth0=6), "its cap allows 5$"),
    "over before the cap could show": (POLICY, with_(steady_seconds=0.2), "before a steady state"),
    "second path unused": (FREE, with_(wlan0=0), "Wi-Fi carried 0.0 .* should have been used"),
    "no second subflow": (FREE, with_(protocol=replace(MPTCP, joins=0)), "no second subflow was established"),
    "Multipath TCP to the origin": (FREE, with_(protocol=replace(MPTCP, proxy_requested=1)), "towards the origin"),
    "other bytes": (FREE, with_(digest_ok=False), "SHA-256"),
    "plain TCP over both paths": (PARTS["tcp-ethernet"], with_(wlan0=3), "Wi-Fi carried 3.0 .* should have been idle"),
    "plain TCP that is not plain": (PARTS["tcp-wifi"], with_(protocol=MPTCP), "instead of plain TCP"),
    "link without its rate": (PARTS["tcp-ethernet"], with_(eth0=900), "and its link allows 100"),
}
"""Faults of the product or the testbed: the faulty part, its measurement, and the words that must report the fault."""
MISSED: Mapping[str, tuple[Part, Change, str]] = {
    "plain TCP": (PARTS["tcp-ethernet"], with_(eth0=75), "less than 80% of the 100 of its link"),
    "first path": (FREE, with_(eth0=78), "less than 80% of the 98.5 that plain TCP got over it"),
    "second path": (FREE, with_(wlan0=23), "Wi-Fi carried 23.0 .* less than 80% of the 29.6"),
    "capped path": (POLICY, with_(eth0=3.9), "Ethernet carried 3.9 .* less than 80% of the 5 of its cap"),
    "no end": (FREE, with_(cut_off=True), "no end after 46 s"),
    "no end, capped": (POLICY, with_(cut_off=True), "no end after 74 s"),
}
"""Faults that a busy machine may also cause."""


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_sound_download_has_no_complaint(part: Part, used: Usage) -> None:
    outcome = judge(replace(good(part), processors=used), PLAIN)
    assert (outcome.complaints, outcome.failed, outcome.busy) == ((), False, False)


def performed(*found: Measured) -> Verdict:
    """Return the verdict on the demo's parts. Their measurements are *found*, all of which must be used."""
    each = iter(found)
    said: list[Outcome] = []
    keys = list(dict.fromkeys(m.part.key for m in found))
    verdict = perform([PARTS[key] for key in keys], lambda part: next(each), said.append)
    assert said == verdict.outcomes
    assert next(each, None) is None
    return verdict


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize(("part", "change", "said"), WRONG.values(), ids=WRONG)
def test_fault_of_the_product_fails_on_any_machine(part: Part, change: Change, said: str, used: Usage) -> None:
    found = change(replace(good(part), processors=used))
    verdict = performed(found, found)
    assert re.search(said, verdict.outcomes[0].wrong[0])
    assert verdict.failure == f"not as it should be: {part.title} (see above)"
    assert performed(found, good(part)).failure is None


@pytest.mark.parametrize(("part", "change", "said"), MISSED.values(), ids=MISSED)
def test_missed_goal_fails_unless_other_programs_took_the_time(part: Part, change: Change, said: str) -> None:
    slow = change(good(part))
    busy = replace(slow, processors=BUSY)
    [complaint] = judge(slow, PLAIN).complaints
    assert re.search(said, complaint)
    better = performed(busy, good(part))
    assert (better.failure, better.warning, len(better.outcomes), len(better.final)) == (None, None, 2, 1)
    excused = performed(busy, busy)
    assert excused.failure is None
    assert f"too busy to judge: {part.title} (processors idle 0%" in (excused.warning or "")
    for used in (IDLE, BURNT):
        assert performed(busy, replace(slow, processors=used)).failure is not None


def test_rate_of_plain_tcp_in_the_same_run_is_what_a_link_can_carry() -> None:
    """On one machine Ethernet carried 91.0 and 92.4 Mbit/s, and the demo failed."""
    assert not judge(with_(eth0=91.0)(good(FREE)), PLAIN).complaints
    assert not judge(with_(eth0=75)(good(FREE)), {**PLAIN, "eth0": 85e6}).complaints
    slow = replace(with_(eth0=50)(good(PARTS["tcp-ethernet"])), processors=BUSY)
    verdict = performed(slow, slow, good(PARTS["tcp-wifi"]), with_(eth0=47)(good(FREE)))
    assert verdict.outcomes[-1].expected == {**PLAIN, "eth0": 50e6}
    assert not verdict.outcomes[-1].complaints


FILLED = 98.0, 29.0
"""Rates of the links in Mbit/s on a machine with enough processor time."""


@pytest.mark.parametrize(("after", "fails"), [(0.1, False), (3.5, False), (4.0, True), (None, True)])
def test_cap_that_comes_too_late_is_a_fault(after: float | None, fails: bool) -> None:
    """Over filled links, the download ends about 4 s after its start. The cap is set *after* seconds, or never."""
    wire = 8 * POLICY.size / PAYLOAD_SHARE
    free, capped = sum(FILLED) * 1e6, CAP + FILLED[1] * 1e6
    before = wire / free if after is None else min(after, wire / free)
    ended = before + (wire - before * free) / capped
    rates = {"eth0": lambda t: FILLED[0] if t < before else CAP / 1e6, "wlan0": lambda _: FILLED[1]}
    found = running.steady(POLICY, series(rates, ended + 1, 0.05), 0.0, ended)
    outcome = judge(replace(good(POLICY), end=ended, **found), {"eth0": FILLED[0] * 1e6, "wlan0": FILLED[1] * 1e6})
    assert [complaint.endswith("its cap allows 5") for complaint in outcome.wrong] == [True] * fails


@dataclass
class Setup:
    """Replacement for the demo's testbed: each download is *good*, or changed by *broken*."""

    directory: Path
    broken: dict[str, Change] = field(default_factory=dict)
    used: dict[str, list[Usage]] = field(default_factory=dict)
    """Processor usage of each part, by attempt. A missing part is idle."""
    samples: list[Sample] = field(default_factory=lambda: [Sample(0.0, {"eth0": 0, "wlan0": 0})])
    throttlers: int = 0
    throttler_ended: int | None = None
    downloads: list[str] = field(default_factory=list)
    interval = 0.1
    started = 0.0

    # Replacement for a testbed.
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(address=lambda device: device)

    # Replacement for a recorder.
    @property
    def now(self) -> float:
        return self.samples[-1].time

    def current(self, window: float = 0.5) -> dict[str, float]:
        return {"eth0": 0.0, "wlan0": 0.0}

    # Replacement for the services.
    def start_throttler(self, *_: object) -> Any:
        self.throttlers += 1
        return SimpleNamespace(process=SimpleNamespace(returncode=self.throttler_ended))

    def download(self, lab: object, argv: list[str], *, may_time_out: bool, **_: object) -> Any:
        label = argv[-1].rpartition("/")[2]
        self.downloads.append(label)
        part = PARTS[label]
        change, measured = self.broken.get(label), good(part)
        measured = measured if change is None else change(measured)
        start = self.now
        while self.now < start + part.seconds:
            octets = {d: self.samples[-1].octets[d] + round(rate / 80) for d, rate in measured.steady.items()}
            self.samples.append(Sample(self.now + 0.1, octets))
        return SimpleNamespace(
            began=start,
            ended=self.now - start,
            octets=measured.octets,
            sha256=label if measured.digest_ok else "another",
            protocol=measured.protocol,
            timed_out=measured.broken_off is not None,
        )

    def usage(self, *_: object) -> Usage:
        attempts = self.used.get(self.downloads[-1])
        return attempts.pop(0) if attempts else IDLE


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    setup = Setup(tmp_path / "testbed")
    origin = SimpleNamespace(url=lambda name: f"http://origin/{name}", digests={part: part for part in PARTS})
    proxy = SimpleNamespace(url=lambda family: "http://proxy", host=None)
    for name, value in {
        "Testbed": lambda topology: setup,
        "Recorder": lambda node, devices: setup,
        "need": lambda *features: None,
        "start_origin": lambda node, sizes: origin,
        "start_proxy": lambda node: proxy,
        "start_throttler": setup.start_throttler,
        "write_throttler_config": lambda node, policy: None,
        "download": setup.download,
        "lab_of": lambda testbed: None,
        "ethernet_cap": lambda: CAP,
        "PAUSE": 0.0,
    }.items():
        monkeypatch.setattr(running, name, value)
    monkeypatch.setattr(processors, "usage", setup.usage)
    return setup


def run(directory: Path) -> tuple[str, dict[str, Any]]:
    """Run the demo. Return its output and its numbers."""
    console = Console(file=io.StringIO(), width=100)
    running.run(directory, console)
    return console.file.getvalue(), json.loads((directory / "demo.json").read_text())  # type: ignore[attr-defined]


def test_sound_demo_leaves_table_picture_and_numbers_and_no_other_files(setup: Setup, tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    directory.mkdir()
    for name in ("proxy-squid-1.log", "throughput.png", "notes.log", "table.csv"):
        (directory / name).write_text("somebody's own")
    text, numbers = run(directory)
    assert "✗" not in text
    assert (numbers["failure"], numbers["warning"]) == (None, None)
    assert setup.downloads == [each["name"] for each in numbers["downloads"]] == list(PARTS)
    # Only an earlier demo's files are removed.
    files = {"demo.json", "throughput.png", "notes.log", "table.csv"}
    assert {file.name for file in directory.iterdir()} == files
    assert (directory / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert numbers["downloads"][-1]["steady"]["eth0"] == pytest.approx(CAP, rel=0.01)
    assert numbers["provenance"]["commit"]


def test_exit_status_is_1_when_the_product_is_broken(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.broken, setup.throttler_ended = {"mptcp": with_(wlan0=0)}, -9
    assert cli.main(["demo", "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"not as it should be: {FREE.title}; {POLICY.title}" in printed.err
    assert "✗" in printed.out
    assert (tmp_path / "throughput.png").exists()


def test_exit_status_is_0_with_a_warning_when_the_machine_is_too_busy(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.broken = {"mptcp": with_(eth0=60), "mptcp-policy": with_(cut_off=True)}
    setup.used = {part: [BUSY, BUSY] for part in PARTS}
    assert cli.main(["demo", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "Warning: this machine is too busy to judge: MPTCP through the proxy (" in printed.out
    assert "cut off" in printed.out
    assert setup.downloads == ["tcp-ethernet", "tcp-wifi", "mptcp", "mptcp", "mptcp-policy", "mptcp-policy"]
    # The second attempt uses the throttler that the first one started.
    assert setup.throttlers == 1


def test_demo_expects_the_cap_of_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rules = "version: 1\npaths: {ethernet: {subflow: initial}, other: {subflow: joined}}\nrules:\n"
    other = f"{rules}  - {{name: a, paths: [other], throttle: {{rate: 1 Mbit/s}}}}\n"
    policy.write_text(f"{other}  - {{name: b, paths: [ethernet], throttle: {{rate: 3 Mbit/s, ceil: 4 Mbit/s}}}}\n")
    assert ethernet_cap(policy) == 4_000_000
    assert "Ethernet 4 Mbit/s" in parts(4_000_000)[-1].subtitle
    for text, said in ((other, "no rule throttles the path 'ethernet'"), ("version: 1\nrules: 7\n", "read the policy")):
        policy.write_text(text)
        with pytest.raises(TestbedError, match=said):
            ethernet_cap(policy)


def test_terminal_shows_each_path_with_its_rate_and_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    full = PATHS[0].rate
    recorded = SimpleNamespace(current=lambda window: {"eth0": full / 2, "wlan0": 0.0})
    monkeypatch.setattr(live, "INTERVAL", 0.0)
    console = Console(file=io.StringIO(), width=120)
    view = live.View(console, recorded, PATHS)  # type: ignore[arg-type]
    view.begin("a download")
    view.refresh()
    title, rates = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert title == "a download"
    assert rates.split() == ["0", "s", "Ethernet", "50.0", "Mbit/s", "█" * (live.BAR // 2), "Wi-Fi", "0.0", "Mbit/s"]
