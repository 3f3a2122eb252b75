# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for statistics, and for functions of experiments that the mutants do not call."""

from __future__ import annotations

import math
import os
import re
import statistics as standard
import subprocess
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.crowds import REQUESTS_WITH_BUSY, TABLE
from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, delays
from mptcp_bench.experiments.peers import nginx_features
from mptcp_bench.experiments.relay_judging import cost, protocol_error
from mptcp_bench.experiments.relay_load import BUCKETS, buffers, latencies, octets, user_memory
from mptcp_bench.experiments.soak import descriptors, misplaced
from mptcp_bench.experiments.starvation import LAYOUTS, Layout
from mptcp_bench.experiments.tunnel_parts import Poll, Silence, reactions, to_call
from mptcp_bench.experiments.vpn_figures import bursts
from mptcp_bench.statistics import compare, exact_median_interval, mean_bounds, mean_interval, median, percentile
from mptcp_lab.agent.fetch import Fetcher
from mptcp_lab.agent.processes import kill_tree
from mptcp_lab.agent.processors import process_seconds, tree_seconds
from mptcp_lab.testbed.plan import steps
from mptcp_lab.testbed.recorder import Sample, longest_gap
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption
from mptcp_throttler.policy.load import load_policy

PROXY_PORT, FIRST_PORT, SECOND_PORT, NEXT_PORT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(time: float, port: int, option: MptcpOption) -> Segment:
    return Segment(time, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PROXY_PORT, 16, 0, 0, (option,))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({FIRST_PORT: 10.304, NEXT_PORT: 10.512}, [4, 2]),
        ({FIRST_PORT: 10.1, NEXT_PORT: 10.512}, [-200, 2]),
        ({FIRST_PORT: 10.31 + GIVE_UP_SECONDS, SECOND_PORT: 10.3015}, [math.inf, math.inf]),
    ],
    ids=["after the join", "before the join", "never, or much later"],
)
def test_reaction_ends_with_the_first_packet_in_the_capped_class(
    marked: dict[int, float], expected: list[float]
) -> None:
    segments = [
        segment(10.0, FIRST_PORT, CAPABLE),
        segment(10.001, FIRST_PORT, CAPABLE),
        segment(10.3, SECOND_PORT, THIRD_ACK),
        segment(10.45, SECOND_PORT, THIRD_ACK),
        segment(10.5, NEXT_PORT, CAPABLE),
        segment(10.51, SECOND_PORT + 1, THIRD_ACK),
    ]
    assert delays(segments, marked, PROXY_PORT) == pytest.approx(expected)


@pytest.mark.parametrize(("classes", "count"), [("cap default", 0), ("cap cap", 1), ("default default", 1)])
def test_connection_is_misplaced_unless_only_its_capped_path_has_the_class_of_the_cap(classes: str, count: int) -> None:
    ends = ["10.77.3.2:40000", "10.77.4.2:40001"]
    entries = dict(zip(ends, classes.split(), strict=True))
    assert misplaced({"abcd"}, {"abcd": ends}, entries, "cap") == count


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


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.9, 1.0) * 3, "holds"), ((0.5, 0.7) * 3, "fails"), ((0.7, 0.9) * 3, "not judged"), ((0.9,) * 5, "not judged"),
     ((), "not judged"), ((0.9, math.nan) * 3, "not judged")],
)  # fmt: skip
def test_claim_is_judged_only_if_its_whole_interval_is_on_one_side(values: Sequence[float], verdict: str) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_reactions_to_a_silent_path_are_computed_from_polls_of_both_ends() -> None:
    polls = [Poll(0.0, True, True), Poll(1.0, False, True), Poll(2.0, True, False), Poll(3.0, True, True)]
    assert reactions(polls, 0.5, 1.5, 0.3) == Silence(relay=0.5, proxy=1.5, back=1.5, lost=0.3)
    polls += [Poll(4.0, True, False), Poll(5.0, True, True)]
    assert reactions(polls, 0.5, 1.5, 0).back == 3.5
    assert reactions([*polls, Poll(6.0, False, True)], 0.5, 1.5, 0).back == math.inf
    assert reactions(polls[:1], 0.0, 1.5, 0) == Silence(math.inf, math.inf, math.inf, 0)


