# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's findings about the memory and the connections that one client can use."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Status
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.doctor import bounds, gather

OK, WARN = Status.OK, Status.WARN
GB = 10**9
RMEM = "sysctl -w 'net.ipv4.tcp_rmem=4096 131072 2097152'"


@pytest.mark.parametrize(
    ("connections", "workers", "largest_buffer", "memory", "words", "remedies"),
    [
        (1000, 2, 33554432, 24 * GB, "67.1 GB: 1000 connections with each of 2 workers, 33.6 MB each", (RMEM,)),
        (1000, 1, 6291456, 24 * GB, "6.29 GB: 1000 connections with the worker", (RMEM,)),
        (1000, 2, 2097152, 24 * GB, "4.19 GB", ()),
        (1000, 2, 33554432, 4 * GB, "67.1 GB", (RMEM, "client_ip_max_connections 238,")),
        (1000, 2, 1048576, 4 * GB, "2.10 GB", ("client_ip_max_connections 476,",)),
        (1, 1, 33554432, 4 * GB, "33.6 MB: 1 connection with", ()),
    ],
)
def test_memory_of_one_client_is_compared_with_the_hosts(
    connections: int, workers: int, largest_buffer: int, memory: int, words: str, remedies: tuple[str, ...]
) -> None:
    finding = bounds.unread_uploads(
        connections, workers, (4096, 131072, largest_buffer), memory, memory, "/etc/squid.conf"
    )
    assert finding.status is (WARN if remedies else OK)
    assert words in finding.text
    assert is_complete(finding)
    assert all(each in finding.remedy for each in remedies)
    assert ("tcp_rmem" in finding.remedy) == (RMEM in remedies)
    assert ("client_ip_max" in finding.remedy) == (remedies not in ((), (RMEM,)))


def test_memory_of_one_client_is_compared_with_tcp_mem() -> None:
    """Defect: the doctor accepted 4.2 GB on a host with 24 GB, whose kernel reduces all buffers above 1.6 GB."""
    sizes = (4096, 131072, 2097152)
    assert bounds.unread_uploads(1000, 2, sizes, 24 * GB, 5 * GB, "f").status is OK
    finding = bounds.unread_uploads(1000, 2, sizes, 24 * GB, 1_600_000_000, "f")
    assert finding.status is WARN
    assert finding.why.startswith(
        "that is more than 1.60 GB, the memory above which the kernel saves memory for TCP (tcp_mem), "
    )
    assert "client_ip_max_connections 381," in finding.remedy
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("client_ip_max_connections 1000", 1000),
        ("client_ip_max_connections 1000\nclient_ip_max_connections 50", 50),
        ("client_ip_max_connections 70000", 65536),
        ("client_ip_max_connections -1", 65536),
        ("# client_ip_max_connections 5", 65536),
        ("client_ip_max_connections 50\nif false\nclient_ip_max_connections 5\nendif", 50),
    ],
)
def test_connections_of_one_client_are_read_from_squid_conf(text: str, number: int) -> None:
    lines = [PhysicalLine("squid.conf", n, line) for n, line in enumerate(text.splitlines(), 1)]
    assert bounds.connections_of_one_client(list(statements(lines, "mptcpproxy"))) == number


def test_unbounded_new_connections_are_a_warning() -> None:
    """Defect: the doctor reported "ok" although no limit was loaded."""
    loaded, not_loaded, unknown = (
        bounds.new_connections(listed, Path("/x y/limit.nft")) for listed in ("table inet x {\n}\n", "", None)
    )
    assert (loaded.status, not_loaded.status, unknown.status) == (OK, WARN, Status.UNSEEN)
    assert loaded.text.startswith("limited")
    assert "is not loaded" in not_loaded.text
    assert not_loaded.remedy.startswith("nft -f '/x y/limit.nft'   # ")
    assert all(map(is_complete, (loaded, not_loaded, unknown)))


def test_table_for_new_connections_exists_at_the_paths_of_the_doctor() -> None:
    packaged, checkout = gather._CONNECTION_LIMIT_FILES
    assert checkout.is_file()
    rules = (Path(__file__).parents[3] / "debian/rules").read_text()
    assert packaged.parents[2] == Path("/usr/share/doc/mptcp-steering-proxy")
    assert "DOC = $(TREE)/usr/share/doc/$(NAME)\n" in rules
    assert "-t $(DOC)/examples/" in rules
    assert checkout.parent.name == packaged.parent.name == "nftables"
