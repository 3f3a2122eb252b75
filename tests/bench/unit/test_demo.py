# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo, with made-up downloads instead of testbed and services: verdicts, output and exit status.

A fault of the product fails on any machine. A missed rate fails only if the machine had time for it.
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

from mptcp_bench import cli, style
from mptcp_bench.demo import live, output, running
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
"""Bits/s that plain TCP got over each link."""
IDLE = Usage(stolen=0.0, idle=0.6, waiting=0.3, others=0.05)
BUSY = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.7)
"""Processor usage with two busy loops beside the demo, on two processors."""
BURNT = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.02)
"""Processor usage if the proxy itself keeps both processors busy."""
Change = Callable[[Measured], Measured]


def good(part: Part) -> Measured:
    """Return the measurement of a machine with enough processor time."""
    steady = {"eth0": 0.0, "wlan0": 0.0}
    steady |= {device: min(float(rate), PLAIN[device]) for device, rate in part.allowed.items()}
    protocol = MPTCP if part.multipath else TCP
    return Measured(part, 0.0, part.seconds, part.size, True, protocol, steady, part.seconds - part.settle - 0.3, IDLE)


def with_(*, cut_off: bool = False, eth0: float | None = None, wlan0: float | None = None, **changed: Any) -> Change:
    """Return a change of a measurement: rates in Mbit/s, a download that was cut off, other fields."""

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
    "throttler dead, caps still there": (POLICY, with_(throttler=1), "the throttler ended"),
    "cap on the wrong path": (POLICY, with_(eth0=97, wlan0=5), "Ethernet carried 97.0 .* and its cap allows 5$"),
    "cap never set, links not filled": (POLICY, with_(eth0=20, wlan0=10), "its cap allows 5$"),
    "cap exceeded": (POLICY, with_(eth0=5.55), "its cap allows 5$"),
    "cap never comes": (POLICY, with_(eth0=60, closing=60e6), "60.0 Mbit/s .* its cap allows 5$"),
    "cap never comes, and the path runs dry": (POLICY, with_(eth0=60, closing=3e6), "its cap allows 5$"),
    "cap lifted again": (POLICY, with_(eth0=12, closing=5.6e6), "12.0 Mbit/s .* its cap allows 5$"),
    "throttler dead, its cap late": (POLICY, with_(eth0=12, closing=5e6, throttler=-9), "the throttler ended"),
    "fallback, cap late": (POLICY, with_(eth0=12, closing=5e6, protocol=FELL_BACK), "fell back to plain TCP"),
    "other path unused, cap late": (POLICY, with_(eth0=12, wlan0=0.1, closing=5e6), "Wi-Fi .* should have been used"),
    "other path unused, cap relaxed": (POLICY, with_(eth0=12, wlan0=0.1, relaxed=2), "Wi-Fi .* should have been used"),
    "capped path unused nearly to the end": (POLICY, with_(eth0=0, closing=5e6), "should have been used$"),
    "cut off, no cap": (POLICY, with_(cut_off=True, eth0=6, closing=6e6), "its cap allows 5$"),
    "cut off, throttler dead": (POLICY, with_(cut_off=True, throttler=-9, closing=5e6), "the throttler ended"),
    "cut off, fallback": (FREE, with_(cut_off=True, protocol=FELL_BACK), "fell back to plain TCP"),
    "cut off, nothing came": (PARTS["tcp-wifi"], with_(cut_off=True, wlan0=0), "Wi-Fi .* should have been used"),
    "over before the cap could show": (POLICY, with_(steady_seconds=0.2), "before a steady state"),
    "second path unused": (FREE, with_(wlan0=0), "Wi-Fi carried 0.0 .* should have been used"),
    "first path unused": (FREE, with_(eth0=1), "Ethernet carried 1.0 .* should have been used"),
    "no second subflow": (FREE, with_(protocol=replace(MPTCP, joins=0)), "no second subflow was established"),
    "no Multipath TCP": (FREE, with_(protocol=TCP), "opened no MPTCP connection"),
    "Multipath TCP to the origin": (FREE, with_(protocol=replace(MPTCP, proxy_requested=1)), "towards the origin"),
    "other bytes": (FREE, with_(digest_ok=False), "SHA-256"),
    "plain TCP over both paths": (PARTS["tcp-ethernet"], with_(wlan0=3), "Wi-Fi carried 3.0 .* should have been idle"),
    "plain TCP that is not plain": (PARTS["tcp-wifi"], with_(protocol=MPTCP), "where plain TCP was wanted"),
    "link without its rate": (PARTS["tcp-ethernet"], with_(eth0=900), "and its link allows 100"),
}
"""Faults of the product or the testbed: the part that has it, the measurement, and the words that must report it."""
LATE = "its cap allows 5: it came late, and was kept to in the last 2 s"
RELAXED = "its cap allows 5: it was relaxed by the guard, because Wi-Fi carried less than before"
MISSED: Mapping[str, tuple[Part, Change, str]] = {
    "plain TCP": (PARTS["tcp-ethernet"], with_(eth0=75), "less than 80% of the 100 of its link"),
    "first path": (FREE, with_(eth0=78), "less than 80% of the 98.5 that plain TCP got over it"),
    "second path": (FREE, with_(wlan0=23), "Wi-Fi carried 23.0 .* less than 80% of the 29.6"),
    "capped path": (POLICY, with_(eth0=3.9), "Ethernet carried 3.9 .* less than 80% of the 5 of its cap"),
    "late cap": (POLICY, with_(eth0=12, closing=5e6, steady_seconds=0.5), f"Ethernet carried 12.0 .* {LATE}"),
    "relaxed cap": (POLICY, with_(eth0=12, closing=12e6, relaxed=2, relaxed_bytes=9_000_000), RELAXED),
    "no end": (FREE, with_(cut_off=True), "no end after 46 s"),
    "no end, capped": (POLICY, with_(cut_off=True, closing=5e6), "no end after 74 s"),
}
"""Faults that a busy machine may also cause."""


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_sound_download_has_no_complaint(part: Part, used: Usage) -> None:
    outcome = judge(replace(good(part), processors=used), PLAIN)
    assert (outcome.complaints, outcome.failed, outcome.notices, outcome.cap) == ((), False, (), "")


