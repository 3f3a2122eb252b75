# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``pages``: its use of byte counters, and that each way to miss the cap misses an aim."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.pages import Plan, check_joins
from mptcp_bench.experiments.pages_bed import Batch, ip_octets, plain, static_class, timed
from mptcp_bench.experiments.pages_browser import answers
from mptcp_bench.experiments.pages_cells import MIXED, OPTIONS, PAGE, Cell, cells, variants_of
from mptcp_bench.experiments.pages_judging import (
    Download,
    Outcome,
    ideal_seconds,
    judge,
    judge_cell,
    judge_lone,
    lead,
)
from mptcp_bench.experiments.pages_results import Batches, Measured, draw, drawn_cell, resampled, tables
from mptcp_lab.agent import fetch
from mptcp_lab.agent.counters import devices
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.node import InterfaceBytes
from mptcp_lab.testbed.recorder import Sample
from mptcp_throttler.policy.load import load_policy

CAP = 5_000_000
"""Bits/s."""
BEGIN = 0.3
"""Start of the batch in seconds, on the clock of the samples."""
Load = Callable[[float], float]
"""Rate in Mbit/s as a function of seconds since the start."""


def batch(capped: Load, other: Load, megabytes: float = 10.0) -> tuple[list[Sample], list[Download]]:
    """Return samples of a batch that ends when both paths together have carried *megabytes*."""
    samples, octets, time = [], {"eth0": 0.0, "wlan0": 0.0}, 0.0
    while True:
        samples.append(Sample(time, {d: round(o) for d, o in octets.items()}))
        if sum(octets.values()) >= megabytes * 1e6:
            break
        for device, load in (("eth0", capped), ("wlan0", other)):
            octets[device] += load(time - BEGIN) * 1e6 / 8 * 0.02 if time >= BEGIN else 0
        time += 0.02
    return samples, [Download(BEGIN, BEGIN + 0.02, BEGIN + 0.2), Download(BEGIN + 0.1, BEGIN + 0.1, samples[-1].time)]


def outcome(capped: Load, other: Load = lambda _: 20, megabytes: float = 10.0) -> Outcome:
    samples, downloads = batch(capped, other, megabytes)
    return judge(samples, "eth0", "wlan0", CAP, downloads)


KEPT = outcome(lambda _: 5)
NONE = outcome(lambda _: 45, lambda _: 14)
STATIC = outcome(lambda _: 4.95, lambda _: 3.5)


def missed(known: Outcome, fresh: Outcome = KEPT) -> set[str]:
    return {name for name, aim in judge_cell([known], [fresh], [STATIC]).items() if not aim.met}


def test_a_cap_that_is_kept_from_the_first_packet_on_misses_nothing() -> None:
    assert KEPT.mean == pytest.approx(1, abs=0.02)
    assert KEPT.worst == pytest.approx(1, abs=0.02)
    assert KEPT.ahead < 20_000
    assert missed(KEPT) == set()


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        (NONE, {"mean", "worst"}),
        (outcome(lambda _: 5.5), {"mean"}),
        # The wrong path is capped, and Ethernet carries all that its link allows.
        (outcome(lambda _: 50, lambda _: 5), {"mean", "worst"}),
        # A second at full speed, for which the rest does not compensate.
        (outcome(lambda t: 50 if t < 1 else 5), {"mean", "worst"}),
        # Half a second at full speed, compensated later: right over the whole batch, but not over two seconds.
        (outcome(lambda t: 20 if t < 0.5 else 2), {"worst"}),
        # A cap of a fifth of the rate, and the other path at a tenth.
        (outcome(lambda _: 1, lambda _: 2), {"seconds"}),
    ],
)
def test_each_way_to_miss_the_cap_misses_an_aim(broken: Outcome, names: set[str]) -> None:
    assert missed(broken) == names


def test_an_overshoot_of_the_first_batch_alone_misses_an_aim() -> None:
    assert missed(KEPT, NONE) == {"overshoot"}
    assert {n for n, aim in judge_cell([], [NONE], [STATIC]).items() if not aim.met} == {"mean", "worst", "overshoot"}


def test_a_burst_is_seen_in_the_worst_window_and_in_the_lead_wherever_it_falls() -> None:
    late = outcome(lambda t: 45 if 2.05 <= t < 2.45 else 0.5)
    assert late.worst == pytest.approx((0.4 * 45 + 1.6 * 0.5) / 2 / 5, rel=0.1)
    early = outcome(lambda t: 45 if t < 0.4 else 0.5)
    assert early.ahead == pytest.approx(0.4 * 40e6 / 8, rel=0.1)


def test_what_lies_outside_of_a_short_batch_is_silence() -> None:
    short = outcome(lambda _: 50, lambda _: 0, 2.5)
    assert short.seconds == pytest.approx(0.4, abs=0.05)
    assert short.mean == pytest.approx(10, rel=0.05)
    assert short.worst == pytest.approx(2.5e6 * 8 / 2 / CAP, rel=0.05)


