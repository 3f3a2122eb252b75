# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a checkout that other users may not enter, or whose path LD_PRELOAD cannot contain.

Home directories are often private. Squid's workers must still get the library.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import LIBRARIES, has_libraries, mptcp_listeners, worker_pids, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_proxy, wait_until
from mptcp_proxy import shim

pytestmark = pytest.mark.kernel


@pytest.mark.nightly(except_for=("blanks",))
@pytest.mark.parametrize("name", ["private", "with blanks: two"])
def test_library_in_an_unusable_path_is_copied(
    testbed: Testbed, require: Callable[..., None], tmp_path: Path, name: str
) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    checkout = tmp_path / name
    checkout.mkdir()
    # Everyone may enter the second checkout, so only its name is a problem.
    for directory in (checkout, *checkout.parents):
        if name != "private" and directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
    if name == "private":
        checkout.chmod(0o700)
    for library in LIBRARIES:
        Path(shutil.copy(shim.library(library), checkout)).chmod(0o755)
    proxy = start_proxy(node, write_configuration(node), env={shim.PACKAGED: str(checkout / shim.LISTEN)})
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "the worker listens", process=proxy.process)
    assert all(has_libraries(pid) for pid in worker_pids(proxy.process))
    assert "cannot be preloaded" not in proxy.process.output()
    assert {(proxy.state / library).stat().st_mode & 0o777 for library in LIBRARIES} == {0o755}
    assert proxy.process.stop(60) == 0
