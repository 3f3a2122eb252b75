# SPDX-License-Identifier: GPL-2.0-or-later
"""Test for observed downloads: content, protocol counters, and the message of a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_lab.testbed import Testbed, TestbedError, lab_of
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.services import mptcp_command, start_origin
from mptcp_lab.testbed.transfer import Added, download, wget

pytestmark = pytest.mark.kernel
Require = Callable[..., None]


def test_download_is_judged_by_counters_and_its_failure_has_the_message_of_the_client(
    testbed: Testbed, require: Require
) -> None:
    require("apache2", "mptcpize", "wget")
    origin, lab = start_origin(testbed["origin"], {"file": 1000}), lab_of(testbed)
    seen = download(lab, wget(origin.url("file")), timeout=60)
    assert (seen.octets, seen.sha256) == (1000, origin.digests["file"])
    assert seen.protocol.complaint(multipath=False) is None
    assert seen.protocol.complaint(multipath=True) == "the client opened no MPTCP connection"
    added = Added(testbed["client"], testbed["proxy"])
    testbed["proxy"].run(mptcp_command(["wget", "-O", "/dev/null", origin.url("file")]))
    assert "the proxy sent 1 SYN with MP_CAPABLE" in str(Protocol.of(*added.read()).complaint(multipath=False))
    with pytest.raises(TestbedError, match=r"(?s)download by wget: it ended with 8: .*404"):
        download(lab, wget(origin.url("nothing")), timeout=60)
