# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a real Squid serves strangers with each configuration that the check refuses as an open proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proxying import fetch

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import SQUID_CONFIG, Origin, Proxy, start_origin, start_proxy, wait_until
from mptcp_proxy.configuration.check import check

pytestmark = pytest.mark.kernel
REFUSED = 403
NOT_REGISTERED = 404
"""HTTP status of Squid's status pages, for an allowed client, until Squid's workers have registered."""
STRANGER = "203.0.113.5"
"""A documentation address, which no host uses (RFC 5737)."""
ACCEPTS_ALL = "/usr/bin/sed -u s/.*/OK\\x20user=somebody\\x20tag=somewhere/"
"""A helper that accepts any input."""
ACCEPTS_KNOWN = "/usr/bin/sed -u s/.*somebody.*/OK/;s/.*somewhere.*/OK/;t;s/.*/ERR/"
"""A helper that accepts only known names."""
STATUS_URL = "http://mptcpproxy:3128/squid-internal-mgr/info"
HELPER_RULES = {
    "user": [
        f"external_acl_type where %DST {ACCEPTS_ALL}",
        "acl ok external where",
        "acl has_user ext_user REQUIRED",
        "http_access allow ok has_user",
    ],
    "user-from-helper": [
        f"external_acl_type where %DST {ACCEPTS_ALL}",
        f"external_acl_type who %EXT_USER {ACCEPTS_KNOWN}",
        "acl ok external where",
        "acl known external who",
        "http_access allow ok known",
    ],
    "tag-from-helper": [
        f"external_acl_type where %DST {ACCEPTS_ALL}",
        f"external_acl_type who %EXT_TAG {ACCEPTS_KNOWN}",
        "acl ok external where",
        "acl known external who",
        "http_access allow ok known",
    ],
    "note-from-rule": [
        "acl noted annotate_transaction who=somebody",
        f"external_acl_type who %note{{who}} {ACCEPTS_KNOWN}",
        "acl known external who",
        "http_access allow noted known",
    ],
    "header-field": [
        f"external_acl_type who %>ha{{User-Agent}} {ACCEPTS_KNOWN}",
        "acl known external who",
        "http_access allow known",
    ],
}
EMBEDDED = {
    "::/96": "::c633:6401",
    "::ffff:0:0:0/96": "::ffff:0:c633:6401",
    "64:ff9b:1::/48": "64:ff9b:1:c633:64:100::",
}
"""For each prefix: an address that contains 198.51.100.1."""


@pytest.fixture(scope="module", autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc")


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed) -> Origin:
    return start_origin(module_testbed["origin"], {"file.bin": 1000})


@contextmanager
def running_proxy(testbed: Testbed, *before: str, after: str = "") -> Iterator[tuple[Proxy, list[str]]]:
    """Run a proxy with statements *before* and *after* the shipped configuration. Also yield the problems that check
    reports."""
    node = testbed["proxy"]
    path: Path = node.directory / "evasion.conf"
    path.write_text("\n".join([*before, f"include {SQUID_CONFIG}", after, "shutdown_lifetime 0 seconds", ""]))
    problems = [str(problem) for problem in check(path, "mptcpproxy", None).problems]
    proxy = start_proxy(node, path, arguments=("--allow-open-proxy",))
    try:
        yield proxy, problems
    finally:
        proxy.process.stop()


@contextmanager
def with_address(testbed: Testbed, address: str) -> Iterator[None]:
    """Give the client *address* as an additional address."""
    client, core = testbed["client"], testbed["core"]
    family = 6 if ":" in address else 4
    ip = ["ip", f"-{family}"]
    assigned = [address, "dev", "eth0"]
    return_route = [address, "via", client.address("eth0", family), "dev", "to-eth0"]
    with (
        client.changed(
            [*ip, "addr", "add", *assigned, *(["nodad"] if family == 6 else [])], [*ip, "addr", "del", *assigned]
        ),
        core.changed([*ip, "route", "add", *return_route], [*ip, "route", "del", *return_route]),
    ):
        yield


@pytest.mark.nightly(except_for=("user-from-helper",))
@pytest.mark.parametrize("rules", HELPER_RULES.values(), ids=HELPER_RULES)
def test_rules_with_a_helper_serve_strangers(module_testbed: Testbed, origin: Origin, rules: list[str]) -> None:
    """Defect: the check accepted these rules."""
    options = ["--interface", STRANGER, "-A", "somebody"]
    with with_address(module_testbed, STRANGER), running_proxy(module_testbed, *rules) as (proxy, problems):
        assert [text for text in problems if "an open proxy, it would serve" in text]
        assert fetch(module_testbed["client"], origin.url("file.bin"), proxy.url(), options=options).status == 200


@pytest.mark.nightly(except_for=("[on]",))
@pytest.mark.parametrize("indirect", ["on", "off"])
def test_rules_that_trust_a_claimed_address_serve_strangers(
    module_testbed: Testbed, origin: Origin, indirect: str
) -> None:
    """Defect: the check accepted these rules. A helper gets the claimed address even if Squid's rules do not use it."""
    rules = [
        "follow_x_forwarded_for allow all",
        f"acl_uses_indirect_client {indirect}",
        "external_acl_type who %SRC /usr/bin/sed -u s/^10\\.1\\.2\\.3.*/OK/;t;s/.*/ERR/",
        "acl known external who",
        "http_access allow known",
    ]
    options = ["--interface", STRANGER, "-H", "X-Forwarded-For: 10.1.2.3"]
    with with_address(module_testbed, STRANGER), running_proxy(module_testbed, *rules) as (proxy, problems):
        assert [text for text in problems if "could claim any client address in X-Forwarded-For" in text]
        client, url = module_testbed["client"], origin.url("file.bin")
        assert fetch(client, url, proxy.url(), options=options[:2]).status == REFUSED
        assert fetch(client, url, proxy.url(), options=options).status == 200


@pytest.mark.parametrize("prefix", EMBEDDED)
def test_rules_with_an_embedded_ipv4_prefix_serve_strangers(
    module_testbed: Testbed, origin: Origin, prefix: str
) -> None:
    """Defect: the check accepted these prefixes."""
    address = EMBEDDED[prefix]
    rules = [f"acl translated src {prefix}", "http_access allow translated"]
    with with_address(module_testbed, address), running_proxy(module_testbed, *rules) as (proxy, problems):
        assert [text for text in problems if "100 % of the Internet's IPv4 addresses, embedded as " in text]
        options = ["--interface", address]
        download = fetch(module_testbed["client"], origin.url("file.bin", family=6), proxy.url(6), options=options)
        assert download.status == 200


@pytest.mark.parametrize(
    "after", ["", "follow_x_forwarded_for allow clients"], ids=["as shipped", "with trusted claims"]
)
def test_trusted_claim_of_a_loopback_address_opens_the_status_pages(module_testbed: Testbed, after: str) -> None:
    """Defect: the check accepted the statement *after*."""
    claimed = ["-H", "X-Forwarded-For: 127.0.0.1"]
    with running_proxy(module_testbed, after=after) as (proxy, problems):
        assert bool([text for text in problems if "other hosts can claim this host's address" in text]) == bool(after)
        client = module_testbed["client"]
        assert fetch(client, STATUS_URL, proxy.url()).status == REFUSED
        wait_until(
            lambda: fetch(client, STATUS_URL, proxy.url(), options=claimed).status != NOT_REGISTERED,
            "the workers have registered with the coordinator",
            process=proxy.process,
        )
        assert fetch(client, STATUS_URL, proxy.url(), options=claimed).status == (200 if after else REFUSED)
