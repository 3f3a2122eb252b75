"""The package on each release of Debian, from ``apt install`` to purge, on a host that boots systemd.

Too long for every run of the tests: ``sudo ./run deb --test [RELEASE]`` starts these. It fetches Debian's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import Container, until
from deb_package import (
    BUILD_DIFFERENTLY,
    BUILD_PATIENCE,
    NAME,
    build,
    contents,
    copy_sources,
    foreign,
    repacked,
    sha256,
)

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Origin, accepts, mptcp_command, start_origin

RELEASES = os.environ.get("MPTCP_PACKAGE_RELEASES", "").split()
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not RELEASES, reason="NOT TESTED: sudo ./run deb --test boots containers and takes minutes"),
]

UNITS = ("mptcp-proxy.service", "mptcp-throttler.service")
BUILD = """
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends dpkg-dev lintian
cd /shared/source
apt-get build-dep --yes --quiet --no-install-recommends .
PIP_CERT=/shared/trusted.pem sh debian/package /shared/made
"""
SIZE = 40_000_000
CAP = 5_000_000
"""Bits/s, of conf/policy.yaml, on path ethernet."""
# What systemd, dpkg's tools and Debian's own packages leave on a host that ran for a while.
OTHERS = (
    "etc/hosts",
    "etc/networks",
    "var/lib/dbus/",
    "root/",
    "tmp",
    "var/tmp",
    "shared",
    "var/lib/systemd/",
    "var/lib/apt/",
    "var/lib/logrotate",
    "var/spool/squid",
    # On Debian 13 ca-certificates comes with Squid and stays, for apt recommends it; these it makes itself.
    "etc/ca-certificates.conf",
    "etc/ssl/certs/",
    "usr/local/share/ca-certificates",
)


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def container(release: str, module_testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    # It needs the testbed for as long as it runs.
    assert module_testbed
    made = Container(release, tmp_path_factory.mktemp(release))
    yield made
    made.off()


@pytest.fixture(scope="module")
def builder(release: str, tmp_path_factory: pytest.TempPathFactory) -> Container | None:
    """Return where the package for *release* is built: this machine (None), or a container of that release."""
    if f"VERSION_CODENAME={release}\n" in Path("/etc/os-release").read_text():
        return None
    made = Container(release, tmp_path_factory.mktemp(f"{release}-builder"))
    # Whom this machine trusts, an index of its own among them.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", made.shared / "trusted.pem")
    return made


@pytest.fixture(scope="module")
def package(builder: Container | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package for *release*, built on that release or given."""
    if builder is None or "MPTCP_PACKAGE" in os.environ:
        return build(tmp_path_factory.mktemp("package"))
    copy_sources(builder.shared / "source")
    builder.outside(BUILD)
    (made,) = (builder.shared / "made").glob("*.deb")
    return made


@pytest.fixture(scope="module")
def package_of_another(builder: Container | None, package: Path) -> Iterator[Path]:
    """Return the package that somebody else makes of the same sources."""
    assert package.exists()
    with tempfile.TemporaryDirectory(dir=builder.shared if builder else None) as name:
        directory = Path(name)
        copy_sources(directory / "source")
        if builder is None:
            command = ["chrt", "--idle", "0", "sh", "-euc", BUILD_DIFFERENTLY, "sh", str(directory)]
            subprocess.run(command, check=True, timeout=BUILD_PATIENCE)
        else:
            inside = f"/shared/{directory.name}"
            builder.outside(f"export PIP_CERT=/shared/trusted.pem; set -- {inside}; {BUILD_DIFFERENTLY}")
        (made,) = (directory / "made").glob("*.deb")
        yield made


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed) -> Origin:
    return start_origin(module_testbed["origin"], {"file": SIZE})


