# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the query ``clients``: usage per client, exceeded budgets, and plain TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import PATHS, running, scenario, until
from test_status_answers import LTE, WIFI, sweep_and_count

from mptcp_common import tcp_table

MB = 1_000_000
POLICY = PATHS + (
    "rules:\n"
    "  - {name: cap, paths: [a], throttle: {rate: 1 Mbit/s}}\n"
    "  - {name: wifi, paths: [a], budget: {per: client, period: month,"
    " steps: [{after: 2 MB, throttle: {rate: 1 Mbit/s}}]}}\n"
)
SECOND, THIRD = "10.1.0.2", "10.1.0.3"


@scenario
async def test_clients_are_listed_with_usage_and_budgets(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, WIFI, port=40_001)
    kernel.sockets.connect(9, SECOND)
    kernel.sockets.connect(10, THIRD)
    async with running(tmp_path, POLICY, kernel) as scene:
        kernel.sockets.carry(four_tuple(WIFI), 1 * MB)
        kernel.sockets.carry(four_tuple(LTE), 5 * MB)
        kernel.sockets.carry(four_tuple(SECOND), 3 * MB)
        await sweep_and_count(scene)
        # A running sweep may have read some sockets before they carried their bytes.
        await until(lambda: scene.request(query="clients", sort="bytes")["clients"][0]["bytes_sent"] == 6 * MB)
        answer = scene.request(query="clients", sort="bytes", limit=2)
        assert answer["total"] == 3
        first, second = answer["clients"]
        assert (first["client"], first["connections"], first["subflows"], first["bytes_sent"]) == (WIFI, 2, 3, 6 * MB)
        assert first["capped"] == 1, "not exactly the subflow on path a is capped"
        assert [(each["client"], each["used"]) for each in first["budgets"]] == [(WIFI, 1 * MB)]
        assert (second["client"], second["bytes_sent"]) == (SECOND, 3 * MB)
        # A client without a connection may have used up a budget.
        del kernel.sockets.by_four_tuple[four_tuple(SECOND)]
        scene.engine.handle_events(scene.engine.tracker.resync(list(kernel.sockets.by_four_tuple.values()), 1e9))
        clients = scene.request(query="clients", sort="budget")["clients"]
        assert [(each["client"], each["connections"]) for each in clients] == [(SECOND, 0), (WIFI, 2), (THIRD, 1)]
        assert [(each["used"], each["left"]) for each in clients[0]["budgets"]] == [(3 * MB, 0)]


def tcp_table_line(local: str, remote: str, state: str = "01") -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n"


@scenario
async def test_sockets_that_are_not_subflows_count_as_plain_tcp(tmp_path: Path) -> None:
    kernel = FakeKernel()
    capped = four_tuple(WIFI)
    kernel.sockets.connect(7, WIFI)
    tcp4_table, tcp6_table = tmp_path / "tcp", tmp_path / "tcp6"
    proxy = f"{int.from_bytes(capped.local, 'little'):08X}:{capped.local_port:04X}"
    tcp4_table.write_text(
        "  sl  local_address rem_address   st tx_queue\n"
        + tcp_table_line(proxy, f"{int.from_bytes(capped.remote, 'little'):08X}:{capped.remote_port:04X}")
        + tcp_table_line(proxy, "0900010A:9C40")
        + tcp_table_line(proxy, "0900010A:9C41")
        + tcp_table_line(proxy, "0A00010A:9C40", "06")  # in TIME_WAIT
        + tcp_table_line("0100007F:01BB", "0B00010A:9C40")  # the socket of another service
        + tcp_table_line(proxy, "0100007F:9C40")  # a client on this host
    )
    tcp6_table.write_text(tcp_table_line(f"0000000000000000FFFF0000{proxy}", "0000000000000000FFFF00000C00010A:9C40"))
    async with running(tmp_path, POLICY, kernel) as scene:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tcp_table, "TABLES", (tcp4_table, tcp6_table, tmp_path / "none"))
            answer = scene.request(query="clients")["plain_tcp"]
    expected = [{"client": "10.1.0.9", "connections": 2}, {"client": "10.1.0.12", "connections": 1}]
    assert answer == {"connections": 3, "total": 2, "clients": expected}
