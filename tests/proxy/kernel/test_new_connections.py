"""How many connections one client may open in a second, by the table in conf/nftables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import REPOSITORY, Proxy, mptcp_command, python_command, start_origin, start_proxy

pytestmark = pytest.mark.kernel
TABLE = REPOSITORY / "conf/nftables/limit-new-connections.nft"
PER_SECOND, AT_ONCE = 50, 500
"""As the table has them."""
OPENED = 1500
OPEN = """
import json, socket, sys, time
address, proxy, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
begun, accepted, refused = time.monotonic(), 0, 0
for number in range(count):
    try:
        socket.create_connection((proxy, 3128), 30, (address, 0)).close()
        accepted += 1
    except ConnectionRefusedError:
        refused += 1
print(json.dumps([accepted, refused, time.monotonic() - begun]))
"""
JOIN_PASSES = "tcp option mptcp subtype 1 return"
JOINED = "MPTcpExtMPJoinAckRx"


@pytest.fixture
def proxy(testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "gcc", "nftables", "curl", "mptcpize")
    start_origin(testbed["origin"], {"file": 100_000, "large": 3_000_000})
    return start_proxy(testbed["proxy"])


def limited(testbed: Testbed, tmp_path: Path, without: str = "", rate: str = f"{PER_SECOND}/second") -> None:
    """Load the table, *without* a line of it, or with another rate."""
    text = TABLE.read_text()
    assert without in text
    (tmp_path / "limit.nft").write_text(text.replace(without, "").replace(f"{PER_SECOND}/second", rate))
    testbed["proxy"].run(["nft", "-f", str(tmp_path / "limit.nft")])


def opened(testbed: Testbed, address: str, proxy: str) -> tuple[int, int, float]:
    """Have a client open connections as fast as it can: how many it got, how many were refused, in how many seconds."""
    accepted, refused, seconds = json.loads(
        testbed["client"].run(python_command(OPEN, address, proxy, str(OPENED)), timeout=300).stdout
    )
    return accepted, refused, seconds


def status(testbed: Testbed, address: str, url: str, *, file: str = "file") -> str:
    """Return the status of a request of the client with *address*, 000 where its connection is refused."""
    target = ["http://10.77.9.2/" + file, "-x", url, "--interface", address]
    command = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", *target]
    return str(testbed["client"].run(mptcp_command(command), check=False, timeout=90).stdout)


@pytest.mark.parametrize(
    ("address", "server"), [("10.77.1.2", "10.77.8.2"), ("fd77:1::2", "fd77:8::2")], ids=["IPv4", "IPv6"]
)
def test_one_client_gets_no_more_than_its_share_and_others_theirs(
    testbed: Testbed, proxy: Proxy, tmp_path: Path, address: str, server: str
) -> None:
    limited(testbed, tmp_path)
    accepted, refused, seconds = opened(testbed, address, server)
    assert AT_ONCE <= accepted <= AT_ONCE + PER_SECOND * seconds + 1
    assert refused == OPENED - accepted
    # Each opened in 0.2 ms; a machine that took twenty seconds for all of them has let them pass.
    assert refused or seconds > (OPENED - AT_ONCE) / PER_SECOND
    assert status(testbed, "10.77.2.2", proxy.url()) == "200", "another client"


def test_without_the_table_all_are_taken(testbed: Testbed, proxy: Proxy) -> None:
    assert opened(testbed, "10.77.1.2", "10.77.8.2")[0] == OPENED


@pytest.mark.parametrize("without", ["", JOIN_PASSES], ids=["as shipped", "joins count"])
def test_a_path_of_a_connection_that_is_there_is_no_new_connection(
    testbed: Testbed, proxy: Proxy, tmp_path: Path, without: str
) -> None:
    # The share of the second address is used up, and stays so.
    limited(testbed, tmp_path, without, rate="1/hour")
    before = testbed["proxy"].mib().get(JOINED, 0)
    assert opened(testbed, "10.77.2.2", "10.77.8.2")[0] == AT_ONCE
    assert status(testbed, "10.77.1.2", proxy.url(), file="large") == "200"
    joined = testbed["proxy"].mib().get(JOINED, 0) - before
    assert joined == (0 if without else 1)


def test_it_is_loaded_again_and_goes_by_the_commands_that_it_names(testbed: Testbed) -> None:
    node = testbed["proxy"]
    before = node.run(["nft", "list", "ruleset"]).stdout
    node.run(["nft", "-f", str(TABLE)])
    once = node.run(["nft", "list", "ruleset"]).stdout
    node.run(["nft", "-f", str(TABLE)])
    assert node.run(["nft", "list", "ruleset"]).stdout == once != before
    (remove,) = (each for each in TABLE.read_text().splitlines() if "nft delete table" in each)
    node.run(remove.strip("# ").partition("  ")[0].split()[1:])
    assert node.run(["nft", "list", "ruleset"]).stdout == before
