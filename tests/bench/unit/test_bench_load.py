# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what the experiments load, soak and goodput read of packets, of ss(8), tc(8), status and metrics."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import missed
from mutants_of_load import LOAD

from mptcp_bench.experiments import load_entries
from mptcp_bench.experiments.goodput import CELLS, void
from mptcp_bench.experiments.join_client import port_at
from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, Sent, samples
from mptcp_bench.experiments.load import SCENARIO, cells
from mptcp_bench.experiments.load_crowd import CAPPED, FULL, NODE, UNCAPPED, Caps, shown, two_subflows, with_crowd
from mptcp_bench.experiments.load_entries import through_class
from mptcp_bench.experiments.load_held import Examination, HeldCell, is_whole
from mptcp_bench.experiments.parameters import OptionError
from mptcp_bench.experiments.soak import bpf_bytes, ceilings, descriptors, growth, misplaced
from mptcp_lab.testbed import TWO_PATHS
from mptcp_lab.testbed.plan import steps
from mptcp_lab.testbed.protocol import Protocol
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.shaping.model import DEFAULT_MINOR, Ownership

PORT, FIRST, SECOND, NEXT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(at: float, port: int, option: MptcpOption) -> Segment:
    return Segment(at, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PORT, 16, 0, 0, (option,))


OPENED = [segment(10.0, FIRST, CAPABLE), segment(10.001, FIRST, CAPABLE), segment(10.3, SECOND, THIRD_ACK)]
"""A connection that began at 10 s and was joined at 10.3 s."""


def test_a_reaction_ends_with_the_first_marked_packet_of_the_capped_subflow() -> None:
    packets = [
        Sent(10.2, FIRST, 1000, False),
        Sent(10.301, FIRST, 1400, False),
        Sent(10.3015, SECOND, 9999, True),
        Sent(10.304, FIRST, 1400, True),
        Sent(10.305, FIRST, 1400, True),
    ]
    again = segment(10.45, SECOND, THIRD_ACK)
    [found] = samples([*OPENED, again], packets, PORT)
    assert found == pytest.approx({"delay_ms": 4, "bytes": 1400, "age_ms": 300})


@pytest.mark.parametrize(
    ("sent", "delay"),
    [
        (Sent(10.1, FIRST, 1400, True), -200),
        (Sent(10.4, FIRST, 1400, False), math.inf),
        (Sent(10.31 + GIVE_UP_SECONDS, FIRST, 1400, True), math.inf),
        (Sent(10.4, NEXT, 1400, True), math.inf),
    ],
    ids=["before the join", "never", "much later", "of another connection"],
)
def test_a_delay_is_negative_or_infinite_when_the_join_brought_no_cap(sent: Sent, delay: float) -> None:
    [found] = samples(OPENED, [sent], PORT)
    assert found["delay_ms"] == pytest.approx(delay)


def test_each_connection_is_judged_by_its_own_packets() -> None:
    following = [segment(10.5, NEXT, CAPABLE), segment(10.51, SECOND + 1, THIRD_ACK)]
    packets = [Sent(10.512, NEXT, 1400, True), Sent(10.7, FIRST, 1400, True)]
    assert [each["delay_ms"] for each in samples([*OPENED, *following], packets, PORT)] == pytest.approx([400, 2])


def test_connections_of_two_runs_have_different_ports_when_the_second_follows_at_once() -> None:
    """An entry stays for ten seconds after its subflow's end."""
    ports = [port_at(1234.5 + 0.25 * number) for number in range(400)]
    assert len(set(ports)) == len(ports)
    assert all(1024 < port < 32_768 for port in ports)


@pytest.mark.parametrize("caps", [UNCAPPED, CAPPED, FULL, Caps(client=5_000_000, landing="soft")])
def test_policies_are_valid_and_anticipate_nothing_when_reactions_are_measured(caps: Caps) -> None:
    names = [rule.name for rule in load_policy(caps.text(), "policy.yaml").rules]
    asked = {"client": caps.client, "crowd": caps.crowd, "volume": caps.budget}
    assert names == [name for name, wanted in asked.items() if wanted]
    assert ("anticipate: false" in caps.text()) is (caps.client is not None and caps.landing == "at-once")