def throttled(testbed: Testbed, origin: Origin, container: Container) -> None:
    """Download over both paths: a subflow has a cap in mid-download, and its path carried the smaller part."""
    client = testbed["client"]
    address = testbed["proxy"].service_address()
    until(lambda: accepts(client, address, PROXY_PORT), "the proxy listens")
    before, began = client.counters(), time.monotonic()
    proxy = f"http://{address}:{PROXY_PORT}"
    command = ["curl", "-sS", "-m", "120", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", "-x", proxy]
    download = client.popen(mptcp_command([*command, origin.url("file")]), name="curl")
    seen: dict[str, Any] = {}

    def capped() -> bool:
        answer = container.run(["mptcp-throttler", "status", "--json"], check=False)
        if answer.returncode == 0:
            seen.update(json.loads(answer.stdout))
        subflows = [each for connection in seen.get("connections", ()) for each in connection["subflows"]]
        return len(subflows) == 2 and any(each["classid"] for each in subflows)

    until(lambda: capped() or not download.running, "a capped subflow")
    assert capped(), f"none was seen: {download.output()}\n{seen}\n{container.sh('journalctl --no-pager --lines 60')}"
    assert download.wait(150) == 0, download.output()
    assert download.output().split() == ["200", str(SIZE)]
    took, after = time.monotonic() - began, client.counters()
    ethernet, wifi = (after[device].received - before[device].received for device in ("eth0", "wlan0"))
    # Whatever came before the cap, and its repayment, are judged elsewhere: here, that it is there at all.
    assert ethernet < wifi / 2, f"ethernet {ethernet}, wifi {wifi} bytes in {took:.1f} s under a cap of {CAP} bits/s"
    assert ethernet > 0


def test_a_life_from_installation_to_purge(
    container: Container, package: Path, module_testbed: Testbed, origin: Origin, tmp_path: Path
) -> None:
    node = module_testbed["proxy"]
    later = repacked(package, tmp_path, "9.9", [("etc/mptcp-proxy/squid.conf", "dns_timeout 10", "dns_timeout 11")])
    first, second = (f"/shared/{each.name}" for each in (package, later))
    for each in (package, later):
        shutil.copy(each, container.shared)
    # From here on there is no network but the testbed's.
    container.outside(f"apt-get update --quiet && apt-get install --yes --quiet --download-only {first}")
    kernel = kernel_state(node)
    container.boot(node.namespace)
    before = container.files()

    said = container.sh(f"apt-get install --yes --quiet {first}")
    assert "squid.service, which came as a dependency, is stopped and disabled" in said
    assert "mptcp-throttler waits for its configuration" in said
    until(lambda: container.active("mptcp-proxy"), "the proxy is active")
    left_out = "request_entities on: left out, Squid 6"
    for told in (container.sh("mptcp-proxy check"), container.sh("journalctl --no-pager --unit=mptcp-proxy")):
        assert (left_out in told) == (container.release != "bookworm"), told
    assert container.sh("systemctl is-enabled squid.service", check=False).strip() == "disabled"
    assert not container.active("squid")
    assert container.sh("systemctl is-enabled mptcp-proxy mptcp-throttler").split() == ["enabled", "enabled"]
    assert not container.active("mptcp-throttler")
    assert "ConditionResult=no" in container.sh("systemctl show -p ConditionResult mptcp-throttler")
    assert container.sh("systemctl --failed --no-legend").strip() == ""

    # The examples name the testbed's interface and networks.
    container.sh("cd /etc/mptcp-throttler && for each in throttler policy; do cp $each.yaml.example $each.yaml; done")
    container.sh("systemctl start mptcp-throttler")
    throttled(module_testbed, origin, container)

    # An operator's line stays through an upgrade that brings another squid.conf: dpkg asks.
    container.sh("echo '# by the operator' >>/etc/mptcp-proxy/squid.conf")
    processes = main_processes(container)
    container.sh(f"apt-get install --yes --quiet -o Dpkg::Options::=--force-confold {second}")
    until(lambda: all(container.active(unit) for unit in UNITS), "both are active after the upgrade")
    assert not set(main_processes(container)) & set(processes), "both run what was installed"
    assert "# by the operator" in container.sh("cat /etc/mptcp-proxy/squid.conf")
    throttled(module_testbed, origin, container)

    container.off()
    container.boot(node.namespace)
    until(lambda: all(container.active(unit) for unit in UNITS), "both are active after the reboot")
    assert not container.active("squid")
    throttled(module_testbed, origin, container)

    # A daemon that was killed leaves its caps in the kernel; the removal takes them out.
    container.sh("systemctl kill --signal=KILL mptcp-throttler; systemctl stop mptcp-throttler")
    container.sh(f"apt-get remove --yes --quiet {NAME}")
    assert kernel_state(node) == kernel
    assert not any(container.active(unit) for unit in UNITS)
    container.sh(f"apt-get purge --yes --quiet {NAME} && apt-get autoremove --purge --yes --quiet")
    container.sh("systemctl daemon-reload")
    # A dependency that Debian counts as important stays.
    of_others = {name.lstrip("/") for name in container.sh("cat /var/lib/dpkg/info/*.list").splitlines()}
    left = foreign(sorted(container.files() - before - of_others))
    assert [name for name in left if "mptcp" in name or not name.startswith(OTHERS)] == []
    assert "mptcp" not in container.sh(
        "cat /etc/passwd /etc/group; systemctl list-unit-files; ls -R /var/lib/systemd /run"
    )


def test_the_same_sources_give_the_same_bytes_to_everybody(package: Path, package_of_another: Path) -> None:
    assert package_of_another.name == package.name
    one, other = contents(package), contents(package_of_another)
    assert {name: (one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)} == {}
    assert sha256(package_of_another) == sha256(package)


def main_processes(container: Container) -> list[str]:
    return container.sh(f"systemctl show --value -p MainPID {' '.join(UNITS)}").split()


def kernel_state(node: LiveNode) -> str:
    """Return what the throttler puts into the kernel, and must take out."""
    return node.run(
        ["sh", "-c", "tc qdisc show dev wan0; iptables-save -t mangle | grep -v '^[#:]'; ipset save; nft list ruleset"]
    ).stdout