def performed(*found: Measured) -> Verdict:
    """Return the verdict on parts with the measurements *found*, all of which must be used."""
    each = iter(found)
    said: list[Outcome] = []
    keys = list(dict.fromkeys(m.part.key for m in found))
    verdict = perform([PARTS[key] for key in keys], lambda part: next(each), said.append)
    assert said == verdict.outcomes
    assert next(each, None) is None
    return verdict


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize(("part", "change", "said"), WRONG.values(), ids=WRONG)
def test_fault_of_the_product_fails_at_once_on_any_machine(part: Part, change: Change, said: str, used: Usage) -> None:
    verdict = performed(change(replace(good(part), processors=used)))
    assert re.search(said, verdict.outcomes[0].wrong[0])
    assert verdict.failure == f"not as it should be: {part.title} (see above)"
    assert verdict.outcomes[0].cap == "not kept to" or "its cap allows" not in said


@pytest.mark.parametrize(("part", "change", "said"), MISSED.values(), ids=MISSED)
def test_missed_goal_is_measured_again_and_fails_unless_other_programs_took_the_time(
    part: Part, change: Change, said: str
) -> None:
    slow = change(good(part))
    busy = replace(slow, processors=BUSY)
    [complaint] = judge(slow, PLAIN).complaints
    assert re.search(said, complaint)
    better = performed(busy, good(part))
    assert (better.failure, better.warning, len(better.outcomes), len(better.final)) == (None, None, 2, 1)
    excused = performed(busy, busy)
    assert excused.failure is None
    assert f"too busy to judge: {part.title} (processors idle 0%" in (excused.warning or "")
    assert any("the machine was busy" in notice for notice in excused.final[0].notices)
    for used in (IDLE, BURNT):
        assert performed(busy, replace(slow, processors=used)).failure is not None


def test_notices_and_picture_say_what_happened_to_the_cap() -> None:
    caps = {name: judge(MISSED[name][1](good(POLICY)), PLAIN) for name in ("late cap", "relaxed cap")}
    assert [each.cap for each in caps.values()] == ["came late", "relaxed by the guard"]
    assert caps["relaxed cap"].notices == ("the guard relaxed the cap 2 times: 9.0 MB more over Ethernet",)
    held = judge(with_(relaxed=1)(good(POLICY)), PLAIN)
    assert (held.failed, held.cap) == (False, "relaxed by the guard")


def test_rate_of_plain_tcp_in_the_same_run_is_what_a_link_can_carry() -> None:
    """On one machine Ethernet carried 91.0 and 92.4 Mbit/s, and the demo failed."""
    assert not judge(with_(eth0=91.0)(good(FREE)), PLAIN).complaints
    assert not judge(with_(eth0=75)(good(FREE)), {**PLAIN, "eth0": 85e6}).complaints
    slow = replace(with_(eth0=50)(good(PARTS["tcp-ethernet"])), processors=BUSY)
    verdict = performed(slow, slow, good(PARTS["tcp-wifi"]), with_(eth0=47)(good(FREE)))
    assert verdict.outcomes[-1].expected == {**PLAIN, "eth0": 50e6}
    assert not verdict.outcomes[-1].complaints


FILLED, HALF = (98.0, 29.0), (49.0, 14.5)
"""Mbit/s of the links on a machine with enough processor time, and on one with half of that."""


