# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo with synthetic downloads: verdicts, output and exit status.

With a fault of the product, the demo fails on any machine. With a missed rate, it fails only if the machine had enough
processor time.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import series
from rich.console import Console

from mptcp_bench import cli, demo
from mptcp_bench.demo import running
from mptcp_bench.demo.judging import Download, failure, judge, last_of_each_part, perform, warning
from mptcp_bench.demo.parts import PATHS, PAYLOAD_SHARE, Part, parts
from mptcp_bench.shipped import ethernet_cap
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.protocol import Protocol

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
OWN_LOAD = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.02)
"""Processor usage if the proxy itself uses both processors all the time."""
Change = Callable[[Download], Download]


def good(part: Part) -> Download:
    """Return the measurement of a machine with enough processor time."""
    steady = {"eth0": 0.0, "wlan0": 0.0}
    steady |= {device: min(float(rate), PLAIN[device]) for device, rate in part.allowed.items()}
    protocol = MPTCP if part.multipath else TCP
    return Download(part, 0.0, part.seconds, part.size, True, protocol, steady, part.seconds - part.settle - 0.3, IDLE)


def with_(*, cut_off: bool = False, eth0: float | None = None, wlan0: float | None = None, **changed: Any) -> Change:
    """Return a function that changes a measurement: rates in Mbit/s, a download that was cut off, or other fields."""

    def change(measured: Download) -> Download:
        rates = {device: 1e6 * rate for device, rate in (("eth0", eth0), ("wlan0", wlan0)) if rate is not None}
        found = replace(measured, steady={**measured.steady, **rates}, **changed)
        if not cut_off:
            return found
        limit = 4 * measured.part.seconds + 10
        return replace(found, aborted_after=limit, end=limit, octets=measured.octets // 2, digest_ok=False)

    return change


WRONG: Mapping[str, tuple[Part, Change, str]] = {
    "throttler dead": (POLICY, with_(eth0=97, throttler_exit_status=-9), "the throttler ended .exit status -9."),
    "cap on the wrong path": (POLICY, with_(eth0=97, wlan0=5), "Ethernet carried 97.0 .* but its cap is 5 Mbit/s$"),
    "cap exceeded": (POLICY, with_(eth0=5.55), "its cap is 5 Mbit/s$"),
    "cut off, no cap": (POLICY, with_(cut_off=True, eth0=6), "its cap is 5 Mbit/s$"),
    "finished before the cap is in force": (POLICY, with_(steady_seconds=0.2), "before a steady state"),
    "second path unused": (FREE, with_(wlan0=0), "Wi-Fi carried 0.0 .* should have been used"),
    "no second subflow": (FREE, with_(protocol=replace(MPTCP, joins=0)), "no second subflow was established"),
    "Multipath TCP to the origin": (FREE, with_(protocol=replace(MPTCP, proxy_requested=1)), "towards the origin"),
    "other bytes": (FREE, with_(digest_ok=False), "SHA-256"),
    "plain TCP over both paths": (PARTS["tcp-ethernet"], with_(wlan0=3), "Wi-Fi carried 3.0 .* should have been idle"),
    "plain TCP that is not plain": (PARTS["tcp-wifi"], with_(protocol=MPTCP), "instead of plain TCP"),
    "link without its rate": (PARTS["tcp-ethernet"], with_(eth0=900), "but its link is 100 Mbit/s"),
}
"""Faults of the product or the testbed: the faulty part, its measurement, and the words that must report the fault."""
MISSED: Mapping[str, tuple[Part, Change, str]] = {
    "plain TCP": (PARTS["tcp-ethernet"], with_(eth0=75), "less than 80% of its link of 100 Mbit/s"),
    "first path": (FREE, with_(eth0=78), "less than 80% of plain TCP's 98.5 Mbit/s"),
    "second path": (FREE, with_(wlan0=23), "Wi-Fi carried 23.0 .* less than 80% of plain TCP's 29.6"),
    "capped path": (POLICY, with_(eth0=3.9), "Ethernet carried 3.9 .* less than 80% of its cap of 5 Mbit/s"),
    "no end": (FREE, with_(cut_off=True), "not finished after 46 s"),
    "no end, capped": (POLICY, with_(cut_off=True), "not finished after 74 s"),
}
"""Faults that a busy machine may also cause."""


def performed(*measurements: Download) -> list[Download]:
    """Return the downloads of the demo's parts with these *measurements*, all of which must be used."""
    remaining = iter(measurements)
    reported: list[Download] = []
    keys = dict.fromkeys(each.part.key for each in measurements)
    downloads = perform([PARTS[key] for key in keys], lambda part: next(remaining), reported.append)
    assert reported == downloads
    assert next(remaining, None) is None
    return downloads


def failed(*measurements: Download) -> str | None:
    return failure(last_of_each_part(performed(*measurements)))


@pytest.mark.parametrize("used", [IDLE, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize(("part", "change", "message"), WRONG.values(), ids=WRONG)
def test_fault_of_the_product_fails_on_any_machine(part: Part, change: Change, message: str, used: Usage) -> None:
    measured = change(replace(good(part), processors=used))
    assert re.search(message, judge(measured, PLAIN).wrong[0])
    assert failed(measured, measured) == f"not as it should be: {part.title} (see above)"
    assert failed(measured, good(part)) is None


@pytest.mark.parametrize(("part", "change", "message"), MISSED.values(), ids=MISSED)
def test_missed_goal_fails_unless_other_programs_took_the_time(part: Part, change: Change, message: str) -> None:
    slow = change(good(part))
    busy = replace(slow, processors=BUSY)
    [complaint] = judge(slow, PLAIN).complaints
    assert re.search(message, complaint)
    assert failed(busy, good(part)) is failed(busy, busy) is warning(performed(good(part))) is None
    assert f"too busy to judge: {part.title} (processors idle 0%" in (warning(performed(busy, busy)[1:]) or "")
    for used in (IDLE, OWN_LOAD):
        assert failed(busy, replace(slow, processors=used)) is not None


def test_capacity_of_a_link_is_the_rate_of_plain_tcp_in_the_same_run() -> None:
    """On one machine Ethernet carried 91.0 and 92.4 Mbit/s, and the demo failed."""
    assert not judge(with_(eth0=91.0)(good(FREE)), PLAIN).complaints
    assert not judge(with_(eth0=75)(good(FREE)), {**PLAIN, "eth0": 85e6}).complaints
    slow = replace(with_(eth0=50)(good(PARTS["tcp-ethernet"])), processors=BUSY)
    *_, last = performed(slow, slow, good(PARTS["tcp-wifi"]), with_(eth0=47)(good(FREE)))
    assert last.expected == {**PLAIN, "eth0": 50e6}
    assert not last.complaints


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
    assert [complaint.endswith("its cap is 5 Mbit/s") for complaint in outcome.wrong] == [True] * fails


SAMPLES = series({"eth0": lambda _: 5.0, "wlan0": lambda _: 29.0}, 40)


def concluded(directory: Path, *downloads: Download) -> tuple[str, str | None]:
    """Return the output of the demo after *downloads*, and the message with which it failed."""
    console = Console(file=(text := io.StringIO()), width=120)
    try:
        running.conclude(downloads, SAMPLES, CAP, directory, console)
    except running.DemoError as error:
        return text.getvalue(), str(error)
    return text.getvalue(), None


def test_sound_demo_leaves_picture_and_numbers(tmp_path: Path) -> None:
    busy = (replace(good(part), processors=BUSY) for part in PARTS.values())
    text, message = concluded(tmp_path, *performed(*busy))
    assert message is None
    assert "Warning" not in text
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "demo.json").read_text())
    assert [each["name"] for each in numbers["downloads"]] == list(PARTS)
    assert numbers["downloads"][-1]["steady"]["eth0"] == CAP
    assert numbers["provenance"]["commit"]


def test_demo_fails_when_the_product_is_broken_and_warns_when_the_machine_is_busy(tmp_path: Path) -> None:
    wrong, busy = with_(wlan0=0)(good(FREE)), replace(with_(cut_off=True)(good(POLICY)), processors=BUSY)
    text, message = concluded(tmp_path, *performed(wrong, wrong, busy, busy))
    assert message == f"not as it should be: {FREE.title} (see above)"
    assert f"Warning: this machine is too busy to judge: {POLICY.title} (" in text
    assert "cut off" in text


def test_exit_status_is_1_when_the_demo_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(output: Path, console: Console) -> None:
        raise demo.DemoError("not as it should be")

    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo", "--output", str(tmp_path)]) == 1


def test_demo_expects_the_cap_of_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rules = "version: 1\npaths: {ethernet: {subflow: initial}, other: {subflow: joined}}\nrules:\n"
    other = f"{rules}  - {{name: a, paths: [other], throttle: {{rate: 1 Mbit/s}}}}\n"
    policy.write_text(f"{other}  - {{name: b, paths: [ethernet], throttle: {{rate: 3 Mbit/s, ceil: 4 Mbit/s}}}}\n")
    assert ethernet_cap(policy) == 4_000_000
    assert "Ethernet 4 Mbit/s" in parts(4_000_000)[-1].subtitle
    for text, message in (
        (other, "no rule throttles the path 'ethernet'"),
        ("version: 1\nrules: 7\n", "read the policy"),
    ):
        policy.write_text(text)
        with pytest.raises(TestbedError, match=message):
            ethernet_cap(policy)


def test_terminal_shows_each_path_with_its_rate_and_a_bar() -> None:
    recorder: Any = SimpleNamespace(current=lambda window: {"eth0": PATHS[0].rate / 2, "wlan0": 0.0})
    console = Console(file=(text := io.StringIO()), width=120)
    unused: Any = None
    state = running.DemoState(unused, unused, unused, recorder, console)
    state.print_rates()
    state.print_rates()  # too early for a second line
    [line] = text.getvalue().splitlines()
    bar = "█" * (running.BAR_WIDTH // 2)
    assert line.split()[1:] == ["s", "Ethernet", "50.0", "Mbit/s", bar, "Wi-Fi", "0.0", "Mbit/s"]
