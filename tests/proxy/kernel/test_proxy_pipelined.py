# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a client that reads late gets all pipelined answers, although Squid closes the connection after the last
answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from textwrap import dedent

import pytest
from proxying import write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, start_origin, start_proxy

pytestmark = pytest.mark.kernel
SIZES = {"small": 300, "piece": 3000, "pieces": 9000}
CONNECTION_COUNT = int(os.environ.get("MPTCP_PIPELINED", "3000"))
"""Number of connections. With the defect, about three of 3,000 lost answers."""
CLIENT = dedent("""
    import json, random, selectors, socket, sys, time

    origin, proxy, names, number, protocol = json.loads(sys.argv[1])
    rng, lost, done, now = random.Random(protocol), [], 0, time.monotonic
    def start_client():
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        if rng.random() < 0.9: client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.connect(tuple(proxy))
        answers = rng.choice([1, rng.randrange(5, 40)])
        chosen_names = rng.choices([*names, *6 * names[1:2]], k=answers)
        requests = [f"GET {origin}/{name} HTTP/1.1\\r\\nHost: o\\r\\n\\r\\n" for name in chosen_names]
        # The last answer has no body.
        requests.append(f"HEAD {origin}/{names[0]} HTTP/1.1\\r\\nHost: o\\r\\nConnection: close\\r\\n\\r\\n")
        client.sendall("".join(requests).encode())
        client.setblocking(False)
        return client, answers + 1, bytearray(), now() + rng.choice([0] + 6 * [0.8])
    waiting, started_count = [], 0
    while done < number:
        while started_count < number and len(waiting) < 150:
            waiting.append(start_client()); started_count += 1
        still_waiting = []
        for each in waiting:
            client, answers, received, read_at = each
            if now() < read_at:
                still_waiting.append(each); continue
            try: chunk = client.recv(65536)
            except BlockingIOError: still_waiting.append(each); continue
            except OSError: chunk = b""
            if chunk:
                received += chunk; still_waiting.append(each)
            else:
                client.close(); done += 1
                if (count := received.count(b"HTTP/1.1 200 ")) != answers: lost.append((count, answers))
        waiting = still_waiting
        time.sleep(0.002)
    print(json.dumps(lost))
""")


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", [pytest.param(6, id="TCP"), pytest.param(262, id="MPTCP")])
def test_client_that_reads_late_gets_all_pipelined_answers(
    testbed: Testbed, require: Callable[..., None], protocol: int
) -> None:
    """Defect: 8 to 23 of 690 such connections were reset before all answers had arrived."""
    require("squid", "apache2", "gcc")
    host = testbed["proxy"]
    origin = start_origin(testbed["origin"], SIZES)
    start_proxy(host, write_configuration(host, "workers 1"))
    address = (host.service_address(4), PROXY_PORT)
    task = json.dumps([origin.url("")[:-1], address, list(SIZES), CONNECTION_COUNT, protocol])
    answer = testbed["client"].run([sys.executable, "-c", CLIENT, task], timeout=3600)
    received_and_expected = json.loads(answer.stdout)
    assert received_and_expected == [], "these connections lost answers"