def test_the_crowd_has_two_paths_of_its_own_beside_the_client() -> None:
    crowded = with_crowd(TWO_PATHS)
    assert crowded.devices(NODE) == ("eth0", "wlan0")
    assert [endpoint.address for endpoint in crowded.node(NODE).endpoints] == ["10.77.3.2", "10.77.4.2"]
    assert crowded.node("client") == TWO_PATHS.node("client")
    assert steps(crowded, {node.name: node.name for node in crowded.nodes})


@pytest.mark.parametrize("options", [{"n": "100,10"}, {"n": "0"}, {"seconds": "0"}, {"reactions": "3"}, {"part": "x"}])
def test_load_refuses_options_that_make_no_sense(options: dict[str, str]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(OptionError, match=f"^--set {name}={value}: allowed "):
        SCENARIO.chosen(options)


def test_load_measures_only_the_parts_that_are_chosen() -> None:
    assert cells(SCENARIO.chosen({"part": "held", "n": "7"})) == [HeldCell(7, 30, 200, 6)]


def test_noise_that_hides_a_cost_misses_the_bound_of_the_mean_and_not_the_median() -> None:
    mutant = LOAD.mutants["entries: noise hides what they do"]
    assert {what.rpartition("entries, ")[2] for what in missed(mutant)} == {"mean, lower bound"}


@pytest.mark.parametrize("share", [1.0, 0.71])
def test_the_share_through_our_class_counts_only_bytes_of_the_transfer(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: bytes on the wire since the start were compared with one second of payload, so a share of 0.71 passed."""
    ours, device = iter([5_000, 5_000 + round(share * 1e9)]), iter([9_000, 9_000 + 10**9])
    monkeypatch.setattr(load_entries, "through_class", lambda testbed: next(ours))
    proxy = SimpleNamespace(address=str, interface_bytes=lambda name: SimpleNamespace(sent=next(device)))
    client = SimpleNamespace(run=lambda argv, timeout: SimpleNamespace(stdout="8e9"))
    bed: Any = load_entries.Beds({"0 entries": {"proxy": proxy, "client": client}})  # type: ignore[dict-item]
    carried = load_entries.EntriesCell("nftables").measure(bed, "0 entries")
    assert carried.through == pytest.approx(share)


def test_bytes_are_those_of_our_class_for_uncapped_traffic() -> None:
    ours = f"class htb {Ownership().htb_major:x}:{DEFAULT_MINOR:x} parent 1: prio 0\n Sent 42 bytes 9 pkt\n"
    shown = SimpleNamespace(stdout=f"class htb 1:7 root\n Sent 7 bytes\n{ours}")
    testbed: Any = {"proxy": SimpleNamespace(run=lambda argv: shown)}
    assert through_class(testbed) == 42


@pytest.mark.parametrize(("standing", "trickled"), [(10, 0.5), (0, math.nan)])
def test_trickle_is_a_share_of_what_is_owed_and_none_when_all_tunnels_are_gone(
    standing: int, trickled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: with no tunnel left, a share was divided by zero, and all measurements were lost."""
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("mptcp_bench.experiments.load_held.time", SimpleNamespace(monotonic=lambda: next(clock)))
    octets = iter([0, 0, standing * 25_000])
    examination: Any = object.__new__(Examination)
    client = SimpleNamespace(read=lambda: SimpleNamespace(standing=standing, octets=next(octets)))
    examination._crowd = SimpleNamespace(client=client)
    examination._used = lambda pid: (0.0, 0.0, 0.0, 1.0)
    assert examination._window(1, lambda: None).trickled == pytest.approx(trickled, nan_ok=True)


METRICS = "# HELP x\nmptcp_throttler_up 1.0\nmptcp_throttler_connections 10000.0\n"


@pytest.mark.parametrize("text", [METRICS.replace("up 1.0", "up 0.0"), METRICS.replace("10000.0", "9999.0"), ""])
def test_a_scrape_counts_only_with_a_throttler_that_has_every_connection(text: str) -> None:
    assert is_whole(METRICS, 10_000)
    assert not is_whole(text, 10_000)


def test_connections_with_two_subflows_are_found_by_the_proxys_token() -> None:
    line = "0 0 10.77.8.2:3128 10.77.3.2:40000\n\t bbr tcp-ulp-mptcp flags:Mmec token:0000(id:0)/{}(id:{}) seq:1\n"
    listed = "".join(line.format(token, number) for token, number in (("abcd", 0), ("abcd", 2), ("ef", 0)))
    assert two_subflows(listed) == {"abcd"}


ENDS = ["10.77.3.2:40000", "10.77.4.2:40001"]
CAP, DEFAULT = "4d50:10", "4d50:ffff"


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ({ENDS[0]: CAP}, 0),
        ({ENDS[0]: CAP, ENDS[1]: DEFAULT}, 0),
        ({}, 1),
        ({ENDS[0]: DEFAULT}, 1),
        ({ENDS[1]: CAP}, 1),
        ({ENDS[0]: CAP, ENDS[1]: CAP}, 1),
    ],
    ids=["right", "the other is known", "no entry", "not in the cap", "the wrong path", "both paths"],
)
def test_a_cap_is_right_when_only_the_capped_path_is_in_its_class(entries: dict[str, str], wrong: int) -> None:
    assert len(misplaced({"abcd"}, {"abcd": ENDS}, entries, CAP)) == wrong