def test_longest_gap_is_not_the_sum_of_gaps() -> None:
    counts = (0, 100, 100, 200, 200, 200, 300, 400)
    samples = [Sample(number * 0.1, {"eth0": count, "wlan0": 0}) for number, count in enumerate(counts)]
    assert longest_gap(samples, ["eth0", "wlan0"], 1.0, 0.0, 1.0) == pytest.approx(0.2)


def test_packet_of_a_call_that_arrived_twice_counts_once_with_its_first_delay() -> None:
    # A whole call has 300 packets.
    call = to_call([(number, 0, 20_000_000) for number in range(150)] + [(7, 0, 90_000_000)])
    assert (call.median, call.p99, call.loss) == (0.02, 0.02, 0.5)


@pytest.mark.parametrize(
    ("build", "features"),
    [
        ("nginx version: nginx/1.29.6\nconfigure arguments:", (False, False)),
        ("nginx version: nginx/1.29.7\nconfigure arguments:", (True, False)),
        ("nginx version: nginx/1.31.0\nconfigure arguments: --prefix=/x", (True, True)),
        ("nginx version: nginx/1.32.0\nconfigure arguments: --without-http_tunnel_module", (True, False)),
        ("", (False, False)),
    ],
)
def test_nginx_has_the_features_of_its_version_and_build(build: str, features: tuple[bool, bool]) -> None:
    assert nginx_features(build) == features


@given(st.lists(st.integers(0, 10**11), min_size=1), st.sampled_from((0.1, 50, 90, 99, 100)))
def test_percentiles_of_the_histogram_are_those_of_its_values(values: list[int], percent: float) -> None:
    counts = [0] * BUCKETS
    for value in values:
        # The bucket as native/relay_load.c computes it.
        shift = max(0, value.bit_length() - 6)
        counts[shift * 32 + (value >> shift)] += 1
    exact = sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
    assert latencies(counts, (percent,))[0] * 1e9 == pytest.approx(exact, rel=1 / 32, abs=1)
    assert latencies([0] * BUCKETS, (percent,)) == (math.inf,)


@pytest.mark.parametrize(
    ("client", "capable", "joins", "reason"),
    [
        ("mptcp1", 9, 0, "9 of 10 connections were Multipath TCP"),
        ("mptcp2", 10, 9, "9 of 10 connections had a second subflow"),
        ("tcp", 1, 0, "1 connections were Multipath TCP"),
        ("mptcp1", 10, 1, "1 second subflows"),
        ("mptcp2", 10, 10, None),
    ],
)
def test_connections_of_another_kind_are_void(client: str, capable: int, joins: int, reason: str | None) -> None:
    assert protocol_error(client, 10, capable, joins) == reason


def test_cost_of_nothing_is_infinite_and_unseen_processor_time_is_not_free() -> None:
    assert (cost("get", 1.0, 500_000_000, 0), cost("requests", 1.0, 1, 10_000)) == (2.0, 100.0)
    assert cost("get", 1.0, 0, 0) == math.inf
    assert math.isnan(cost("get", 0.0, 500_000_000, 0))


def test_buffers_of_a_socket_may_be_negative() -> None:
    """Defect: a socket whose forward allocation was 20 bytes below zero counted as 4 GB."""
    line = "ESTAB 0 0 10.77.8.2:3128 10.77.1.2:4\n\t skmem:(r1000,rb131072,t7,tb87040,f20,w3,o0,bl0,d0)\n"
    assert buffers(line + line.replace("f20", f"f{2**32 - 20}")) == 1023 + 983


