"""Socket diagnostics against ss(8): what is read of struct tcp_info stands where the kernel puts it."""

from __future__ import annotations

import re
import socket
import time
from typing import Any

import pytest

from mptcp_bench.testbed import Testbed
from mptcp_throttler.kernel.sock_diag import SocketDiagnostics

pytestmark = pytest.mark.kernel

IPPROTO_MPTCP = 262
PORT = 3128


def test_it_reads_what_ss_shows(testbed: Testbed, require: Any) -> None:
    require("mptcp")
    proxy, client = testbed["proxy"], testbed["client"]
    with proxy.entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        diagnostics = SocketDiagnostics((PORT,))
    with client.entered():
        caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with listener, caller:
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        caller.connect((proxy.address("wan0"), PORT))
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x" * 100_000)
            caller.sendall(b"y" * 2_000)
            got = 0
            while got < 100_000:
                got += len(caller.recv(65_536))
            time.sleep(0.5)  # the last acknowledgements; nothing changes afterwards
            found = {each.four_tuple.remote_port: each for each in diagnostics.subflows()}
            listing = proxy.run(["ss", "-tinH", "state", "established", "sport", "=", f":{PORT}"]).stdout
    diagnostics.close()
    lines = [line for line in listing.replace("\n\t", " ").splitlines() if "bytes_acked" in line]
    assert lines
    for line in lines:
        port = int(re.findall(r":(\d+)\s", line)[1])
        subflow = found[port]
        assert subflow.tcp is not None

        def shown(name: str, line: str = line) -> float:
            number = re.search(rf"\b{name}[: ]([\d.]+)", line)
            return float(number[1]) if number else 0.0

        assert subflow.bytes_sent == shown("bytes_acked")
        assert subflow.bytes_received == shown("bytes_received")
        assert subflow.tcp.rtt / 1e3 == pytest.approx(shown("rtt"), abs=0.001)
        assert subflow.tcp.min_rtt / 1e3 == pytest.approx(shown("minrtt"), abs=0.001)
        assert subflow.tcp.mss == shown("mss")
        assert subflow.tcp.cwnd == shown("cwnd")
        assert subflow.tcp.pacing_rate == pytest.approx(shown("pacing_rate"), abs=8)
        assert subflow.tcp.delivery_rate == pytest.approx(shown("delivery_rate"), abs=8)
        assert subflow.tcp.busy / 1e3 == pytest.approx(shown("busy"), abs=1)
        assert (subflow.tcp.not_sent, subflow.tcp.unacked, subflow.tcp.sacked) == (0, 0, 0)
