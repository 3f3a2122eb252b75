# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the corpora of attacks and odd requests against the package's proxy, with Squid of each Debian release.

``sudo ./run deb --test [RELEASE]`` starts these. docs/squid-versions.md has the results.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacking import Scene
from containers import Container, until
from corpora.every import CORPORA
from corpora.row import ORIGIN
from corpora.versions import DIFFERENT, unexpected_statuses
from deb_package import RELEASES

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, accepts

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not RELEASES, reason="NOT TESTED: sudo ./run deb --test boots containers and takes minutes"),
]

FOUND: dict[tuple[str, str], dict[str, int]] = {}
"""First statuses by row, for each release and corpus tried so far."""


@dataclass(frozen=True)
class Attacked:
    """A host with the package, and the hosts around it."""

    scene: Scene
    container: Container

    def squids(self) -> list[str]:
        return self.container.sh("ps -eo pid=,args= | grep '[s]quid.*mptcpproxy'").splitlines()


@pytest.fixture(scope="module")
def attacked(
    release: str,
    package: Path,
    make_module_testbed: Callable[..., Testbed],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Attacked]:
    scene = Scene.start(make_module_testbed())
    container = Container(release, tmp_path_factory.mktemp(f"{release}-attacked"))
    shutil.copy(package, container.shared)
    container.outside(f"apt-get update --quiet && apt-get install --yes --quiet /shared/{package.name}")
    with (container.root / "etc/mptcp-proxy/squid.conf").open("a") as file:
        file.write(f"dns_nameservers {ORIGIN}\n")
    with scene.name_server():
        container.boot(scene.proxy.namespace)
        try:
            until(lambda: accepts(scene.client, scene.proxy.service_address(), PROXY_PORT), "the proxy listens")
            yield Attacked(scene, container)
        finally:
            container.off()


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_gets_the_expected_answers_from_the_package(attacked: Attacked, name: str) -> None:
    before = attacked.squids()
    outcome = attacked.scene.try_all(CORPORA[name])
    outcome.assert_sound()
    assert attacked.squids() == before, "a request brought Squid down"
    assert unexpected_statuses(attacked.container.release, outcome.statuses) == {}
    FOUND[attacked.container.release, name] = outcome.statuses
    # If both releases were tried: rows whose results differ without being named.
    one, other = (FOUND.get((release, name), {}) for release in ("bookworm", "trixie"))
    assert {row for row in one.keys() & other.keys() if one[row] != other[row]} <= DIFFERENT.keys()
