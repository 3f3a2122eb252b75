# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parts of experiments that no mutant reaches: reactions, caps, layouts, a picture, the client of pages."""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mutants_of_caps import onset_run

from mptcp_bench.experiments import onset
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.crowds import REQUESTS_WITH_BUSY, TABLE
from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, delays
from mptcp_bench.experiments.soak import misplaced
from mptcp_bench.experiments.starvation import LAYOUTS, Layout
from mptcp_lab.agent import fetch
from mptcp_lab.testbed.plan import steps
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption
from mptcp_throttler.policy.load import load_policy

PORT, FIRST, SECOND, NEXT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(time: float, port: int, option: MptcpOption) -> Segment:
    return Segment(time, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PORT, 16, 0, 0, (option,))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({FIRST: 10.304, NEXT: 10.512}, [4, 2]),
        ({FIRST: 10.1, NEXT: 10.512}, [-200, 2]),
        ({FIRST: 10.31 + GIVE_UP_SECONDS, SECOND: 10.3015}, [math.inf, math.inf]),
    ],
    ids=["after the join", "before the join", "never, or much later"],
)
def test_reaction_ends_with_the_first_marked_packet_of_the_capped_subflow(
    marked: dict[int, float], expected: list[float]
) -> None:
    segments = [
        segment(10.0, FIRST, CAPABLE), segment(10.001, FIRST, CAPABLE), segment(10.3, SECOND, THIRD_ACK),
        segment(10.45, SECOND, THIRD_ACK), segment(10.5, NEXT, CAPABLE), segment(10.51, SECOND + 1, THIRD_ACK),
    ]  # fmt: skip
    assert delays(segments, marked, PORT) == pytest.approx(expected)


@pytest.mark.parametrize(("classes", "wrong"), [("cap default", 0), ("cap cap", 1), ("default default", 1)])
def test_cap_is_correct_if_its_class_has_only_the_capped_path(classes: str, wrong: int) -> None:
    ends = ["10.77.3.2:40000", "10.77.4.2:40001"]
    entries = dict(zip(ends, classes.split(), strict=True))
    assert misplaced({"abcd"}, {"abcd": ends}, entries, "cap") == wrong


def test_nftables_limit_allows_the_requests_with_a_busy_client() -> None:
    (burst,) = set(re.findall(r"@clients4 .* burst (\d+) packets", TABLE.read_text()))
    assert int(burst) > REQUESTS_WITH_BUSY


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_layout_can_be_built_and_its_policy_has_its_cap(layout: Layout) -> None:
    topology = layout.topology()
    assert steps(topology, {node.name: node.name for node in topology.nodes})
    [rule] = load_policy(layout.policy(), layout.name).rules
    assert rule.throttle is not None
    assert set(rule.paths or ()) == {layout.capped}
    assert rule.throttle.rate == pytest.approx(layout.cap * 1e6)


def test_picture_shows_the_first_cell_that_has_both_landings(tmp_path: Path) -> None:
    """All transfers of a cell may have failed."""
    first, second = onset.SCENARIO.cells(onset.SCENARIO.chosen({"rtt": "20/20", "cap": "100-5"}))
    turns = [Turn(first, "soft", 1), Turn(second, "at-once", 1), Turn(second, "soft", 1)]
    runs = [Run(turn, onset_run(turn)) for turn in turns]
    assert onset.pictures(Results(turns, runs[:2])) == []
    [picture] = onset.pictures(Results(turns, runs))
    picture.draw(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert str(second) in text
    assert str(first) not in text


@pytest.mark.parametrize(("kind", "octets"), [("get", 300), ("keepalive", 300), ("get", 299)])
def test_client_of_many_files_reports_complete_and_incomplete_files(
    kind: str, octets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Use plain TCP, so that no kernel with MPTCP is needed.
    monkeypatch.setattr(fetch, "MPTCP", 0)
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"x" * octets)
                if octets < 300:
                    break
        writer.close()

    async def download() -> list[dict[str, Any]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = ["127.0.0.1", server.sockets[0].getsockname()[1]]
        order = {"proxy": proxy, "target": ["10.77.9.2", 80], "kind": kind, "at_once": 2, "timeout": 5}
        fetcher = fetch.Fetcher({**order, "files": [["300", 300]] * 6})
        await fetcher.run()
        server.close()
        return fetcher.done

    error = None if octets == 300 else "ended after 299 of 300 bytes"
    assert [each["error"] for each in asyncio.run(download())] == [error] * 6
    assert len(connections) == (2 if kind == "keepalive" else 6)
