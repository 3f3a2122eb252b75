# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with a real Prometheus that scrapes the console's metrics while downloads run under caps.

Every expression of the dashboard and the alerts must then have a value. Each of the last tests causes one more fault,
and the expression of the corresponding alert must become true.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from endless_file import make_endless
from monitoring import (
    METRIC,
    alert_expressions,
    alerts,
    places_using,
    shown_expressions,
    variables,
    with_bool_comparisons,
)
from prometheus import TIMEOUT, Prometheus, http_get
from sample_answers import Samples, samples

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    SQUID_CONFIG,
    Origin,
    Proxy,
    Throttler,
    mptcp_command,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)
from mptcp_proxy.process import children, command

pytestmark = pytest.mark.kernel

PORT = 8610
PLAIN_PORT = 3129
"""Another port that the throttler watches; its server supports only plain TCP."""
POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
budgets:
  soon-used-up:
    period: month
    per: path
    steps: [{after: 1 MB, throttle: {rate: 8 Mbit/s}}]
  large:
    period: month
    steps: [{after: 5 TB, throttle: {rate: 4 Mbit/s}}]
rules:
  - {name: spare-ethernet, paths: [ethernet], throttle: {rate: 5 Mbit/s}}
  - {name: slow-wifi, paths: [wifi], throttle: {rate: 10 Mbit/s}}
  - {name: metered-ethernet, paths: [ethernet], budget: soon-used-up}
  - {name: metered-wifi, paths: [wifi], budget: large}
"""
LOAD = """
while true; do
    curl -s -o /dev/null -m 30 -x "$1" "$2/small"
    curl -s -o /dev/null -m 30 -p -x "$1" "$3/small"
    curl -s -o /dev/null -m 0.3 -x "$1" "$2/large"
    sleep 0.2
done
"""
"""Shell loop of short connections: one with GET, one with CONNECT, and one that the client aborts."""


@dataclass
class MonitoredSite:
    testbed: Testbed
    origin: Origin
    proxy: Proxy
    throttler: Throttler
    console: Process
    prometheus: Prometheus

    @property
    def node(self) -> LiveNode:
        return self.testbed["proxy"]

    def scrape(self) -> dict[str, float]:
        """Return the current samples without labels, as the server exports them."""
        return {name: value for (name, labels), value in self.samples().items() if not labels}

    def samples(self) -> Samples:
        return samples(http_get(self.node, f"http://127.0.0.1:{PORT}/metrics").decode())

    def counters_by_process(self) -> dict[str, dict[str, float]]:
        """Return the counters of each of Squid's processes."""
        found: dict[str, dict[str, float]] = {}
        for (name, labels), value in self.samples().items():
            if name.startswith("squid") and "process" in dict(labels):
                found.setdefault(dict(labels)["process"], {})[name] = value
        return found


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> MonitoredSite:
    require("htb", "squid", "apache2", "curl", "mptcpize", "prometheus", "promtool")
    testbed = make_module_testbed()
    node, client = testbed["proxy"], testbed["client"]
    origin = start_origin(testbed["origin"], {"small": 400_000, "large": 1000})
    make_endless(origin, "large")
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    settings = {"ledger": str(testbed.directory / "ledger.sqlite"), "listen_ports": [PROXY_PORT, PLAIN_PORT]}
    config = write_throttler_config(node, policy, settings=settings)
    throttler = start_throttler(node, config)
    squid = testbed.directory / "squid.conf"
    squid.write_text(f"include {SQUID_CONFIG}\nworkers 2\n")
    proxy = start_proxy(node, squid)
    console = testbed.directory / "console.yaml"
    console.write_text(f"listen: 127.0.0.1:{PORT}\nstatus_socket: {throttler.socket}\nopen_to_this_host: true\n")
    server = node.popen([program("mptcp-console"), "run", "--config", str(console)], name="console")
    wait_until(lambda: "serving" in server.output(), "the console serves", timeout=TIMEOUT, process=server)
    prometheus = Prometheus.start(node, f"127.0.0.1:{PORT}")
    client.popen(mptcp_command(["curl", "-s", "-o", "/dev/null", "-x", proxy.url(), origin.url("large")]))
    tunnelled = origin.url("", port=443).rstrip("/")
    client.popen(
        mptcp_command(["sh", "-c", LOAD, "sh", proxy.url(), origin.url("").rstrip("/"), tunnelled]), name="load"
    )
    return MonitoredSite(testbed, origin, proxy, throttler, server, prometheus)


def test_each_dashboard_and_alert_expression_has_a_value(site: MonitoredSite) -> None:
    prometheus = site.prometheus
    # The last expression gets its value after a join under a cap, with a scrape before and after the join.
    shown = shown_expressions()
    compared_alerts = {name: with_bool_comparisons(text) for name, text in alert_expressions().items()}
    wait_until(
        lambda: not prometheus.without_values(shown | compared_alerts),
        "every expression has a value",
        timeout=TIMEOUT,
    )


