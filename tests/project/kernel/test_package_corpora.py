# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that send the corpora of attacks and malformed requests to the package's proxy, with each release's Squid.

``sudo ./run deb --test [RELEASE]`` starts these. docs/squid-versions.md has the results.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacking import Scene
from containers import Container, wait_until
from corpora.all_corpora import CORPORA
from corpora.row import ORIGIN
from corpora.versions import DIFFERENT, unexpected_statuses
from deb_package import RELEASES

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, accepts

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not RELEASES, reason="NOT TESTED: sudo ./run deb --test boots containers and takes minutes"),
]

RESULTS: dict[tuple[str, str], dict[str, int]] = {}
"""Status of each row's first response, for each release and corpus that a test has already sent."""


@dataclass(frozen=True)
class AttackedHost:
    """A host with the package, and the hosts around it."""

    scene: Scene
    container: Container

    def squids(self) -> list[str]:
        return self.container.sh("ps -eo pid=,args= | grep '[s]quid.*mptcpproxy'").splitlines()


@pytest.fixture(scope="module")
def attacked_host(
    release: str,
    package: Path,
    make_module_testbed: Callable[..., Testbed],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AttackedHost]:
    scene = Scene.start(make_module_testbed())
    container = Container(release, tmp_path_factory.mktemp(f"{release}-attacked"))
    shutil.copy(package, container.shared)
    container.run_with_host_network(f"apt-get update --quiet && apt-get install --yes --quiet /shared/{package.name}")
    with (container.root / "etc/mptcp-proxy/squid.conf").open("a") as file:
        file.write(f"dns_nameservers {ORIGIN}\n")
    with scene.name_server():
        container.boot(scene.proxy.namespace)
        try:
            wait_until(lambda: accepts(scene.client, scene.proxy.service_address(), PROXY_PORT), "the proxy listens")
            yield AttackedHost(scene, container)
        finally:
            container.shut_down()


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_gets_the_expected_answers_from_the_package(attacked_host: AttackedHost, name: str) -> None:
    before = attacked_host.squids()
    outcome = attacked_host.scene.try_all(CORPORA[name])
    outcome.assert_no_fault()
    assert attacked_host.squids() == before, "a request ended Squid"
    assert unexpected_statuses(attacked_host.container.release, outcome.statuses) == {}
    RESULTS[attacked_host.container.release, name] = outcome.statuses
    # If both releases were tested, only rows of DIFFERENT may have different results.
    older, newer = (RESULTS.get((release, name), {}) for release in ("bookworm", "trixie"))
    assert {row for row in older.keys() & newer.keys() if older[row] != newer[row]} <= DIFFERENT.keys()
