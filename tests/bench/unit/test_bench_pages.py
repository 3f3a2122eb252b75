# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``pages``: its use of byte counters, void batches, and the client of many files."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mutants import constant
from mutants_of_pages import batch

from mptcp_bench.experiments.pages import NEW, OURS, SCENARIO, check_joins
from mptcp_bench.experiments.pages_bed import ip_octets, plain, timed
from mptcp_bench.experiments.pages_cells import Cell
from mptcp_bench.experiments.pages_judging import Batch, Download, judge
from mptcp_lab.agent import fetch
from mptcp_lab.agent.counters import devices
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.node import InterfaceBytes
from mptcp_lab.testbed.recorder import Sample


def cells(quick: bool = False, **options: str) -> list[Cell]:
    return list(SCENARIO.cells(SCENARIO.chosen(options, quick)))


[TWO], [LONE] = cells(client="two"), cells(client="lone")


def test_a_burst_counts_wherever_it_falls_but_not_outside_of_the_batch() -> None:
    late = batch(TWO, lambda t: 45 if 2.05 <= t < 2.45 else 0.5, constant(20), 6.0)
    assert late.worst == pytest.approx((0.4 * 45 + 1.6 * 0.5) / 2 / 5, rel=0.1)
    samples = [Sample(t / 10, {"eth0": 1_000_000 * t, "wlan0": 0}) for t in range(11)]
    found = judge(samples, TWO, [Download(0.25, 0.26, 0.75)])
    assert (found.mean, found.worst) == pytest.approx((80 / 5, 40 / 2 / 5)), "what is outside counts as silence"
    with pytest.raises(ValueError, match="span"):
        judge(samples, TWO, [Download(0.25, 0.26, 1.75)])
    text = "Inter-|\n face |\n  eth0: 1514000 1000 0 0 0 0 0 0 9 9\n"
    octets = {device: ip_octets(InterfaceBytes(*seen)) for device, seen in devices(text).items()}
    assert octets == {"eth0": 1_500_000}, "without headers of the link"


def test_cells_are_the_combinations_of_the_options_or_a_selection() -> None:
    found = cells(size="20k,2M", cap="1,5", rtt="20/20,20/80", number="7")
    assert len(set(found)) == 8
    assert {sum(cell.sizes) for cell in found} == {140_000, 14_000_000}
    assert (len(cells()), len(cells(quick=True))) == (14, 3)
    [page] = cells(size="mixed", kind="keepalive")
    assert (len(page.sizes), round(sum(page.sizes) / 1e5), page.at_once) == (63, 74, 8)
    planned = [(turn.variant, turn.number) for turn in SCENARIO.plan(SCENARIO.chosen({"client": "lone"}))]
    assert planned == [(variant, number) for number in (1, 2) for variant in ("none", NEW, OURS)]


def test_a_batch_is_void_with_other_paths_or_a_download_that_is_not_whole() -> None:
    for cell, joins, plain_ones in ((TWO, 150, 0), (LONE, 0, 0), (TWO, 0, 150)):
        check_joins(cell, Batch(1.0, 1.0, joins=joins, plain=plain_ones))
    for cell, joins in ((TWO, 0), (LONE, 1)):
        with pytest.raises(TestbedError, match="void"):
            check_joins(cell, Batch(1.0, 1.0, joins=joins))
    whole = {"name": "500", "began": 10.0, "connected": 10.5, "end": 11.0, "octets": 500, "error": None}
    assert timed([whole], 9.0) == (Download(1.0, 1.5, 2.0),)
    for broken in ({}, {**whole, "octets": 499}, {**whole, "error": "ended after 3 of 500 bytes"}):
        with pytest.raises(TestbedError, match="1 of 2 downloads not complete"):
            timed([whole, broken], 9.0)
    names = ("MPTcpExtMPCapableSYNTXDisabled", "MPTcpExtMPCapableSYNTXDrop", "MPTcpExtMPCapableFallbackSYNACK")
    assert plain({names[0]: 2, names[1]: 3, names[2]: 1, "MPTcpExtBlackhole": 1, "TcpExtX": 9}) == 6


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