def test_expression_with_a_renamed_metric_has_no_value(site: MonitoredSite) -> None:
    expressions = shown_expressions() | {
        name: with_bool_comparisons(text) for name, text in alert_expressions().items()
    }
    renamed = {
        f"{name}: {metric}": text.replace(metric, f"{metric}_renamed")
        for name, text in expressions.items()
        for metric in set(METRIC.findall(text))
    }
    assert site.prometheus.without_values(renamed) == list(renamed)


def test_dashboard_variables_list_the_existing_values(site: MonitoredSite) -> None:
    def listed_now() -> dict[str, list[str]]:
        return {
            name: site.prometheus.query_api(f"label/{label}/values", **{"match[]": selector})
            for name, (selector, label) in variables().items()
        }

    # If this test runs first, nothing has been scraped yet.
    wait_until(lambda: all(listed_now().values()), "all variables have values", timeout=TIMEOUT)
    listed = listed_now()
    assert listed["instance"] == [f"127.0.0.1:{PORT}"]
    assert {"spare-ethernet", "slow-wifi"} <= set(listed["rule"])
    assert {"ethernet", "wifi"} <= set(listed["path"])


@pytest.mark.parametrize(
    ("rules", "paths"),
    [
        (["spare-ethernet"], ["ethernet"]),
        (["slow-wifi"], ["wifi"]),
        (["spare-ethernet", "slow-wifi"], ["ethernet", "wifi"]),
    ],
)
def test_panels_show_only_the_chosen_rules_and_paths(site: MonitoredSite, rules: list[str], paths: list[str]) -> None:
    """For all values, a variable is ``.*``, which also matches series without the label; a chosen value does not."""
    chosen = {"instance": [f"127.0.0.1:{PORT}"], "rule": rules, "path": paths}
    prometheus, expressions = site.prometheus, shown_expressions(chosen)
    wait_until(lambda: not prometheus.without_values(expressions), "every expression has a value", timeout=TIMEOUT)
    found: dict[str, set[str]] = {name: set() for name in chosen}
    for place, expression in expressions.items():
        for labels in prometheus.labels(expression):
            for name in labels.keys() & chosen.keys():
                assert labels[name] in chosen[name], place
                found[name].add(labels[name])
    assert found == {name: set(values) for name, values in chosen.items()}


@pytest.mark.parametrize("name", ["instance", "rule", "path"])
def test_panels_are_empty_for_a_value_that_does_not_exist(site: MonitoredSite, name: str) -> None:
    expressions = shown_expressions({name: ["no-such"]})
    places = places_using(name)
    assert places
    assert set(site.prometheus.without_values({place: expressions[place] for place in places})) == places


def test_prometheus_evaluates_the_alerts_without_errors(site: MonitoredSite) -> None:
    def states() -> dict[str, str]:
        groups = site.prometheus.query_api("rules")["groups"]
        return {
            rule["name"]: f"{rule['health']} {rule.get('lastError', '')}" for group in groups for rule in group["rules"]
        }

    wait_until(
        lambda: all(not text.startswith("unknown") for text in states().values()),
        "all alerts are evaluated",
        timeout=TIMEOUT,
    )
    assert states() == {rule["alert"]: "ok " for rule in alerts()}


def test_metrics_show_that_the_caps_hold(site: MonitoredSite) -> None:
    prometheus = site.prometheus
    prometheus.wait_for('mptcp_throttler_caps_in_force{rule="spare-ethernet", path="ethernet", direction="down"} > 0')
    # Payload rate under a cap of 5 Mbit/s: more than zero, and never far above the cap.
    rate = '8 * rate(mptcp_throttler_path_bytes_total{path="ethernet", direction="down"}[20s])'
    prometheus.wait_for(rate, lambda values: 1e6 < values[0] < 8e6 if values else False)
    # A late scrape on a busy machine leaves a gap without a value.
    ceil = '8 * mptcp_throttler_cap_ceil_bytes_per_second{rule="spare-ethernet"}'
    prometheus.wait_for(ceil, lambda values: values == [5e6])
    prometheus.wait_for("rate(squid_tunnels_total[20s]) > 0")
    prometheus.wait_for("mptcp_ext_mp_curr_estab > 0")


# Each of the following tests causes one more fault, which remains.


def test_alert_fires_for_a_used_up_budget(site: MonitoredSite) -> None:
    site.prometheus.wait_for(alert_expressions()["MptcpBudgetUsedUp"])