def test_bytes_from_before_the_batch_and_after_it_are_not_its() -> None:
    samples = [Sample(t / 10, {"eth0": 1_000_000 * t, "wlan0": 0}) for t in range(11)]
    found = judge(samples, "eth0", "wlan0", CAP, [Download(0.25, 0.26, 0.75)])
    assert found.capped == pytest.approx(5_000_000)
    with pytest.raises(ValueError, match="span"):
        judge(samples, "eth0", "wlan0", CAP, [Download(0.25, 0.26, 1.75)])


def lone(first: float, later: float) -> list[Download]:
    times = [first] * 2 + [later] * 8
    return [Download(float(i), i + 0.02, i + time) for i, time in enumerate(times)]


@pytest.mark.parametrize(
    ("ours", "names"),
    [
        ((0.12, 0.10), set()),
        ((0.34, 0.10), set()),
        ((0.36, 0.10), {"first", "longest"}),
        # The cap is never released.
        ((0.30, 0.30), {"later"}),
    ],
)
def test_a_client_with_one_path_may_be_slower_at_first_and_not_later(
    ours: tuple[float, float], names: set[str]
) -> None:
    none = [lead(lone(0.1, 0.1), 2)]
    fresh = [lead(lone(*ours), 2)]
    known = [lead(lone(0.1, 0.1), 2)]
    assert {n for n, aim in judge_lone([], fresh, none).items() if not aim.met} == names
    assert judge_lone(known, fresh, []) == {}
    # A client that is delayed each time is not a known one.
    slow = [lead(lone(0.3, 0.1), 2)]
    assert not judge_lone(slow, known, none)["later"].met


def test_the_ideal_fills_both_paths_and_counts_headers() -> None:
    assert ideal_seconds(15_000_000, 5_000_000, 20_000_000) == pytest.approx(15e6 * 8 * 1514 / 1420 / 25e6)


def test_headers_of_the_link_are_not_counted() -> None:
    text = "Inter-|\n face |\n  eth0: 1514000 1000 0 0 0 0 0 0 9 9\n    lo: 0 0 0 0 0 0 0 0 0 0\n"
    octets = {device: ip_octets(InterfaceBytes(*seen)) for device, seen in devices(text).items()}
    assert octets == {"eth0": 1_500_000, "lo": 0}


def test_cells_are_every_combination_of_what_is_listed() -> None:
    found = cells({"size": "20k,2M", "cap": "1,5", "rtt": "20/20,20/80", "number": "7"})
    assert len(found) == len(set(found)) == 8
    assert [cell.paths for cell in found] == sorted((cell.paths for cell in found), key=str)
    assert {sum(cell.sizes) for cell in found} == {140_000, 14_000_000}


def test_where_nothing_is_chosen_every_kind_is_there_and_quick_is_less() -> None:
    found = cells({})
    assert {"get", "keepalive", "connect", "tls", "chromium"} == {cell.kind for cell in found}
    assert {"cap", "min1", "budget"} == {cell.policy for cell in found}
    assert {"two", "lone", "lost"} == {cell.client for cell in found}
    assert {1, 10, 50, 300} <= {cell.at_once for cell in found}
    assert len(cells({}, quick=True)) < len(found) / 3


