# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the list of published fixes that a version of Squid lacks, and for the page with the same table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_common.findings import Status
from mptcp_proxy.doctor.advisories import ADVISORIES, Exposure, advisories, package_version, unfixed_advisories

PAGE = Path(__file__).parents[3] / "docs" / "squid-versions.md"


def open_advisories(version: str) -> set[str]:
    return {each.id for each in unfixed_advisories(version) if each.exposure is Exposure.OPEN}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5.7-2+deb12u6", {"CVE-2026-61642"}),
        ("5.7-2+deb12u6+mptcp1", {"CVE-2026-61642"}),
        ("5.7-2+deb12u1", {"CVE-2026-61642"}),
        ("5.7-2", {"CVE-2026-61642", "CVE-2024-25111", "CVE-2023-50269", "CVE-2023-46846"}),
        ("5.7", {"CVE-2026-61642", "CVE-2024-25111", "CVE-2023-50269", "CVE-2023-46846"}),
        ("6.13-2+deb13u3", {"CVE-2026-61642"}),
        ("6.13-2", {"CVE-2026-61642"}),
        ("6.13-2+deb13u4", set()),
        ("6.13-2+deb13u4+mptcp1", set()),
        ("6.13-2+deb13u11", set()),
        ("not a version", set()),
    ],
)
def test_advisories_open_in_a_version_are_listed(version: str, expected: set[str]) -> None:
    assert open_advisories(version) == expected
    (finding,) = advisories(version)
    assert finding.status is (Status.WARN if expected else Status.OK)
    assert all(each in finding.text for each in expected)


def test_mitigated_advisories_are_named() -> None:
    (finding,) = advisories("6.13-2+deb13u4")
    assert "CVE-2026-32748" in finding.text
    assert "CVE-2026-62846" not in finding.text
    (finding,) = advisories("5.7-2+deb12u6")
    assert "CVE-2026-62846" in finding.text
    assert "CVE-2026-47729" not in finding.text
    assert "CVE-2026-47729" in next(advisories("5.7-2+deb12u5")).text


def test_fixes_in_squids_own_releases_are_known() -> None:
    assert "CVE-2026-32748" not in {each.id for each in unfixed_advisories("7.5")}
    assert "CVE-2026-32748" in {each.id for each in unfixed_advisories("7.4")}


def test_installed_package_is_read_from_dpkg() -> None:
    assert package_version("config-files 6.13-2\ninstalled 6.13-2+deb13u4\n") == "6.13-2+deb13u4"
    assert package_version("installed 5.7-2+deb12u6\n") == "5.7-2+deb12u6"
    assert package_version("not-installed\n") == package_version("") == ""


def test_missing_squid_gives_no_finding() -> None:
    assert list(advisories("")) == []


def test_page_has_the_same_table() -> None:
    def cell(number: int | None, package: str) -> str:
        return "no" if number is None else "yes" if number == 0 else f"{package}{number}"

    rows = re.findall(r"^\| ((?:CVE|SQUID)-\S+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.M)
    page = {row[0]: row[2:] for row in rows}
    assert page == {
        each.id: (cell(each.debian12, "deb12u"), cell(each.debian13, "deb13u"), f"{each.exposure.value}: {each.why}")
        for each in ADVISORIES
    }
