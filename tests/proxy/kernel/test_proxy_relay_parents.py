# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a relay's parents that die and return: the relay reports both, and loses no request when a parent
returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxying import tcp_listeners
from relaying import Chain, peer_statement, start_chain
from test_proxy_relay import COMPLETE, DEAD_PARENTS_STATUS, get

from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.home import silent_link
from mptcp_lab.testbed.services import start_proxy, wait_until
from mptcp_proxy.process import pid_in

pytestmark = pytest.mark.kernel
DEAD_MESSAGE, ALIVE_MESSAGE = "parent {} does not answer", "parent {} answers again"


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc", "openssl", "nftables")


def wait_for_message(chain: Chain, text: str, parent: str) -> None:
    wait_until(lambda: text.format(parent) in chain.relay.process.output(), text.format(parent), timeout=90)


def requests_fail(chain: Chain) -> bool:
    return get(chain)[0] == 503 and get(chain, https=True)[0] in (503, DEAD_PARENTS_STATUS)


@pytest.mark.nightly(except_for=("[2]",))
@pytest.mark.parametrize("workers", [1, 2])
def test_first_request_uses_a_parent_that_returned(make_testbed: Callable[..., Testbed], workers: int) -> None:
    """Defect: Squid detected that a parent had returned only by sending it a client's request, which was refused."""
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, appended=f"workers {workers}\n")
    proxy = testbed["proxy"]
    assert get(chain) == COMPLETE
    chain.parents[0].process.kill_tree()
    # Each worker must detect the dead parent itself.
    wait_until(
        lambda: requests_fail(chain) and DEAD_MESSAGE.format("proxy") in chain.relay.process.output(),
        "the parent counts as dead",
        timeout=120,
    )
    assert chain.doctor()["parents, to Squid"]["status"] == "warn"

    wait_until(lambda: not tcp_listeners(proxy), "the parent's port is free", timeout=60)
    wait_until(
        lambda: pid_in(chain.parents[0].state / "squid.pid", "squid") is None, "the parent has ended", timeout=60
    )
    before = proxy.mib()["MPTcpExtMPCapableSYNRX"]
    start_proxy(proxy)
    wait_for_message(chain, ALIVE_MESSAGE, "proxy")
    assert proxy.mib()["MPTcpExtMPCapableSYNRX"] > before, "the relay tests the parent without Multipath TCP"
    for https in (False, True) * workers:
        assert get(chain, https=https) == COMPLETE
    assert chain.doctor()["parents, to Squid"]["status"] == "ok"
    # The supervisor's own requests for the state of the parents are not logged.
    assert "server_list" not in (chain.relay.logs / "access.log").read_text()


@pytest.mark.nightly
def test_silent_parent_is_preferred_again_once_it_answers(make_testbed: Callable[..., Testbed]) -> None:
    """Defect: the request that made Squid test the parent was still sent to the other parent."""
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, ("proxy", "proxy2"))
    assert get(chain) == COMPLETE
    with silent_link(testbed["core"], "proxy"):
        # Two requests wait for the parent; then it counts as dead.
        assert [get(chain) for _ in range(2)] == [COMPLETE] * 2
        wait_for_message(chain, DEAD_MESSAGE, "proxy")
    wait_for_message(chain, ALIVE_MESSAGE, "proxy")
    chain.wait_for_requests(1, 2)
    assert get(chain) == COMPLETE
    chain.wait_for_requests(2, 2)


@pytest.mark.nightly
def test_only_one_request_waits_for_a_silent_parent(make_testbed: Callable[..., Testbed]) -> None:
    """With a limit of 1, as docs/relay.md advises, the parent counts as dead before a second request waits."""
    testbed = make_testbed(RELAY)
    names = ("proxy", "proxy2")
    chain = start_chain(testbed, names, peers=[peer_statement(testbed[name], limit=1) for name in names])
    assert get(chain) == COMPLETE
    chain.wait_for_requests(1, 0)
    with silent_link(testbed["core"], "proxy"):
        assert get(chain) == COMPLETE
        wait_for_message(chain, DEAD_MESSAGE, "proxy")
        chain.wait_for_requests(1, 1)
    wait_for_message(chain, ALIVE_MESSAGE, "proxy")
    assert get(chain) == COMPLETE
    chain.wait_for_requests(2, 1)


@pytest.mark.nightly
def test_relay_reports_that_squid_hides_the_state_of_its_parents(make_testbed: Callable[..., Testbed]) -> None:
    testbed = make_testbed(RELAY)
    chain = start_chain(testbed, statements=["http_access deny manager"])
    wait_for_message(chain, "Squid does not report which parents answer (403 Forbidden)", "")
    assert get(chain) == COMPLETE
    found = chain.doctor()["parents, to Squid"]
    assert (found["status"], "403" in found["text"]) == ("warn", True)