@pytest.mark.parametrize(
    "option",
    ["size=x", "size=0", "rates=50", "rtt=20", "cap=0", "kind=ftp", "share=all", "policy=x", "client=three", "first=b",
     "at_once=0"],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_with_what_there_is(option: str) -> None:
    with pytest.raises(OptionError, match=r"^--set takes"):
        cells(dict([option.split("=")]))


def test_a_number_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(OptionError, match=r"^--set number=-1: allowed are whole numbers from 1 on$"):
        cells({"number": "-1"})


def test_variants_are_known() -> None:
    assert variants_of({"variant": "ours,ideal"}) == ["ours", "ideal"]
    with pytest.raises(OptionError, match="variant"):
        variants_of({"variant": "theirs"})
    assert set(OPTIONS) >= {"size", "at_once", "variant"}


@pytest.mark.parametrize("policy", ["cap", "min1", "budget"])
@pytest.mark.parametrize("share", ["path", "client", "connection"])
def test_every_policy_is_one(policy: str, share: str) -> None:
    [cell] = cells({"policy": policy, "share": share})
    assert load_policy(cell.policy_text(), "policy.yaml").rules[0].name == "cap"


def test_the_mixed_page_has_its_files_and_bytes() -> None:
    assert (len(PAGE), round(sum(PAGE) / 1e5)) == (63, 74)
    [cell] = cells({"size": MIXED, "kind": "chromium"})
    assert (cell.sizes, cell.at_once) == (list(PAGE), 6)


def test_the_static_class_has_the_rate_and_the_queue_that_ours_would_have() -> None:
    [do, undo] = static_class(cells({"cap": "1", "at_once": "10"})[0])
    assert "rate 1000000bit ceil 1000000bit" in do[2]
    assert "pfifo limit 16" in do[2]
    assert undo == ["tc", "qdisc", "del", "dev", "wan0", "root"]


def test_a_client_with_one_path_is_not_compared_with_classes_and_a_new_throttler_comes_first() -> None:
    [two], [one] = cells({"client": "two"}), cells({"client": "lone"})
    plan = Plan(("none", "ours", "static", "ideal"), runs=2)
    assert list(plan.batches(two)) == [("none", False), ("ours", True), ("static", False), ("ours", False)]
    assert list(plan.batches(one)) == [("none", False), ("ours", True), ("ours", False)]


def test_a_batch_with_other_paths_than_it_should_have_is_void() -> None:
    [two], [one], [closed] = cells({"client": "two"}), cells({"client": "lone"}), cells({"kind": "close"})
    for cell, joins in ((two, 150), (one, 0), (closed, 0)):
        check_joins(cell, Batch((), (), joins, 0))
    check_joins(two, Batch((), (), 0, 150))
    for cell, joins in ((two, 0), (one, 1)):
        with pytest.raises(TestbedError, match="void"):
            check_joins(cell, Batch((), (), joins, 0))


def test_connections_that_became_plain_tcp_are_counted_however_they_did() -> None:
    names = ("MPTcpExtMPCapableSYNTXDisabled", "MPTcpExtMPCapableSYNTXDrop", "MPTcpExtMPCapableFallbackSYNACK")
    assert plain({names[0]: 2, names[1]: 3, names[2]: 1, "MPTcpExtBlackhole": 1, "TcpExtX": 9}) == 6


def test_a_download_that_is_not_whole_voids_the_batch() -> None:
    whole = {"name": "500", "began": 10.0, "connected": 10.5, "end": 11.0, "octets": 500, "error": None}
    assert timed([whole], 9.0) == (Download(1.0, 1.5, 2.0),)
    for broken in ({}, {**whole, "octets": 499}, {**whole, "error": "ended after 3 of 500 bytes"}):
        with pytest.raises(TestbedError, match="1 of 2 downloads not complete"):
            timed([whole, broken], 9.0)


def test_what_the_page_in_the_browser_says_is_read() -> None:
    page, first, second = answers("0-1.html", ["10", "20"], 100.0, "250+300+10,260+900+20")
    assert (page["began"], page["end"], page["octets"]) == (100.0, 100.25, 0)
    assert (first["end"], second["end"], second["octets"]) == (100.3, 100.9, 20)
    assert len(timed([page, first, second], 99.0)) == 3


def _measured(variant: str, capped: float, *, fresh: bool = False, client: str = "two") -> Measured:
    [cell] = cells({"client": client})
    samples, downloads = batch(lambda _: capped, lambda _: 14)
    found = judge(samples, "eth0", "wlan0", CAP, downloads)
    return Measured(cell, variant, fresh, found, lead(downloads, 1), 150, 0, tuple(samples), BEGIN)


@pytest.mark.nightly
def test_tables_and_picture_show_each_variant(tmp_path: Path) -> None:
    measured = [_measured("none", 45), _measured("ours", 45, fresh=True), _measured("ours", 5), _measured("static", 5)]
    measured += [_measured("none", 45, client="lone"), _measured("ours", 45, fresh=True, client="lone")]
    batches = Batches(measured)
    console = Console(width=140, record=True, file=(tmp_path / "shown").open("w"))
    for table in tables(batches):
        console.print(table)
    shown = console.export_text()
    assert all(word in shown for word in ("ours, new", "static", "ideal", "one path", "later ones"))
    cell = drawn_cell(batches)
    assert isinstance(cell, Cell)
    draw(tmp_path / "pages.png", batches, cell)
    assert (tmp_path / "pages.png").stat().st_size > 10_000
    assert drawn_cell(Batches(measured[:1])) is None


def test_the_series_of_a_picture_begin_with_the_batch_and_end_in_silence() -> None:
    samples, _ = batch(lambda _: 40, lambda _: 0, 5)
    series = resampled(samples, BEGIN, 1.0)
    assert series[0].octets["eth0"] == 0
    assert series[-1].octets["eth0"] == series[-2].octets["eth0"] == samples[-1].octets["eth0"]


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        ("get", b"x" * 300, None),
        ("keepalive", b"x" * 300, None),
        ("get", b"x" * 299, "ended after 299 of 300 bytes"),
    ],
)
def test_the_client_reports_what_came_whole(
    kind: str, body: bytes, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Use plain TCP, so that no kernel with MPTCP is needed.
    monkeypatch.setattr(fetch, "MPTCP", 0)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + body)
            if len(body) < 300:
                break
        writer.close()

    async def all_of_it() -> list[dict[str, object]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        order = {"proxy": ["127.0.0.1", port], "target": ["10.77.9.2", 80], "kind": kind, "at_once": 2, "timeout": 5}
        fetcher = fetch.Fetcher({**order, "files": [["300", 300]] * 6})
        await fetcher.run()
        server.close()
        return fetcher.done

    done = asyncio.run(all_of_it())
    assert [each["error"] for each in done] == [error] * 6
    assert connections == (2 if kind == "keepalive" else 6)
    assert json.dumps(done)
