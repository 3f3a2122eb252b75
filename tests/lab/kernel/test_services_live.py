# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a testbed's services, and for the protocol counters of a download through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_lab.testbed import Testbed, TestbedError, lab_of
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.services import (
    REPOSITORY,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import Added, download, wget

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
SIZE = 30_000_000
"""Bytes of a download that is long enough for the second subflow to join, even on a busy machine."""
POLICY = REPOSITORY / "conf" / "policy.yaml"


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


def test_download_through_the_services_is_multipath(testbed: Testbed, require: Require) -> None:
    require("squid", "apache2", "wget", "mptcpize", "htb")
    origin = start_origin(testbed["origin"], {"file": SIZE})
    proxy = start_proxy(testbed["proxy"])
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], POLICY))
    argv = wget(origin.url("file"), proxy=proxy, multipath=True)
    seen = download(lab_of(testbed), argv, timeout=60)
    assert (seen.octets, seen.sha256) == (SIZE, origin.digests["file"])
    assert seen.protocol.complaint(multipath=True) is None
    assert throttler.process.stop(grace=60) == 0
    assert seen.protocol.complaint(multipath=False) is not None
    with pytest.raises(TestbedError, match=r"(?s)download by wget: it ended with 8: .*404"):
        download(lab_of(testbed), wget(origin.url("nothing")), timeout=60)