@given(st.sets(st.integers(0, 60)))
def test_bursts_are_runs_without_a_gap(lost: set[int]) -> None:
    lengths = bursts(sorted(lost))
    assert sum(lengths) == len(lost)
    assert len(lengths) == sum(number - 1 not in lost for number in lost)


TICK = 1 / os.sysconf("SC_CLK_TCK")
WORKER_SECONDS, WORKER_BYTES = 0.2, 8_000_000
PROGRAM = f"""
import os, sys, time
for _ in range(2):
    if not os.fork():
        held = bytearray(os.urandom({WORKER_BYTES}))
        while time.process_time() < {WORKER_SECONDS}:
            pass
        os.write(1, b"ready\\n")  # one write, so that the lines of both are not mixed
        sys.stdin.readline()
        os._exit(0)
for _ in range(2):
    os.wait()
print("ended", flush=True)
time.sleep(600)
"""
"""An idle process with two workers, which end after a line of input."""


def test_usage_includes_all_processes_and_the_time_of_ended_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            assert tree_seconds(parent.pid) >= process_seconds(parent.pid) + 2 * WORKER_SECONDS
            for kind in ("Pss", "Rss"):
                own = octets(Path(f"/proc/{parent.pid}/smaps_rollup").read_text(), kind)
                assert user_memory(parent.pid, kind) >= own + 2 * WORKER_BYTES
            assert descriptors(parent.pid) >= 3 * 3
            parent.stdin.close()
            assert parent.stdout.readline() == b"ended\n"
            assert tree_seconds(parent.pid) < 2 * WORKER_SECONDS
            assert tree_seconds(parent.pid, ended=True) >= 2 * (WORKER_SECONDS - 2 * TICK)
        finally:
            kill_tree(parent.pid)


SAMPLES = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=12)


@given(SAMPLES, SAMPLES, st.sampled_from([0.5, 0.95, 1.0, 2.0]))
def test_intervals_are_those_of_student_and_welch(sample: list[float], reference: list[float], factor: float) -> None:
    scaled = [factor * value for value in reference]
    assume(standard.variance(sample) > 1e-6 and standard.variance(scaled) > 1e-6)
    mean, found = mean_interval(sample), compare(sample, reference, factor)
    assert mean.half is not None
    student, welch = stats.ttest_1samp(sample, 0), stats.ttest_ind(sample, scaled, equal_var=False)
    # Two one-sided bounds of 95 % form a two-sided interval of 90 %.
    for pair, interval in (
        ((mean.mean - mean.half, mean.mean + mean.half), student.confidence_interval()),
        (mean_bounds(sample), student.confidence_interval(0.9)),
        ((found.low, found.high), welch.confidence_interval(0.9)),
    ):
        assert pair == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_a_single_run_has_no_bounds_and_equal_values_have_no_spread() -> None:
    assert (mean_interval([7.0, 7.0, 7.0]).half, mean_interval([4.0]).half) == (0, None)
    assert (mean_bounds([7.0, 7.0]), mean_bounds([1.0, math.inf])) == ((7, 7), (math.inf, math.inf))
    assert all(map(math.isnan, (*mean_bounds([]), *mean_bounds([3.0]), *mean_bounds([3.0, math.nan]))))
    assert compare([200.0], [100.0, 101.0]).low is compare([200.0, 201.0], [100.0]).high is None
    assert (compare([9.0, 9.0], [7.0, 7.0]).low, compare([9.0, 9.0], 7.0).high) == (2, 2)


def test_percentile_may_be_infinite() -> None:
    assert (median([1.0, math.inf, math.inf]), median([1.0, 2.0, math.inf])) == (math.inf, 2.0)
    assert percentile([], 99, default=math.inf) == math.inf


def test_interval_of_the_median() -> None:
    # Ranks from Conover's table.
    ranks = {0: None, 5: None, 6: (1, 6), 8: (1, 8), 9: (2, 8), 12: (3, 10), 20: (6, 15)}
    assert {n: exact_median_interval(range(n, 0, -1)) for n in ranks} == ranks
