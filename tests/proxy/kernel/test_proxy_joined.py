# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Squid's writes of 4 KB to a client are joined before they reach the kernel (joined_writes.c).

test_proxy_shim_joined.py tests the details with a small program. This module tests that the real Squid writes as the
library expects.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import fetch, worker_pids, write_configuration

from mptcp_common import library_counters
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_origin, start_proxy
from mptcp_proxy.squid import find_squid

pytestmark = pytest.mark.kernel
SIZE = 8_000_000


def bytes_written(pid: int) -> int:
    """Return the bytes that *pid* has passed to write(2), not to send(2); see proc_pid_io(5)."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


@pytest.mark.nightly(except_for=("fair",))
@pytest.mark.parametrize(
    ("turns", "min_share", "max_share"), [("fair", 0, 0.1), ("kernel", 1, 1.1)], ids=["fair", "kernel"]
)
def test_nearly_all_writes_of_a_download_are_joined(
    testbed: Testbed, require: Callable[..., None], turns: str, min_share: float, max_share: float
) -> None:
    require("squid", "apache2", "gcc")
    squid = find_squid()
    if squid and squid.has_mptcp_option:
        pytest.skip("this Squid itself writes large pieces")
    host = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file": SIZE})
    proxy = start_proxy(host, write_configuration(host, "workers 1"), arguments=("--turns", turns))
    [worker] = worker_pids(proxy.process)
    before = bytes_written(worker)
    answer = fetch(testbed["client"], origin.url("file"), proxy.url(), mptcp=True)
    assert (answer.status, answer.size) == (200, SIZE)
    assert min_share <= (bytes_written(worker) - before) / SIZE <= max_share
    counters_file = proxy.state / "counters"
    assert (counters_file.stat().st_uid, counters_file.stat().st_mode & 0o777) == (0, 0o644)
    counters = library_counters.read(counters_file)
    # Squid now runs as another user, but its processes mapped the file while they ran as root.
    assert all(bool(counters[name]) == (turns == "fair") for name in ("turns", "joined_writes", "promised_writes"))
    assert (turns == "fair") == (counters["joined_bytes"] > 0.8 * SIZE)
