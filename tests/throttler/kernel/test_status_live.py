# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the status socket on real connections: byte counts, sockets, classes, explanations and events."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from throttler_site import POLICY, Site, connected, listening, running, until

from mptcp_common.status_client import ask
from mptcp_lab.testbed.services import Throttler

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel"),
    pytest.mark.nightly(except_for=("nftables",)),
]

SENT_BYTES = 3_000_000
ANSWER_TIMEOUT = 60.0
TIMEOUT = 60.0
"""Time limit in seconds, for a busy machine."""


def query(throttler: Throttler, name: str, **arguments: object) -> dict[str, Any]:
    found = ask(throttler.socket, {"query": name} | arguments, ANSWER_TIMEOUT)
    assert "error" not in found
    return found


def transfer(sender: socket.socket, receiver: socket.socket, count: int) -> None:
    """Send *count* bytes, and wait until all have arrived."""
    sending = threading.Thread(target=sender.sendall, args=(b"x" * count,))
    sending.start()
    received = 0
    receiver.settimeout(60)
    while received < count:
        data = receiver.recv(1 << 16)
        assert data
        received += len(data)
    sending.join()


def byte_totals(summary: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of each path in both directions, and of each rule on each path."""
    found = {f"{each['path']} sent": each["bytes_sent"] for each in summary["paths"]}
    found |= {f"{each['path']} received": each["bytes_received"] for each in summary["paths"]}
    return found | {f"{each['rule']} {each['path']}": each["bytes"] for each in summary["rules"]}


def test_byte_totals_are_correct_and_remain_after_connections_end(site: Site) -> None:
    totals_so_far: list[dict[str, int]] = []
    with running(site) as throttler:

        def read() -> dict[str, Any]:
            summary = query(throttler, "summary")
            totals_so_far.append(byte_totals(summary))
            return summary

        with ExitStack() as stack:
            listener = stack.enter_context(listening(site))
            client, proxy = stack.enter_context(connected(site, listener))
            until(lambda: query(throttler, "summary")["subflows"]["active"] == 2, TIMEOUT)
            transfer(proxy, client, SENT_BYTES)
            transfer(client, proxy, SENT_BYTES // 10)
            until(lambda: sum(each["bytes_sent"] for each in read()["paths"]) >= SENT_BYTES, TIMEOUT)
            summary = read()
            assert {each["path"]: each["subflows"] for each in summary["paths"]} == {"ethernet": 1, "wifi": 1}
            until(lambda: sum(each["bytes_received"] for each in read()["paths"]) >= SENT_BYTES // 10, TIMEOUT)
            (rule,) = summary["rules"]
            assert (rule["rule"], rule["path"], rule["capped"], rule["rate"]) == (
                "spare-ethernet", "ethernet", 1, 5_000_000,
            )  # fmt: skip

            def agrees_with_tc() -> bool:
                """Return whether tc shows the same counters.

                On a busy machine, packets may pass between the two readings.
                """
                (cap,) = query(throttler, "summary")["classes"]
                assert (cap["rule"], cap["classid"][:5]) == ("spare-ethernet", "4d50:")
                listing = site.proxy.run(["tc", "-s", "class", "show", "dev", "wan0"]).stdout
                shown = listing.split(f"class htb {cap['classid']} ")[1].split("Sent ")[1].split()
                return (cap["bytes"], cap["packets"]) == (int(shown[0]), int(shown[2]))

            until(agrees_with_tc, TIMEOUT)
        until(lambda: not read()["connections"], TIMEOUT)
        after = read()
        sent_bytes = sum(each["bytes_sent"] for each in after["paths"])
        # Data that are retransmitted on another subflow count twice.
        assert SENT_BYTES <= sent_bytes < 2 * SENT_BYTES
        assert all(each["subflows"] == 0 for each in after["paths"])
    for before, later in itertools.pairwise(totals_so_far):
        assert all(later[key] >= count for key, count in before.items()), "a total has decreased"


def test_all_bytes_of_short_connections_are_counted_without_a_budget(site: Site) -> None:
    """Each connection ends before the throttler has sampled it twice."""
    download_bytes, count = 100_000, 20
    with running(site) as throttler, listening(site) as listener:
        for _ in range(count):
            with connected(site, listener) as (client, proxy):
                until(lambda: query(throttler, "summary")["subflows"]["active"] == 2, TIMEOUT)
                transfer(proxy, client, download_bytes)
            until(lambda: not query(throttler, "summary")["connections"], TIMEOUT)

        def sent_bytes() -> int:
            return sum(int(each["bytes_sent"]) for each in query(throttler, "summary")["paths"])

        until(lambda: sent_bytes() >= download_bytes * count, TIMEOUT)
        assert sent_bytes() < 1.5 * download_bytes * count


def test_answers_to_different_queries_agree(site: Site) -> None:
    with running(site) as throttler, listening(site) as listener, connected(site, listener) as (client, proxy):
        until(lambda: "applied" in {each["kind"] for each in query(throttler, "events")["events"]}, TIMEOUT)
        transfer(proxy, client, 300_000)
        until(lambda: query(throttler, "summary")["subflows"]["active"] == 2, TIMEOUT)

        def listed_connections() -> dict[str, Any]:
            return query(throttler, "connections", client="10.77.1.2", sort="bytes")

        # Only acknowledged bytes count. The client may have read more.
        until(lambda: listed_connections()["connections"][0]["bytes_sent"] >= 300_000, TIMEOUT)
        found = listed_connections()
        (connection,) = found["connections"]
        ethernet, wifi = connection["subflows"]
        assert found["total"] == 1
        assert connection["client"] == "10.77.1.2"
        assert 0 < ethernet["rtt"] < 10
        assert ethernet["segments_out"] > 0
        assert ethernet["cwnd"] > 0
        assert ethernet["share"] + wifi["share"] == pytest.approx(1, abs=0.001)
        assert query(throttler, "connections", client="10.77.9.9")["total"] == 0

        endpoint = ethernet["remote"]

        def explained_subflows() -> list[dict[str, Any]]:
            (found,) = query(throttler, "explain", endpoint=endpoint)["connections"]
            return list(found["subflows"])

        # If the second subflow joins late, the anticipated cap is lifted, and set again by a soft start.
        until(lambda: explained_subflows()[0]["cap_state"] == "in force", TIMEOUT)
        capped, free = explained_subflows()
        assert capped["verdict"] == "capped at 5 Mbit/s"
        assert free["tried"][0]["failed"] == "the subflow is on path wifi, not on ethernet"

        client_answer = query(throttler, "client", endpoint=wifi["remote"])
        assert client_answer["multipath"]
        assert {(each["path"], each["capped"]) for each in client_answer["subflows"]} == {
            ("ethernet", True),
            ("wifi", False),
        }
        assert not query(throttler, "client", endpoint="10.77.1.2:1")["multipath"]

        what_if = query(throttler, "what_if", policy=POLICY.replace("[ethernet]", "[wifi]"))
        assert {(each["remote"], each["then"]) for each in what_if["changes"]} == {
            (ethernet["remote"], "not capped"),
            (wifi["remote"], "capped at 5 Mbit/s by rule spare-ethernet"),
        }
        kinds = [each["kind"] for each in query(throttler, "events", token=connection["token"])["events"]]
        assert kinds.count("subflow") >= 2
        assert kinds.index("connection") < kinds.index("decided") < kinds.index("applied")


def test_reaction_time_to_joins_is_measured(site: Site) -> None:
    site.policy.write_text(POLICY.replace("[ethernet]", "[wifi]"))
    with running(site) as throttler, listening(site) as listener, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connected(site, listener))
        until(lambda: len(site.entries()) == 5, TIMEOUT)
        until(lambda: query(throttler, "summary")["reaction"]["total"] == 5, TIMEOUT)
        reaction = query(throttler, "summary")["reaction"]
        assert reaction["count"] == sorted(reaction["count"]), "the counts of the histogram are not cumulative"
        assert 0 < reaction["sum"] < 5 * TIMEOUT
