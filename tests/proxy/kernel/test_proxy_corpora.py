# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that send the corpora of attacks and malformed requests to the shipped squid.conf, and to weaker ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from attacking import Answer, Scene, failure_reason
from corpora import conformance, malformed, open_proxy
from corpora.all_corpora import CORPORA
from corpora.row import ORIGIN, WEB, Row, statuses
from proxying import wait_for_workers, worker_pids, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import SQUID_CONFIG, Proxy, python_command
from mptcp_proxy.configuration.by_version import adapt
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.squid import find_squid

pytestmark = pytest.mark.kernel
SHORT_TIMEOUTS = ("connect_timeout 2 seconds", "forward_timeout 3 seconds", "shutdown_lifetime 0 seconds")
MIN_ROWS = {"open proxy": 80, "malformed": 80, "conformance": 60}


@pytest.fixture(scope="module")
def scene(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Scene:
    require("squid", "gcc")
    return Scene.start(make_module_testbed())


@pytest.fixture(scope="class")
def proxy(scene: Scene) -> Iterator[Proxy]:
    with scene.running_proxy(write_configuration(scene.proxy, f"dns_nameservers {ORIGIN}")) as proxy:
        yield proxy


LATE_REQUEST = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as origin:
    request = b"GET /answer-416 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    origin.sendall(request)
    while chunk := origin.recv(65536):
        assert chunk.startswith(b"HTTP/1.1 416")
    for _ in range(2):
        origin.sendall(request)
        time.sleep(0.5)
"""


def test_origin_does_not_reset_a_connection_with_a_late_request(scene: Scene) -> None:
    """If the test's origin reset a connection, Squid would answer 502."""
    command = python_command(LATE_REQUEST, ORIGIN, str(WEB))
    assert scene.client.run(command, check=False, timeout=90).stderr == ""


@pytest.mark.parametrize("name", CORPORA)
class TestAsShipped:
    def test_corpus_gets_the_expected_answers(self, scene: Scene, proxy: Proxy, name: str) -> None:
        before = wait_for_workers(proxy)
        scene.try_all(CORPORA[name]).assert_no_fault()
        assert worker_pids(proxy.process) == before, "a request ended Squid"

    def test_corpus_has_enough_rows(self, name: str) -> None:
        rows = CORPORA[name]
        assert len({row.id for row in rows}) == len(rows) >= MIN_ROWS[name]


@pytest.mark.parametrize(
    ("sent", "answers", "max_answers"),
    [(b"{id}", 1, 1), (b"{id} GET http://x/next HTTP/1.1", 1, 2), (b"{id}{id}", 2, 2)],
    ids=["one request", "a second request or part of a body", "two requests"],
)
def test_answers_without_a_request_count_as_a_fault(sent: bytes, answers: int, max_answers: int) -> None:
    row = Row("row", sent, statuses(200), reaches=None, answers=answers)
    faults = [failure_reason(row, Answer((200,) * count, b""), []) for count in range(1, 5)]
    assert [count for count, fault in enumerate(faults, 1) if not fault] == list(range(answers, max_answers + 1))


@pytest.mark.nightly
def test_corpus_detects_a_relay_that_forwards_everything(scene: Scene) -> None:
    """The relay forwards all bytes. Nearly all rows are ambiguous, so the requests at the origin must also be
    ambiguous."""
    with scene.running_relay():
        outcome = scene.try_all(malformed.ROWS, wait_for_all=False)
    assert len(outcome.ambiguous) > 0.75 * len(malformed.ROWS)
    assert {"two-lengths", "coding-unknown", "chunk-longer-than-announced", "size-header"} <= outcome.failed.keys()
    assert not {"well-formed", "well-formed-pipelined", "body-without-length"} & outcome.failed.keys()


MUTANTS: dict[str, dict[str, tuple[str, set[str]]]] = {
    "open proxy": {
        "http_access deny to_loopback": (
            "",
            {"loopback-01-get", "loopback-22-connect", "name-both.example", "rebind-back"},
        ),
        "http_access deny own_addresses": ("", {"own-01-get", "own-06-get", "own-09-get", "name-own6.example"}),
        "http_access deny to_link_local": ("", {"metadata-01-connect"}),
        "http_access deny to_metadata": ("", {"metadata-14-get", "name-metadata-azure.example"}),
        "http_access deny to_embedded": ("", {"embedded-01-get", "embedded-07-connect", "name-nat64-metadata.example"}),
        "http_access deny !web_ports": ("", {"port-22", "port-25"}),
        "http_access deny CONNECT !tunnel_ports": ("", {"tunnel-22", "tunnel-444"}),
        "http_access deny !CONNECT !web_protocols": ("", {"service-ftp", "service-whois"}),
        "http_access deny trace": ("", {"method-trace"}),
    },
    "conformance": {
        "request_header_access Forwarded deny all": ("", {"removes-forwarded"}),
        "forwarded_for delete": ("forwarded_for on", {"removes-x-forwarded-for"}),
        "request_entities on": ("", {"get-with-body"}),
        "http_access deny !to_anywhere": ("", {"no-such-name"}),
        "http_reply_access deny no_http": ("", {"malformed-greeting"}),
        "reply_header_add Connection close no_body": ("", {"answer-204-announces-close", "answer-304-announces-close"}),
        "via on": ("via off", {"via-is-added"}),
    },
}
"""For each corpus: a line of squid.conf, its replacement, and rows whose result must change with the replacement."""


@pytest.mark.nightly(except_for=("conformance",))
@pytest.mark.parametrize("name", MUTANTS)
def test_rows_detect_each_missing_rule(scene: Scene, name: str) -> None:
    squid = find_squid()
    assert squid is not None
    # Leave out the lines that mptcp-proxy omits for this version of Squid, because it always behaves that way.
    lines = [PhysicalLine("squid.conf", number, text) for number, text in enumerate(MUTANTS[name], 1)]
    used_lines = {line.text for line in adapt(lines, list(statements(lines, "n")), squid.version).lines}
    mutants = {line: mutant for line, mutant in MUTANTS[name].items() if line in used_lines}
    with scene.running_proxy(
        weaker_configuration(scene, {line: replacement for line, (replacement, _) in mutants.items()})
    ):
        failed = set(scene.try_all(CORPORA[name], wait_for_all=False).failed)
    needless_rows = {"no-such-name"} if squid.version.startswith("6") else set()
    for line, (_, rows) in mutants.items():
        undetecting_rows = rows - needless_rows - failed
        assert not undetecting_rows, f"these rows succeed without {line!r}: {undetecting_rows}"


def test_rows_detect_a_missing_status_in_the_rule_for_empty_answers(scene: Scene) -> None:
    rows = [row for row in conformance.ROWS if row.id.endswith("-announces-close")]
    with scene.running_proxy(
        weaker_configuration(scene, {"acl no_body http_status 204 304": "acl no_body http_status 204"})
    ):
        assert scene.try_all(rows).failed.keys() == {"answer-304-announces-close"}


def weaker_configuration(scene: Scene, replacement: Mapping[str, str]) -> Path:
    """Write the shipped configuration with some lines replaced by *replacement*."""
    shipped = SQUID_CONFIG.read_text().splitlines()
    assert all(shipped.count(line) == 1 for line in replacement)
    config = scene.proxy.directory / "weaker.conf"
    config.write_text(
        "\n".join(
            [*(replacement.get(each, each) for each in shipped), f"dns_nameservers {ORIGIN}", *SHORT_TIMEOUTS, ""]
        )
    )
    return config


@pytest.mark.nightly
def test_corpus_detects_the_weaker_configuration_of_debian(scene: Scene) -> None:
    last_rule = "http_access deny all"
    stock = Path("/etc/squid/squid.conf").read_text().splitlines()
    lines = []
    for line in stock:
        if line == last_rule:
            lines += ["acl testers src 10.0.0.0/8", "http_access allow testers"]
        if not line.startswith(("coredump_dir", "cache_dir")):
            lines.append(line)
    config = scene.proxy.directory / "stock.conf"
    paths = ["pid_filename /run/${service_name}/squid.pid", "cache_log /var/log/${service_name}/cache.log"]
    logs = ["access_log stdio:/var/log/${service_name}/access.log", "pinger_enable off", "netdb_filename none"]
    config.write_text("\n".join([*lines, *paths, *logs, f"dns_nameservers {ORIGIN}", *SHORT_TIMEOUTS, ""]))
    with scene.running_proxy(config):
        outcome = scene.try_all(open_proxy.ROWS, wait_for_all=False)
    assert len(outcome.failed) > 50
    assert outcome.forbidden_connections