def test_a_cap_is_wrong_without_its_class_and_without_subflows() -> None:
    assert misplaced({"abcd"}, {}, {ENDS[0]: CAP}, CAP) == [f"abcd (class of the cap: {CAP}): no subflows"]
    assert misplaced({"abcd"}, {"abcd": ENDS}, {ENDS[0]: CAP}, "") == [
        f"abcd (class of the cap: none): {ENDS[0]}, {CAP}; {ENDS[1]}, no entry"
    ]


def test_the_class_of_the_cap_is_found_by_a_ceiling_that_may_be_lowered_for_a_while() -> None:
    line = "class htb 4d50:{} parent 4d50:1 leaf 2: prio 0 rate 8bit ceil {} burst 1500b cburst 1500b\n"
    others = line.format("ffff", "100Gbit") + line.format("12", "5Mbit")
    assert ceilings(others + line.format("11", "998877Kbit")) == {"4d50:11": 998.877e6}
    assert ceilings(others) == {}


def test_growth_is_from_the_second_third_to_the_last() -> None:
    assert growth([50, 50, 100, 100, 120, 120]) == pytest.approx(0.2)
    assert growth([1, 2, 0, 0, 0.5, 0.5]) == 0.5
    assert math.isnan(growth([100, 100]))
    assert math.isnan(growth([100, 100, math.nan]))


def test_status_is_read_by_tokens_as_ss_writes_them() -> None:
    def connection(token: str, *ends: str) -> dict[str, Any]:
        return {"token": token, "subflows": [{"remote": end} for end in ends]}

    others = [connection("11111111", ENDS[0]), connection("22222222", "10.77.1.2:5", "10.77.2.2:5")]
    status = {"connections": [*others, connection("00000001", *ENDS)]}
    assert shown(status) == {"0001": ENDS}
    assert shown({}) == {}


def test_what_a_process_holds_is_no_number_when_it_has_ended() -> None:
    assert descriptors(os.getpid()) >= 3
    assert bpf_bytes(os.getpid()) == 0
    assert math.isnan(descriptors(2**22 + 1))
    assert math.isnan(bpf_bytes(2**22 + 1))


PROTOCOL = Protocol(requested=1, fallbacks=0, joins=1, proxy_requested=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fallbacks": 1}, "fell back to plain TCP"),
        ({"proxy_requested": 1}, "towards the origin"),
        ({"requested": 0}, "asked for 0 MPTCP connections"),
        ({"joins": 0}, "1 subflows instead of 2"),
    ],
)
def test_a_download_is_void_when_it_is_of_another_kind(change: dict[str, int], said: str) -> None:
    assert void(CELLS[0], PROTOCOL) is None
    assert said in (void(CELLS[0], replace(PROTOCOL, **change)) or "")
