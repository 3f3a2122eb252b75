# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo from start to exit status and files, with made-up downloads instead of testbed and services."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from demo_parts import BURNT, BUSY, CAP, IDLE, PARTS, broken_off, good, with_rates
from rich.console import Console

from mptcp_bench import cli, plot
from mptcp_bench.demo import running
from mptcp_bench.demo.judging import Measured
from mptcp_lab.agent import processors
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import features
from mptcp_lab.testbed.recorder import Sample

Broken = Callable[[Measured], Measured]
DRAW = plot.throughput


@dataclass
class Setup:
    """Replacement for the demo's testbed: each download is *good*, or changed by *broken*."""

    directory: Path
    broken: dict[str, Broken] = field(default_factory=dict)
    used: dict[str, list[Usage]] = field(default_factory=dict)
    """Processor usage of each part by attempt; idle if missing."""
    samples: list[Sample] = field(default_factory=lambda: [Sample(0.0, {"eth0": 0, "wlan0": 0})])
    cap_from: float = 0.0
    """Seconds at the start of a capped download in which Ethernet carries 60 Mbit/s."""
    throttlers: int = 0
    throttler_ended: int | None = None
    relaxations: int = 0
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
        guard = {"relaxations": self.relaxations, "lacking_bytes": 12e6, "relaxed_bytes": 13e6}
        status = {"counters": {"guard": guard}}
        return SimpleNamespace(process=SimpleNamespace(returncode=self.throttler_ended), status=lambda: status)

    def download(self, lab: object, argv: list[str], *, may_time_out: bool, **_: object) -> Any:
        assert may_time_out
        label = argv[-1].rpartition("/")[2]
        self.downloads.append(label)
        part = PARTS[label]
        measured = good(part)
        if label in self.broken:
            measured = self.broken[label](measured)
        start = self.now
        while self.now < start + part.seconds:
            late = {"eth0": 60e6} if part.capped and self.now - start < self.cap_from else {}
            rates = {**measured.steady, **late}
            octets = {d: self.samples[-1].octets[d] + round(rate / 80) for d, rate in rates.items()}
            self.samples.append(Sample(self.now + 0.1, octets))
        digest = label if measured.digest_ok else "another"
        return SimpleNamespace(
            began=start,
            ended=self.now - start,
            octets=measured.octets,
            sha256=digest,
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
    monkeypatch.setattr(plot, "throughput", lambda target, *_, **__: target.touch())
    return setup


def run(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Run the demo. Return its output and its numbers."""
    console = Console(file=io.StringIO(), width=100)
    try:
        running.run(tmp_path / "demo", console)
    finally:
        text = console.file.getvalue()  # type: ignore[attr-defined]
    return text, json.loads((tmp_path / "demo" / "demo.json").read_text())


def test_a_good_run_leaves_table_picture_and_numbers(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "throughput", DRAW)
    output = tmp_path / "demo"
    output.mkdir()
    for name in ("proxy-squid-1.log", "throughput.png"):
        (output / name).write_text("of an earlier run")
    # Defect: the demo removed any file in the directory with one of these suffixes.
    others = {"notes.log", "photograph.png", "table.csv"}
    for name in others:
        (output / name).write_text("somebody's own")
    text, numbers = run(tmp_path)
    assert "✗" not in text
    assert "Warning" not in text
    assert (numbers["failure"], numbers["warning"]) == (None, None)
    assert setup.downloads == [each["name"] for each in numbers["downloads"]] == list(PARTS)
    assert setup.throttlers == 1
    assert {file.name for file in output.iterdir()} == {"demo.json", "samples.csv", "throughput.png", *others}
    assert {(output / name).read_text() for name in others} == {"somebody's own"}
    assert (output / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert numbers["downloads"][-1]["steady"]["eth0"] == pytest.approx(CAP, rel=0.01)
    assert numbers["downloads"][-1]["guarded"] is None
    setup.relaxations = 2
    text, numbers = run(tmp_path)
    assert numbers["downloads"][-1]["guarded"] in " ".join(text.split())


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize(
    ("part", "broken", "ended"),
    [
        ("mptcp-policy", lambda m: with_rates(m, eth0=97e6), None),
        ("mptcp-policy", lambda m: with_rates(m, eth0=97e6, wlan0=5e6), None),
        ("mptcp-policy", lambda m: m, -9),
        ("mptcp", lambda m: with_rates(m, wlan0=0.0), None),
        ("mptcp", lambda m: replace(m, digest_ok=False), None),
        ("mptcp", lambda m: replace(m, protocol=replace(m.protocol, fallbacks=1)), None),
    ],
    ids=["no cap", "cap on the wrong path", "throttler dead", "path unused", "other bytes", "fallback"],
)
def test_a_broken_product_is_exit_status_1(
    setup: Setup,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    part: str,
    broken: Broken,
    ended: int | None,
    used: Usage,
) -> None:
    setup.broken, setup.throttler_ended = {part: broken}, ended
    setup.used = {each: [used] for each in PARTS}
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == 1
    printed = capsys.readouterr()
    assert f"not as it should be: {PARTS[part].title}" in printed.err
    assert "✗" in printed.out
    assert (tmp_path / "demo" / "throughput.png").exists()


def test_a_machine_that_is_too_busy_is_a_warning_and_exit_status_0(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.broken = {"mptcp": lambda m: with_rates(m, eth0=60e6), "mptcp-policy": lambda m: with_rates(m, wlan0=20e6)}
    setup.used = {part: [BUSY, BUSY] for part in PARTS}
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "Warning: this machine is too busy to judge: MPTCP through the proxy (" in printed.out
    assert setup.downloads == ["tcp-ethernet", "tcp-wifi", "mptcp", "mptcp", "mptcp-policy", "mptcp-policy"]
    # The second attempt uses the throttler that the first one started.
    assert setup.throttlers == 1


@pytest.mark.parametrize(("used", "status"), [(BUSY, 0), (IDLE, 1), (BURNT, 1)], ids=["busy", "idle", "burnt"])
@pytest.mark.parametrize("cap_from", [0.0, 9.0], ids=["no end", "late cap"])
def test_no_end_and_a_late_cap_are_excused_by_a_busy_machine_alone(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str], cap_from: float, used: Usage, status: int
) -> None:
    setup.cap_from = cap_from
    setup.broken = {} if cap_from else {"mptcp-policy": broken_off}
    setup.used = {"mptcp-policy": [used, used]}
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == status
    printed = capsys.readouterr()
    assert setup.downloads.count("mptcp-policy") == 2
    assert ("too busy to judge: MPTCP through the proxy + policy (" in printed.out) == (status == 0)
    assert ("it came late, and was kept to" if cap_from else "no end after 74 s") in " ".join(printed.out.split())
    assert ("cut off" in printed.out) == (not cap_from)


def test_a_cap_that_never_comes_is_exit_status_1_on_a_busy_machine(setup: Setup, tmp_path: Path) -> None:
    setup.cap_from = 16.0
    setup.used = {"mptcp-policy": [BUSY, BUSY]}
    with pytest.raises(running.DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        run(tmp_path)
    assert setup.downloads == list(PARTS)


@pytest.mark.parametrize("used", [IDLE, BURNT], ids=["machine with time", "proxy burns both processors"])
def test_the_same_rates_are_exit_status_1_where_no_other_program_took_the_time(
    setup: Setup, tmp_path: Path, used: Usage
) -> None:
    setup.broken = {"mptcp": lambda m: with_rates(m, eth0=60e6)}
    setup.used = {part: [used, used] for part in PARTS}
    with pytest.raises(running.DemoError, match="not as it should be: MPTCP through the proxy "):
        run(tmp_path)
    assert setup.downloads == ["tcp-ethernet", "tcp-wifi", "mptcp", "mptcp", "mptcp-policy"]


@pytest.mark.parametrize("used", [BUSY, IDLE], ids=["busy", "idle"])
def test_a_part_that_was_good_when_repeated(setup: Setup, tmp_path: Path, used: Usage) -> None:
    rates = iter([60e6, 98e6])
    setup.broken = {"mptcp": lambda m: with_rates(m, eth0=next(rates))}
    setup.used = {"mptcp": [used, used]}
    text, numbers = run(tmp_path)
    assert "Warning" not in text
    assert "✗" not in text
    assert "it is measured once more" in text
    assert [each["repeated"] for each in numbers["downloads"]] == [False, False, True, False, False]
    assert numbers["failure"] is None


def test_what_this_host_lacks_is_reported(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "need", features.need)
    monkeypatch.setattr(features, "missing", lambda feature: "no HTB" if feature == "htb" else None)
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == 1
    assert "this host cannot run that:\nmptcp-bench:   - no HTB" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
