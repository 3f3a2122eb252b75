"""Fixtures of the throttler's kernel tests: the site of one that runs as a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from throttler_site import Site, make_site, untouched_afterwards

from mptcp_lab.testbed import Testbed


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(
    request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> Site:
    """The site of a throttler that runs as a program, once under each backend."""
    return make_site(request.param, make_module_testbed, require)


@pytest.fixture
def untouched(site: Site) -> Iterator[None]:
    """Whatever a test does, its throttler must leave the kernel as it was."""
    with untouched_afterwards(site):
        yield
