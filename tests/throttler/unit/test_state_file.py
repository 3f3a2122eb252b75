# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for state files, from which root restores settings: they are used only if no other user can write them."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import open_lock, read_state, write_state
from mptcp_common.trust import THROTTLER_USER
from mptcp_throttler.kernel import sysctl
from mptcp_throttler.kernel.sysctl import PM_TYPE, STALE_LOSS_COUNT, OwnedSysctls
from mptcp_throttler.storage import Ledger


def test_written_state_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    assert read_state(path) is None
    write_state(path, "first, which is longer")
    write_state(path, "second")
    assert read_state(path) == "second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_state(path, None)
    write_state(path, None)
    assert read_state(path) is None
    assert not list(path.parent.iterdir())


def make_link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to("target")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


TAMPERINGS = [
    pytest.param(lambda path: path.chmod(0o620), id="writable by the group"),
    pytest.param(lambda path: path.chmod(0o602), id="writable by others"),
    pytest.param(lambda path: path.parent.chmod(0o777), id="directory writable by others"),
    pytest.param(make_link, id="a symbolic link"),
    pytest.param(lambda path: path.with_name("second").hardlink_to(path), id="a second name"),
    pytest.param(make_pipe, id="a pipe"),
    pytest.param(make_directory, id="a directory"),
]


@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_file_that_others_could_write_is_refused(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    path = tmp_path / "state"
    path.write_text("{}")
    path.chmod(0o600)
    tamper(path)
    for read_or_lock in (read_state, open_lock):
        with pytest.raises(KernelError, match=r"state|can be written by others"):
            read_or_lock(path)


def test_file_of_another_user_is_refused(tmp_path: Path) -> None:
    require_root()
    path = tmp_path / "state"
    path.write_text("{}")
    os.chown(path, 65534, -1)
    for read_or_lock in (read_state, open_lock):
        with pytest.raises(KernelError, match="belongs to user 65534"):
            read_or_lock(path)


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can change the owner of a file")


@pytest.fixture
def service_user(monkeypatch: pytest.MonkeyPatch) -> int:
    """The user ID of the throttler's user, whether this host has that user or not."""
    number = 64123

    def find_user(name: str) -> pwd.struct_passwd:
        if name != THROTTLER_USER:
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", number, number, "", "/", "/bin/false"))

    monkeypatch.setattr(pwd, "getpwnam", find_user)
    return number


def test_files_of_the_throttlers_user_are_accepted_and_keep_their_owner(tmp_path: Path, service_user: int) -> None:
    require_root()
    os.chown(tmp_path, service_user, service_user)
    path = tmp_path / "state"
    path.write_text("{}")
    path.chmod(0o600)
    os.chown(path, service_user, service_user)
    assert read_state(path) == "{}"
    write_state(path, "root's")
    os.close(open_lock(tmp_path / "lock"))
    assert {each.stat().st_uid for each in tmp_path.iterdir()} == {service_user}
    os.chown(path, service_user + 1, -1)
    with pytest.raises(
        KernelError, match=f"belongs to user {service_user + 1}; it must belong to root or mptcp-throttler"
    ):
        read_state(path)


@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_ledger_that_others_could_write_is_refused(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    path = tmp_path / "ledger"
    Ledger(path).close()
    tamper(path)
    for create in (True, False):
        with pytest.raises(KernelError, match=r"can be written by others|a regular file|second name|cannot be opened"):
            Ledger(path, create)


def test_ledger_of_another_user_is_refused(tmp_path: Path, service_user: int) -> None:
    require_root()
    path = tmp_path / "ledger"
    Ledger(path).close()
    os.chown(path, service_user, -1)
    Ledger(path).close()
    os.chown(path, service_user + 1, -1)
    with pytest.raises(KernelError, match=f"belongs to user {service_user + 1}"):
        Ledger(path)


def test_writing_follows_no_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "victim"
    target.write_text("keep")
    for name in ("state", "state.new"):
        (tmp_path / name).symlink_to(target)
    write_state(tmp_path / "state", "ours")
    assert target.read_text() == "keep"
    assert read_state(tmp_path / "state") == "ours"


def test_lock_file_is_created_and_never_truncated(tmp_path: Path) -> None:
    os.close(open_lock(tmp_path / "lock"))
    (tmp_path / "lock").write_text("content")
    os.close(open_lock(tmp_path / "lock"))
    assert (tmp_path / "lock").read_text() == "content"
    target = tmp_path / "victim"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(KernelError):
        open_lock(tmp_path / "link")
    assert not target.exists()


@pytest.fixture
def proc_sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that replaces /proc/sys."""
    directory = tmp_path / "root" / "proc" / "sys"
    (directory / "net/mptcp").mkdir(parents=True)
    (directory / "net/mptcp/pm_type").write_text("0\n")
    (directory / "net/mptcp/stale_loss_cnt").write_text("4\n")
    monkeypatch.setattr(sysctl, "_ROOT", directory)
    return directory


@pytest.mark.parametrize(
    "content",
    [
        {"../../outside": "1"},
        {"net/mptcp/pm_type": "1"},
        {"kernel.core_pattern": "1"},
        {PM_TYPE: "|/bin/sh"},
        {PM_TYPE: "1\n"},
        {PM_TYPE: 1},
        {PM_TYPE: ""},
        [PM_TYPE],
        "text",
        7,
    ],
    ids=[
        "path outside",
        "path instead of a name",
        "another sysctl",
        "command as value",
        "newline in the value",
        "number as value",
        "empty value",
        "list",
        "text",
        "number",
    ],
)
def test_invalid_sysctl_file_is_refused(tmp_path: Path, proc_sys: Path, content: object) -> None:
    outside = tmp_path / "root" / "outside"
    outside.write_text("0")
    path = tmp_path / "sysctls.json"
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    with pytest.raises(KernelError, match=r"sysctls\.json"):
        OwnedSysctls(tmp_path).restore()
    assert outside.read_text() == "0"
    assert (proc_sys / "net/mptcp/pm_type").read_text() == "0\n"


def test_sysctls_are_restored_by_a_successor(tmp_path: Path, proc_sys: Path) -> None:
    state = tmp_path / "state"
    OwnedSysctls(state).hold({PM_TYPE: "1", STALE_LOSS_COUNT: "1"})
    successor = OwnedSysctls(state)
    assert successor.original_values([PM_TYPE, STALE_LOSS_COUNT]) == {PM_TYPE: "0", STALE_LOSS_COUNT: "4"}
    successor.hold({PM_TYPE: "1"})
    assert (proc_sys / "net/mptcp/stale_loss_cnt").read_text() == "4"
    successor.restore()
    assert (proc_sys / "net/mptcp/pm_type").read_text() == "0"
    assert not list(state.iterdir())


def test_failed_change_leaves_the_sysctls_unchanged(tmp_path: Path, proc_sys: Path) -> None:
    (proc_sys / "net/mptcp/stale_loss_cnt").unlink()
    with pytest.raises(KernelError, match="stale_loss_cnt"):
        OwnedSysctls(tmp_path / "state").hold({PM_TYPE: "1", STALE_LOSS_COUNT: "1"})
    assert (proc_sys / "net/mptcp/pm_type").read_text() == "0\n"
