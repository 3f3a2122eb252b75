# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that package, wheels and locks agree on versions and dependencies."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = REPOSITORY / "debian/locks"


def pyproject(directory: str = ".") -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / directory / "pyproject.toml").read_text())


def locked_versions(name: str) -> dict[str, tuple[str, int]]:
    """Return the version and the number of hashes of each package in a lock file."""
    blocks = re.split(r"^(?=[a-z0-9])", (LOCKS / name).read_text(), flags=re.MULTILINE | re.IGNORECASE)
    pins = (re.match(r"([\w.-]+)==(\S+)", block) for block in blocks)
    return {canonicalize_name(pin[1]): (pin[2], pin.string.count("--hash=sha256:")) for pin in pins if pin is not None}


def requirements(lines: list[str]) -> dict[str, str]:
    pairs = (line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in pairs}


def test_all_files_have_the_same_version() -> None:
    first_line = (REPOSITORY / "debian/changelog").read_text().splitlines()[0]
    version = pyproject()["project"]["version"]
    assert first_line.startswith(f"mptcp-steering-proxy ({version}) ")
    packages = pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    sources = [path for package in packages for path in (REPOSITORY / package).rglob("*.py")]
    versions = [
        found for path in sources for found in re.findall(r'^__version__ = "(.*)"$', path.read_text(), re.MULTILINE)
    ]
    assert set(versions) == {version}
    assert pyproject("bench")["project"]["version"] == version
    assert f"mptcp-steering-proxy=={version}" in pyproject("bench")["project"]["dependencies"]


def test_command_names_match_their_modules() -> None:
    scripts = pyproject()["project"]["scripts"]
    assert scripts == {name: f"{name.replace('-', '_')}.cli:main" for name in scripts}


def test_lock_has_the_pinned_dependencies() -> None:
    expected = requirements(pyproject()["project"]["dependencies"])
    assert {name: version for name, (version, _) in locked_versions("run.txt").items() if name in expected} == expected


def test_build_lock_has_the_pinned_build_backend() -> None:
    expected = requirements(pyproject()["build-system"]["requires"])
    assert {
        name: version for name, (version, _) in locked_versions("build.txt").items() if name in expected
    } == expected
    assert f"hatchling=={expected['hatchling']}" in pyproject()["project"]["optional-dependencies"]["dev"]
    assert pyproject("bench")["build-system"] == pyproject()["build-system"]


@pytest.mark.parametrize("name", ["run.txt", "build.txt", "setuptools.txt"])
def test_each_locked_package_has_a_hash(name: str) -> None:
    pins = locked_versions(name)
    assert len(pins) == (LOCKS / name).read_text().count("==") > 0
    assert [package for package, (_, hashes) in pins.items() if not hashes] == []


def test_run_installs_the_build_dependencies() -> None:
    control = (REPOSITORY / "debian/control").read_text()
    field = re.search(r"^Build-Depends: (.*)$", control, re.MULTILINE)
    installed = re.search(r'^DEB_PACKAGES="(.*)"$', (REPOSITORY / "run").read_text(), re.MULTILINE)
    assert field
    assert installed
    expected = {re.sub(r"-compat|\(.*\)|\s", "", each) for each in field[1].split(",")}
    assert expected <= set(installed[1].split())


def test_run_installs_the_implicit_build_dependencies(tmp_path: Path) -> None:
    """Defect: ``run`` did not install build-essential, which dpkg needs, so that "./run deb" failed on a new host."""
    if shutil.which("dpkg-checkbuilddeps") is None:
        pytest.skip("NOT TESTED: dpkg-checkbuilddeps is not installed")
    # Simulate a host on which nothing is installed.
    (tmp_path / "status").touch()
    command = ["dpkg-checkbuilddeps", f"--admindir={tmp_path}", str(REPOSITORY / "debian/control")]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr
    requested = set(re.findall(r"[\w-]+(?=:native)", output))
    installed = re.search(r'^DEB_PACKAGES="(.*)"$', (REPOSITORY / "run").read_text(), re.MULTILINE)
    assert installed
    assert {"build-essential"} <= requested <= set(installed[1].split())


def test_page_passes_the_package_variable_through_sudo() -> None:
    """Defect: the page put the variable before the command, but sudo removes it, so that another package was tested."""
    text = (REPOSITORY / "docs/packages.md").read_text()
    assert re.findall(r"`([^`]*)MPTCP_PACKAGE=", text) == ["sudo env "]
