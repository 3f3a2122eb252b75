# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that runs the proxy's kernel tests on another Debian release, with that release's Squid, Python and tools.

``run`` sets up the release as it does on a separate machine. ``sudo ./run deb --test [RELEASE]`` starts this.
"""

from __future__ import annotations

import re

import pytest
from containers import Container
from deb_package import RELEASES, copy_sources

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not RELEASES, reason="NOT TESTED: sudo ./run deb --test boots containers and takes minutes"),
]
SET_UP = """
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends ca-certificates
cd /shared/source
PIP_CERT=/shared/trusted.pem ./run test --version
"""
MIN_PASSED = 400
"""Minimum number of passed tests; skipped tests do not count."""


def test_kernel_tests_of_the_proxy_pass(release: str, builder: Container | None) -> None:
    if builder is None:
        pytest.skip(f"{release} is this machine's release: ./run test runs these tests")
    copy_sources(builder.shared / "source")
    builder.run_with_host_network(SET_UP)
    output = builder.run_isolated("cd /shared/source && .venv/bin/pytest -q -p no:cacheprovider tests/proxy/kernel")
    assert max(int(number) for number in re.findall(r"(\d+) passed", output)) >= MIN_PASSED, output