@pytest.mark.parametrize(
    ("after", "links", "said"),
    [
        (0.1, FILLED, None),
        (3.5, FILLED, None),
        (3.75, FILLED, "it came late, and was kept to in the last 2 s"),
        (4.0, FILLED, "its cap allows 5"),
        (None, FILLED, "its cap allows 5"),
        (4.0, HALF, None),
        (7.0, HALF, "it came late, and was kept to in the last 2 s"),
        (8.5, HALF, "its cap allows 5"),
    ],
)
def test_cap_counts_as_late_when_the_rest_of_the_file_shows_it(
    after: float | None, links: tuple[float, float], said: str | None
) -> None:
    """Over filled links the download ends about 4 s after its start. The cap comes *after* seconds, or never."""
    wire = 8 * POLICY.size / PAYLOAD_SHARE
    free, capped = sum(links) * 1e6, CAP + links[1] * 1e6
    before = wire / free if after is None else min(after, wire / free)
    ended = before + (wire - before * free) / capped
    rates = {"eth0": lambda t: links[0] if t < before else CAP / 1e6, "wlan0": lambda _: links[1]}
    found = running.steady(POLICY, series(rates, ended + 1, 0.05), 0.0, ended)
    outcome = judge(replace(good(POLICY), end=ended, **found), {"eth0": links[0] * 1e6, "wlan0": links[1] * 1e6})
    assert [complaint.endswith(said or "") for complaint in outcome.complaints] == [True] * (said is not None)


@dataclass
class Setup:
    """Replacement for the demo's testbed: each download is *good*, or changed by *broken*."""

    directory: Path
    broken: dict[str, Change] = field(default_factory=dict)
    used: dict[str, list[Usage]] = field(default_factory=dict)
    """Processor usage of each part by attempt; idle if missing."""
    samples: list[Sample] = field(default_factory=lambda: [Sample(0.0, {"eth0": 0, "wlan0": 0})])
    throttlers: int = 0
    throttler_ended: int | None = None
    guard: dict[str, int] = field(default_factory=lambda: {"relaxations": 5, "relaxed_bytes": 7})
    """Counters of an earlier part."""
    relaxed: int = 0
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

    def latest(self, count: int) -> list[Sample]:
        return self.samples[-count:]

    def current(self, window: float = 0.5) -> dict[str, float]:
        return {"eth0": 0.0, "wlan0": 0.0}

    # Replacement for the services.
    def start_throttler(self, *_: object) -> Any:
        self.throttlers += 1
        process = SimpleNamespace(returncode=self.throttler_ended)
        return SimpleNamespace(process=process, status=lambda: {"counters": {"guard": dict(self.guard)}})

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
        self.guard["relaxations"] += self.relaxed
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
    files = {"demo.json", "samples.csv", "throughput.png", "notes.log", "table.csv"}
    assert {file.name for file in directory.iterdir()} == files
    assert (directory / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert numbers["downloads"][-1]["steady"]["eth0"] == pytest.approx(CAP, rel=0.01)
    assert numbers["downloads"][-1]["relaxed"] == 0
    assert numbers["provenance"]["commit"]


def test_table_and_picture_say_so_when_the_guard_relaxed_the_cap(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(style, "save", lambda figure, target: drawn.append(figure))
    setup.relaxed, setup.broken = 2, {"mptcp-policy": with_(eth0=12)}
    with pytest.raises(running.DemoError):
        run(tmp_path)
    numbers = json.loads((tmp_path / "demo.json").read_text())["downloads"]
    assert [each["relaxed"] for each in numbers] == [0, 0, 0, 2, 2]
    words = [text.get_text() for text in drawn[0].axes[0].texts]
    assert words.count("cap on Ethernet: 5 Mbit/s, relaxed by the guard") == 2
    caption = output.table([judge(with_(relaxed=2)(good(POLICY)), PLAIN)]).caption
    assert caption == "MPTCP, policy: the guard relaxed the cap 2 times: 0.0 MB more over Ethernet"


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
    assert "it is measured once more" in printed.out
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


class Recorded:
    """A recorder that shows half of Ethernet's link, and nothing over Wi-Fi."""

    def current(self) -> dict[str, float]:
        return {"eth0": PATHS[0].rate / 2, "wlan0": 0.0}

    def latest(self, count: int) -> tuple[Sample, ...]:
        return tuple(Sample(0.1 * i, {"eth0": PATHS[0].rate // 160 * i, "wlan0": 0}) for i in range(count))


def test_terminal_shows_each_path_with_its_rate_a_bar_and_its_past() -> None:
    console = Console(file=io.StringIO(), width=90, height=20, force_terminal=True, color_system=None)
    view = live.View(console, Recorded(), PATHS)  # type: ignore[arg-type]
    with view:
        view.begin("a download")
        view.refresh()
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    ethernet, wifi = (
        next(line for line in shown if f"{path.rate / 2e6 * n:6.1f} Mbit/s" in line)
        for path, n in zip(PATHS, (1, 0), strict=True)
    )
    assert "█" * (live.BAR // 2) + " " * (live.BAR // 2) in ethernet
    assert "▄" * 10 in ethernet
    assert "█" not in wifi
    assert live.sparkline([0, 50, 100, 200, -1], 100) == " ▄██ "
