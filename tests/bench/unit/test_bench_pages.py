# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``pages``: its use of byte counters, its policies, and which batches are void."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mutants import constant, rehearsed
from mutants_of_pages import OPTIONS, SOUND, batch

from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.pages import NEW, OURS, SCENARIO, check_joins, variants
from mptcp_bench.experiments.pages_bed import ip_octets, plain, static_class, timed
from mptcp_bench.experiments.pages_browser import answers
from mptcp_bench.experiments.pages_cells import Settings, cells, cells_of
from mptcp_bench.experiments.pages_judging import Batch, Download, ideal, judge
from mptcp_bench.experiments.parameters import settings
from mptcp_bench.experiments.payload import payload_share
from mptcp_lab.agent import fetch
from mptcp_lab.agent.counters import devices
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.node import InterfaceBytes
from mptcp_lab.testbed.recorder import Sample
from mptcp_throttler.policy.load import load_policy

[TWO], [LONE] = cells({"client": "two"}), cells({"client": "lone"})


def test_a_burst_is_seen_in_the_worst_window_wherever_it_falls() -> None:
    late = batch(TWO, lambda t: 45 if 2.05 <= t < 2.45 else 0.5, constant(20), 6.0)
    assert late.worst == pytest.approx((0.4 * 45 + 1.6 * 0.5) / 2 / 5, rel=0.1)
    early = batch(TWO, lambda t: 45 if t < 0.5 else 0.5, constant(20), 6.0)
    assert early.ahead == pytest.approx(0.4 * 40e6 / 8, rel=0.1)


def test_bytes_outside_of_a_batch_are_not_its_own() -> None:
    samples = [Sample(t / 10, {"eth0": 1_000_000 * t, "wlan0": 0}) for t in range(11)]
    found = judge(samples, TWO, [Download(0.25, 0.26, 0.75)])
    assert found.mean == pytest.approx(80 / 5)
    assert found.worst == pytest.approx(40 / 2 / 5), "what is outside counts as silence"
    with pytest.raises(ValueError, match="span"):
        judge(samples, TWO, [Download(0.25, 0.26, 1.75)])


def test_the_ideal_batch_fills_both_paths_and_counts_headers() -> None:
    # 1500 bytes minus IP 20, TCP 20, timestamps 12, and, with MPTCP, 28 bytes of a DSS option.
    assert [payload_share(4, multipath=multipath) for multipath in (False, True)] == [1448 / 1514, 1420 / 1514]
    assert payload_share(6, multipath=True) == 1400 / 1514
    assert ideal(TWO).seconds == pytest.approx(15e6 * 8 * 1514 / 1420 / 25e6)


def test_headers_of_the_link_are_not_counted() -> None:
    text = "Inter-|\n face |\n  eth0: 1514000 1000 0 0 0 0 0 0 9 9\n    lo: 0 0 0 0 0 0 0 0 0 0\n"
    octets = {device: ip_octets(InterfaceBytes(*seen)) for device, seen in devices(text).items()}
    assert octets == {"eth0": 1_500_000, "lo": 0}


def test_cells_are_the_combinations_of_the_options_or_a_selection() -> None:
    found = cells({"size": "20k,2M", "cap": "1,5", "rtt": "20/20,20/80", "number": "7"})
    assert len(set(found)) == 8
    assert {sum(cell.sizes) for cell in found} == {140_000, 14_000_000}
    assert len(cells({})) == 22
    assert len(cells({}, quick=True)) == 3
    assert {cell.number for cell in cells({"number": "9"}, quick=True)} == {9, 40}
    [page] = cells({"size": "mixed", "kind": "chromium"})
    assert (len(page.sizes), round(sum(page.sizes) / 1e5), page.at_once) == (63, 74, 6)
    with pytest.raises(OptionError, match="below its path's rate"):
        cells({"cap": "50"})


