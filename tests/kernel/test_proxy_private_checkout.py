"""A checkout below a directory that others may not enter, as home directories are: workers still get the library."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import configuration, has_library, mptcp_listeners, workers

from mptcp_bench.testbed import Testbed
from mptcp_bench.testbed.services import start_proxy, wait_until
from mptcp_proxy import shim

pytestmark = pytest.mark.kernel


def test_a_library_that_squids_user_cannot_reach_is_copied(
    testbed: Testbed, require: Callable[..., None], tmp_path: Path
) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    library = Path(shutil.copy(shim.library(), private))
    proxy = start_proxy(node, configuration(node), env={shim.PACKAGED: str(library)})
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "the worker listens", process=proxy.process)
    assert all(has_library(pid) for pid in workers(proxy.process))
    assert "cannot be preloaded" not in proxy.process.output()
    assert (proxy.state / library.name).stat().st_mode & 0o777 == 0o755
    assert proxy.process.stop(10) == 0