@pytest.mark.nightly
def test_alert_fires_when_the_kernel_refuses_joins(site: MonitoredSite) -> None:
    site.node.run(["ip", "mptcp", "limits", "set", "subflows", "0"])
    site.prometheus.wait_for(alert_expressions()["MptcpJoinsRejected"])
    site.prometheus.wait_for(alert_expressions()["MptcpJoinsFail"])


def test_alert_fires_for_a_listener_that_serves_plain_tcp(site: MonitoredSite) -> None:
    """Without the preload library, the listener answers Multipath TCP clients with plain TCP."""
    plain = site.node.popen(["/usr/bin/python3", "-m", "http.server", str(PLAIN_PORT)], name="plain")
    url = f"http://{site.node.service_address()}:{PLAIN_PORT}/"
    # These connections must be more than the load has opened since its start.
    script = 'for number in $(seq 3000); do curl -s -o /dev/null -m 5 "$1"; done'
    clients = site.testbed["client"].popen(mptcp_command(["sh", "-c", script, "sh", url]), name="many")
    site.prometheus.wait_for(alert_expressions()["MptcpListenerServesPlainTcp"])
    clients.kill_tree()
    plain.kill()


def test_alert_fires_for_failed_requests(site: MonitoredSite) -> None:
    url = f"{site.origin.url('', port=99)}[1-2000]"
    site.testbed["client"].run(["curl", "-s", "-o", "/dev/null", "-x", site.proxy.url(), url], timeout=300)
    site.prometheus.wait_for(alert_expressions()["MptcpSquidErrors"])


def test_reload_alert_lasts_until_a_reload_succeeds(site: MonitoredSite) -> None:
    policy = site.testbed.directory / "policy.yaml"
    policy.write_text("version: 1\nrules: [")
    site.throttler.process.signal(signal.SIGHUP)
    site.prometheus.wait_for(alert_expressions()["MptcpReloadRefused"])
    policy.write_text(POLICY)
    site.throttler.process.signal(signal.SIGHUP)
    site.prometheus.wait_for(alert_expressions()["MptcpReloadRefused"], lambda values: not values)


def test_hung_throttler_is_down_and_has_no_old_metrics(site: MonitoredSite) -> None:
    site.throttler.process.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: site.scrape()["mptcp_throttler_up"] == 0, "the throttler is down", timeout=TIMEOUT)
        found = site.scrape()
    finally:
        site.throttler.process.signal(signal.SIGCONT)
    assert [name for name in found if name.startswith("mptcp_throttler")] == ["mptcp_throttler_up"]
    wait_until(lambda: site.scrape()["mptcp_throttler_up"] == 1, "the throttler is up again", timeout=TIMEOUT)


def test_alert_fires_for_a_killed_throttler(site: MonitoredSite) -> None:
    site.throttler.process.kill()
    site.prometheus.wait_for(alert_expressions()["MptcpThrottlerDown"])
    site.prometheus.wait_for("mptcp_throttler_connections", lambda values: not values)
    site.prometheus.wait_for("squid_up", lambda values: values == [1])


def test_worker_restart_lowers_no_counter_of_another_worker(site: MonitoredSite) -> None:
    """Defect: both workers had one summed counter, which fell by the count of a worker that ended."""
    (squid,) = (pid for pid in children(site.proxy.process.pid) if b"--foreground" in command(pid))
    (second,) = (pid for pid in children(squid) if command(pid).startswith(b"(squid-2)\0"))
    requests = "squid_client_requests_total"
    counted: dict[str, dict[str, float]] = {}

    def second_count_is(accepts: Callable[[float], bool]) -> bool:
        """Return whether *accepts* is true for the second worker's count. On a busy machine, a scrape may lack it."""
        counted.clear()
        counted.update(site.counters_by_process())
        return counted.keys() == {"1", "2"} and accepts(counted["2"][requests])

    wait_until(lambda: second_count_is(lambda count: count > 50), "the counter has grown", timeout=TIMEOUT)
    before = dict(counted)
    os.kill(second, signal.SIGKILL)
    wait_until(
        lambda: second_count_is(lambda count: count < before["2"][requests]),
        "a new worker replaces it",
        timeout=TIMEOUT,
    )
    assert {name for name, value in before["1"].items() if counted["1"][name] < value} == set()


def test_alert_fires_for_a_killed_squid(site: MonitoredSite) -> None:
    site.proxy.process.kill_tree()
    site.prometheus.wait_for(alert_expressions()["MptcpSquidDown"])
    site.prometheus.wait_for("squid_client_requests_total", lambda values: not values)


def test_alert_fires_when_metrics_are_missing(site: MonitoredSite) -> None:
    site.console.kill()
    site.prometheus.wait_for(alert_expressions()["MptcpMetricsMissing"])
