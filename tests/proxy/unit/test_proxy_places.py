# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for service names and the paths that depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_proxy.places import Places, Role, service_name_problem

SHIPPED = Path(__file__).parents[3] / "conf/squid.conf"


@pytest.mark.parametrize("name", [*(role.service_name for role in Role), "a", "A1", "x" * 32])
def test_valid_service_name_is_accepted(name: str) -> None:
    assert service_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "a-b", "a_b", "a b", "../x", "x" * 33, "squid", "é"])
def test_invalid_or_foreign_service_name_is_refused(name: str) -> None:
    problem = service_name_problem(name)
    assert problem is not None
    assert problem.allowed


def test_shipped_configuration_uses_the_paths_of_the_service() -> None:
    text = SHIPPED.read_text()
    places = Places("${service_name}")
    assert f"deny_info 503:../../../../../../../..{places.check_page_missing} " in text
    assert f"\nerror_directory {places.error_pages}\n" in text
    for path in (places.own_addresses, places.pid_file, places.logs / "access.log", places.logs / "cache.log"):
        assert str(path) in text
    # Without these lines, all workers would rename the log, and Squid would use the paths of the distribution's Squid.
    assert "\nlogfile_rotate 0\n" in text
    assert "/run/squid" not in text
    assert "/var/log/squid" not in text
