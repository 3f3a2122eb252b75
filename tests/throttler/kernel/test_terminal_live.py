# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the commands top, explain, events and replay, with real connections."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_status_live import TIMEOUT, query, transfer
from throttler_site import Site, connected, listening, running, until

from mptcp_lab.testbed.services import Throttler

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel"),
    pytest.mark.nightly(except_for=("iptables",)),
]

WIDTH = 200


def command_output(throttler: Throttler, *arguments: str) -> str:
    command = throttler.command(*arguments, "--socket", str(throttler.socket))
    return throttler.host.run(["env", f"COLUMNS={WIDTH}", *command]).stdout


@contextmanager
def capturing(site: Site, capture: Path, interface: str) -> Iterator[None]:
    """Write the traffic of the proxy's port into *capture* with tcpdump, until the block ends."""
    command = ["tcpdump", "-Z", "root", "-U", "--immediate-mode", "-s", "160", "-i", interface, "-w", str(capture)]
    with site.proxy.running([*command, "tcp port 3128"]) as process:
        until(lambda: "listening on" in process.output(), TIMEOUT)
        yield
        # Wait until the file stops growing: tcpdump has then written the end of the last connection.
        size = -1
        while size != (size := capture.stat().st_size):
            time.sleep(1)
        process.signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.output()


def replay(site: Site, capture: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [site.proxy.program("mptcp-throttler"), "replay", str(capture), "--policy", str(site.policy), "--json"]
    found = [json.loads(line) for line in site.proxy.run([*command, *arguments]).stdout.splitlines()]
    assert found[-1]["kind"] == "summary"
    assert found[-1]["notes"] == []
    return found


def test_top_explain_and_events_show_a_cap(site: Site) -> None:
    with running(site) as throttler, listening(site) as listener, connected(site, listener) as (client, proxy):
        until(lambda: "applied" in {each["kind"] for each in query(throttler, "events")["events"]}, TIMEOUT)
        until(lambda: query(throttler, "summary")["subflows"]["active"] == 2, TIMEOUT)
        transfer(proxy, client, 300_000)
        # If the second subflow joins late, the anticipated cap is lifted, and set again by a soft start.
        until(lambda: "in force\n" in command_output(throttler, "explain", "10.77.1.2"), TIMEOUT)
        (connection,) = query(throttler, "connections")["connections"]
        ethernet, wifi = connection["subflows"]
        token = connection["token"]

        table = command_output(throttler, "top", "--once").splitlines()
        assert table[1].startswith(f"10.77.1.2  {token}  2 subflows")
        assert table[2].split()[:2] == [ethernet["remote"], "ethernet"]
        assert " 5M held " in table[2]
        assert "rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active" in table[2]
        assert table[3].split()[:2] == [wifi["remote"], "wifi"]
        assert table[-1] == "1 connection, 1 shown"
        assert "0 connections, 0 shown" in command_output(throttler, "top", "--once", "--client", "10.9.9.9")

        for argument in ("10.77.1.2", token, wifi["remote"]):
            explained = command_output(throttler, "explain", argument)
            assert f"connection {token} from 10.77.1.2, 2 active subflows, since " in explained
            assert f"{ethernet['remote']}, path ethernet through wan0, download: capped at 5 Mbit/s" in explained
            assert "in force\n    rule spare-ethernet: matches" in explained
            assert "rule spare-ethernet: does not match: the subflow is on path wifi, not on ethernet" in explained

        lines = command_output(throttler, "events", "--rule", "spare-ethernet").splitlines()
        assert any(" applied " in line and ethernet["remote"] in line and token in line for line in lines)
        assert json.loads(command_output(throttler, "events", "--json", "--limit", "1"))["kind"]


@pytest.mark.nightly(except_for=("4-any",))
@pytest.mark.parametrize("interface", ["any", "wan0"])
@pytest.mark.parametrize("family", [4, 6])
def test_replay_of_a_capture_repeats_the_daemons_decisions(
    site: Site, tmp_path: Path, require: Any, interface: str, family: int
) -> None:
    if shutil.which("tcpdump") is None:
        pytest.skip("NOT TESTED, needs tcpdump")
    capture = tmp_path / "capture.pcap"
    with running(site) as throttler, listening(site) as listener, capturing(site, capture, interface):
        with connected(site, listener, family) as (client, proxy):
            until(lambda: "applied" in {each["kind"] for each in query(throttler, "events")["events"]}, TIMEOUT)
            until(lambda: query(throttler, "summary")["subflows"]["active"] == 2, TIMEOUT)
            transfer(proxy, client, 30_000)
            (live,) = query(throttler, "connections")["connections"]
        until(lambda: not query(throttler, "summary")["connections"], TIMEOUT)
    found = replay(site, capture)
    assert {each["token"] for each in found if "token" in each} == {live["token"]}
    decisions = {each["remote"]: each for each in found if each["kind"] == "decided"}
    assert {remote: (each.get("path"), each.get("rate"), each.get("rule")) for remote, each in decisions.items()} == {
        each["remote"]: (each["path"], each["rate"], each["rule"]) for each in live["subflows"]
    }
    directory = os.environ.get("MPTCP_KEEP_CAPTURES")
    if directory and site.backend == "nftables":
        shutil.copy(capture, f"{directory}/lab-{interface}-ipv{family}.pcap")
    closed = [each["text"] for each in found if each["kind"] == "closed" and "remote" in each]
    assert len(closed) == 2
