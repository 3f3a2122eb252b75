# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parts of experiments that no mutant reaches: reactions, caps, layouts, a picture, the client of pages."""

from __future__ import annotations

import math
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mutants_of_caps import onset_run

from mptcp_bench.experiments import onset
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.crowds import REQUESTS_WITH_BUSY, TABLE
from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, delays
from mptcp_bench.experiments.soak import misplaced
from mptcp_bench.experiments.starvation import LAYOUTS, Layout
from mptcp_lab.agent.fetch import Fetcher
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
def test_client_of_many_files_reports_complete_and_incomplete_files(kind: str, octets: int) -> None:
    connections = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            connections.append(self.client_address)
            super().setup()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "300")
            self.end_headers()
            self.wfile.write(b"x" * octets)
            self.close_connection = octets < 300

        def log_message(self, *_: object) -> None:
            """Do not write a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever).start()
        order = {"proxy": server.server_address, "target": ["10.77.9.2", 80], "kind": kind, "at_once": 2, "timeout": 5}
        downloads = Fetcher({**order, "files": [["300", 300]] * 6}).run()
        server.shutdown()
    error = None if octets == 300 else "IncompleteRead(299 bytes read, 1 more expected)"
    assert [each["error"] for each in downloads] == [error] * 6
    assert (len(connections) == 6) is (kind == "get"), f"{kind}: {len(connections)} connections"
