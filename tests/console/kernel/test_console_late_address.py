# SPDX-License-Identifier: GPL-2.0-or-later
"""Test for a console that listens on an address that the host gets only while the console runs."""

from __future__ import annotations

import pytest
from prometheus import http_get

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import accepts, wait_until

pytestmark = pytest.mark.kernel
PORT = 8610
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(("address", "length"), [("192.0.2.1", 32), ("2001:db8::1", 128)])
def test_console_serves_an_address_added_after_its_start(module_testbed: Testbed, address: str, length: int) -> None:
    """Defect: the console could not start, and after five attempts within seconds systemd did not try again."""
    node = module_testbed["proxy"]
    host = f"[{address}]" if ":" in address else address
    node.write("token", TOKEN).chmod(0o600)
    config = node.write("console.yaml", f"listen: '{host}:{PORT}'\nstatus_socket: {node.directory}/none\n")
    warning = f"listen: no interface of this host has {address}; clients cannot reach it until one has it"
    with node.running([node.program("mptcp-console"), "run", "--config", str(config)], name="console") as console:
        wait_until(lambda: "serving" in console.output(), "the console serves", process=console)
        assert console.output().count(warning) == 1
        assert not accepts(node, address, PORT)
        node.run(["ip", "address", "add", f"{address}/{length}", "dev", "lo"])
        wait_until(lambda: accepts(node, address, PORT), "the address is answered", process=console)
        assert b"token" in http_get(node, f"http://{host}:{PORT}/login")