def test_variants_have_equally_many_batches_and_a_client_with_one_path_no_classes() -> None:
    chosen = settings(Settings, {"client": "two,lone,lost", "runs": "2"}, False)
    assert [variants(chosen, cell) for cell in cells_of(chosen)] == [
        ["none", NEW, OURS, "static", "link"], ["none", NEW, OURS], ["none", NEW]
    ]  # fmt: skip
    planned = [(turn.variant, turn.number) for turn in SCENARIO.plan(chosen) if turn.cell.client == "lone"]
    assert planned == [(variant, number) for number in (1, 2) for variant in ("none", NEW, OURS)]


@pytest.mark.parametrize("policy", ["cap", "min1", "budget"])
@pytest.mark.parametrize("share", ["path", "client", "connection"])
def test_every_policy_is_one(policy: str, share: str) -> None:
    [cell] = cells({"policy": policy, "share": share})
    assert load_policy(cell.policy_text(), "policy.yaml").rules[0].name == "cap"


def test_the_static_class_has_the_rate_and_the_queue_that_ours_would_have() -> None:
    [do, undo] = static_class(cells({"cap": "1", "at_once": "10"})[0])
    assert "rate 1000000bit ceil 1000000bit" in do[2]
    assert "pfifo limit 16" in do[2]
    assert undo == ["tc", "qdisc", "del", "dev", "wan0", "root"]


def test_a_batch_is_void_if_the_client_had_other_paths_than_it_should_have() -> None:
    [closed] = cells({"kind": "close"})
    for cell, joins, plain_ones in ((TWO, 150, 0), (LONE, 0, 0), (closed, 0, 0), (TWO, 0, 150)):
        check_joins(cell, Batch(1.0, 1.0, joins=joins, plain=plain_ones))
    for cell, joins in ((TWO, 0), (LONE, 1)):
        with pytest.raises(TestbedError, match="void"):
            check_joins(cell, Batch(1.0, 1.0, joins=joins))


def test_a_batch_is_void_if_a_download_is_not_whole() -> None:
    whole = {"name": "500", "began": 10.0, "connected": 10.5, "end": 11.0, "octets": 500, "error": None}
    assert timed([whole], 9.0) == (Download(1.0, 1.5, 2.0),)
    for broken in ({}, {**whole, "octets": 499}, {**whole, "error": "ended after 3 of 500 bytes"}):
        with pytest.raises(TestbedError, match="1 of 2 downloads not complete"):
            timed([whole, broken], 9.0)


def test_connections_that_became_plain_tcp_are_counted_however_they_did() -> None:
    names = ("MPTcpExtMPCapableSYNTXDisabled", "MPTcpExtMPCapableSYNTXDrop", "MPTcpExtMPCapableFallbackSYNACK")
    assert plain({names[0]: 2, names[1]: 3, names[2]: 1, "MPTcpExtBlackhole": 1, "TcpExtX": 9}) == 6


def test_times_that_the_page_in_the_browser_says_are_read() -> None:
    page, first, second = answers("0-1.html", ["10", "20"], 100.0, "250+300+10,260+900+20")
    assert (page["began"], page["end"], page["octets"]) == (100.0, 100.25, 0)
    assert (first["end"], second["end"], second["octets"]) == (100.3, 100.9, 20)


@pytest.mark.nightly
def test_tables_and_picture_show_each_variant(tmp_path: Path) -> None:
    results = rehearsed(SCENARIO, OPTIONS, lambda turn: batch(turn.cell, *SOUND[turn.variant]))
    findings = SCENARIO.findings(results.turns, results.runs[: len(results.turns)])
    two, one = findings.tables[:2]
    assert list(two.columns[1].cells) == ["none", NEW, OURS, "static", "link", "ideal"]
    assert one.row_count == 5
    [picture] = findings.pictures
    picture.draw(tmp_path / "pages.png")
    assert (tmp_path / "pages.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("kind", "octets", "error"),
    [("get", 300, None), ("keepalive", 300, None), ("get", 299, "ended after 299 of 300 bytes")],
)
def test_the_client_of_many_files_reports_what_came_whole(
    kind: str, octets: int, error: str | None, monkeypatch: pytest.MonkeyPatch
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
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"x" * octets)
            if octets < 300:
                break
        writer.close()

    async def all_of_it() -> list[dict[str, Any]]:
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
