# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a testbed's services, and for the protocol counters of a download through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_lab.testbed import Testbed, TestbedError, lab_of
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.services import mptcp_command, start_origin
from mptcp_lab.testbed.transfer import Added, download, wget

pytestmark = pytest.mark.kernel
Require = Callable[..., None]


def test_mptcp_from_the_proxy_to_the_origin_is_reported(testbed: Testbed, require: Require) -> None:
    require("mptcpize", "curl")
    origin = start_origin(testbed["origin"], {"file": 1000})
    added = Added(testbed["client"], testbed["proxy"])
    command = ["curl", "-sf", "-o", "/dev/null", origin.url("file")]
    testbed["proxy"].run(command)
    assert Protocol.of(*added.read()).complaint(multipath=False) is None
    testbed["proxy"].run(mptcp_command(command))
    complaint = Protocol.of(*added.read()).complaint(multipath=False)
    assert complaint is not None
    assert "the proxy sent 1 SYN with MP_CAPABLE" in complaint


def test_failed_download_is_reported_with_what_the_client_said(testbed: Testbed, require: Require) -> None:
    require("apache2", "wget")
    origin = start_origin(testbed["origin"], {"file": 1000})
    lab = lab_of(testbed)
    seen = download(lab, wget(origin.url("file")), timeout=60)
    assert (seen.octets, seen.sha256) == (1000, origin.digests["file"])
    assert seen.protocol.complaint(multipath=True) is not None
    with pytest.raises(TestbedError, match=r"(?s)download by wget: it ended with 8: .*404"):
        download(lab, wget(origin.url("nothing")), timeout=60)
