# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the files that the proxy installs at its start."""

from __future__ import annotations

import os
import re
from ipaddress import ip_network
from pathlib import Path

import pytest

from mptcp_proxy import installation, shim
from mptcp_proxy.configuration.check import CheckedConfiguration
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.error_pages import CHECK_PAGE, error_pages
from mptcp_proxy.places import Places


class TemporaryPlaces(Places):
    """Places below a directory of the test."""

    directory: Path

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    @property
    def logs(self) -> Path:
        return self.directory / "log"

    @property
    def state(self) -> Path:
        return self.directory / "lib"


def test_files_are_installed_with_their_content_and_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    TemporaryPlaces.directory = tmp_path
    places = TemporaryPlaces("n")
    lines = tuple(PhysicalLine("f", n, t) for n, t in enumerate(["http_port 3129", "http_port 3128", "via on"], 1))
    checked = CheckedConfiguration(lines, tuple(listeners(statements(lines, "n"))), "proxy", Workers(), ())
    before = os.umask(0o077)
    try:
        installation.make_directories(places, checked)
        installation.install(places, checked, [ip_network("10.0.0.1/32")], 1)
    finally:
        os.umask(before)
    assert places.configuration_in_force.read_text() == "workers 1\nhttp_port 3129\nhttp_port 3128\nvia on\n"
    assert places.listen_ports.read_text() == "3128,3129\n"
    assert places.own_addresses.read_text().splitlines()[0] == "10.0.0.1/32"
    installation.install(places, checked, [], 1, mptcp_option=True)
    assert (
        places.configuration_in_force.read_text() == "workers 1\nhttp_port 3129 mptcp\nhttp_port 3128 mptcp\nvia on\n"
    )
    assert places.listen_ports.read_text() == "3128,3129\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path.glob("*/*"))}
    other_modes = {"listen-ports": 0o644, "own-addresses": 0o644, "check-page-missing.html": 0o644, "lists": 0o755}
    assert modes.pop("error-pages") == 0o755
    assert modes == {"squid.conf": 0o640, **other_modes}
    # Squid reads the file as a template, in which "%" begins a code.
    assert "%" not in places.check_page_missing.read_text()
    pages = list(places.error_pages.iterdir())
    assert {path.stat().st_mode & 0o777 for path in pages} == {0o644}
    assert {"ERR_ACCESS_DENIED", "ERR_CONNECT_FAIL", "ERR_DNS_FAIL"} <= {path.name for path in pages}
    assert places.runtime.stat().st_mode & 0o777 == 0o755
    assert places.logs.stat().st_mode & 0o777 == 0o750


def test_error_pages_of_squid_are_installed_with_the_projects_pages(tmp_path: Path) -> None:
    """Squid reports each missing page. The project's pages link to the check page if it exists."""
    for name in ("ERR_DNS_FAIL", "ERR_NEW"):
        (tmp_path / name).write_text("Squid's own")
    without_check_page = dict(error_pages(with_check_page=False, squid_templates=tmp_path / "none"))
    with_check_page = dict(error_pages(with_check_page=True, squid_templates=tmp_path))
    assert with_check_page.keys() - without_check_page.keys() == {"ERR_NEW"}
    assert with_check_page["ERR_NEW"] == b"Squid's own"
    assert all(
        (CHECK_PAGE.encode() in with_check_page[name], CHECK_PAGE.encode() in without_check_page[name]) == (True, False)
        for name in without_check_page
    )
    # "%" begins a code in these templates, and an unknown code ends the page.
    assert {code for page in without_check_page.values() for code in re.findall(rb"%.", page)} == {b"%H", b"%c", b"%T"}


@pytest.mark.parametrize("name", ["a b", "a:b", "a\tb"])
def test_library_whose_path_ld_preload_cannot_contain_is_copied(tmp_path: Path, name: str) -> None:
    TemporaryPlaces.directory = tmp_path
    tmp_path.chmod(0o755)
    places = TemporaryPlaces("n")
    library = tmp_path / name / "mptcp_listen.so"
    library.parent.mkdir()
    library.write_bytes(b"library")
    installed_library = installation.install_library(places, library)
    assert installed_library == places.runtime / "mptcp_listen.so"
    assert installed_library.read_bytes() == b"library"
    assert shim.can_be_preloaded(installed_library)


def test_no_file_is_replaced_if_one_cannot_be_written(tmp_path: Path) -> None:
    """Defect: if a reload was refused because there was no space for the last file, the first file was already
    replaced."""
    first = tmp_path / "squid.conf"
    first.write_text("active")
    with pytest.raises(OSError, match="No such file"):
        installation.write_all(
            installation.File(first, b"refused", 0o640), installation.File(tmp_path / "none" / "b", b"", 0o644)
        )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"squid.conf": "active"}


def test_any_file_with_a_name_of_shared_memory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: because of any user's file of such a name in /dev/shm, Squid did not start."""
    for name in ("WORKER_SOCKETS", "SHARED_MEMORY"):
        monkeypatch.setattr(installation, name, tmp_path)
    (tmp_path / "n-cf__metadata.shm").touch()
    (tmp_path / "n-directory.shm" / "more").mkdir(parents=True)
    file_of_n2 = tmp_path / "n2-cf__metadata.shm"
    file_of_n2.touch()
    (tmp_path / "n-link.ipc").symlink_to(file_of_n2)
    installation.remove_shared_files(Places("n"))
    assert list(tmp_path.iterdir()) == [file_of_n2]
