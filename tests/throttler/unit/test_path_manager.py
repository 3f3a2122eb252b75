# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the user-space path manager: it starts the keeper first, makes all changes or none, and restores all."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel import sysctl
from mptcp_throttler.kernel.access import REAL
from mptcp_throttler.kernel.mptcp_pm import family
from mptcp_throttler.kernel.sysctl import PM_TYPE
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.runtime import cleanup
from mptcp_throttler.runtime import path_manager as path_manager_module
from mptcp_throttler.runtime.path_manager import UserspacePathManager

PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
"""
STANDBY = "rules: [{name: s, steer: {mode: active-standby, active: wifi, standby: ethernet}}]\n"
STEERED = load_policy(PATHS + STANDBY, "p")
DRY_RUN = load_policy(PATHS + "dry_run: true\n" + STANDBY, "p")
LOAD_BALANCED = load_policy(
    PATHS + "rules: [{name: b, steer: {mode: load-balancing, weights: {ethernet: 50, wifi: 50}}}]\n", "p"
)


class FakeKeeper:
    """A keeper that records its requests, each with the current value of ``pm_type``."""

    pid = 1

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self.alive = True
        self.refuses = False

    async def hold(self, put_back: Mapping[str, str]) -> None:
        if self.refuses:
            raise KernelError("the keeper does not answer")
        self._host.log.append(f"hold {put_back[PM_TYPE]} while {self._host.pm_type}")

    async def release(self) -> None:
        self._host.log.append(f"release while {self._host.pm_type}")
        self.alive = False

    async def end(self) -> None:
        self._host.log.append("end")

    def close(self) -> None:
        self.alive = False


class FakeHost:
    """The two sysctls in a directory, and the keepers that were started."""

    def __init__(self, directory: Path) -> None:
        self.root, self.state = directory / "sys", directory / "state"
        self._file("pm_type").parent.mkdir(parents=True)
        self._file("pm_type").write_text("0")
        self._file("stale_loss_cnt").write_text("4")
        self.log: list[str] = []
        self.keepers: list[FakeKeeper] = []
        self.running_keeper: FakeKeeper | None = None
        self.keeper_can_start = True
        self.started = asyncio.Event()

    def _file(self, name: str) -> Path:
        return self.root / "net/mptcp" / name

    @property
    def pm_type(self) -> str:
        return self._file("pm_type").read_text()

    def remove_a_sysctl(self) -> None:
        self._file("stale_loss_cnt").unlink()

    async def keeper(self, _: Path) -> FakeKeeper:
        if self.running_keeper is not None:
            return self.running_keeper
        if not self.keeper_can_start:
            raise KernelError("start the keeper of the path manager: no such file")
        self.log.append(f"start while {self.pm_type}")
        self.keepers.append(FakeKeeper(self))
        self.started.set()
        return self.keepers[-1]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    fake = FakeHost(tmp_path)
    monkeypatch.setattr(sysctl, "_ROOT", fake.root)
    return fake


def run(host: FakeHost, script: Callable[[UserspacePathManager], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        kernel = replace(REAL, keeper=host.keeper)  # type: ignore[arg-type]
        await script(UserspacePathManager(host.state, kernel))

    asyncio.run(main())


def test_keeper_holds_the_old_value_until_the_sysctl_is_restored(host: FakeHost) -> None:
    async def script(manager: UserspacePathManager) -> None:
        await manager.prepare(STEERED)
        assert host.pm_type == "1"
        await manager.commit(STEERED)
        await manager.close()

    run(host, script)
    assert host.log == ["start while 0", "hold 0 while 0", "release while 0"]
    assert not list(host.state.iterdir())


def test_flags_file_exists_from_the_first_steering_policy_to_the_stop(host: FakeHost) -> None:
    note = host.state / family.FLAGS_NOTE

    async def script(manager: UserspacePathManager) -> None:
        await manager.prepare(LOAD_BALANCED)
        await manager.commit(LOAD_BALANCED)
        assert not note.exists()
        await manager.prepare(STEERED)
        assert note.exists(), "the file was not written before a flag is set"
        await manager.commit(STEERED)
        assert not manager.flags_note.take_over()
        await manager.prepare(LOAD_BALANCED)
        await manager.commit(LOAD_BALANCED)
        assert note.exists(), "the file was removed before the flags were reset"
        await manager.close()
        assert not note.exists()

    run(host, script)


@pytest.mark.parametrize("file_exists", [True, False])
def test_cleanup_resets_flags_if_the_file_exists_and_removes_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, file_exists: bool
) -> None:
    """Defect: cleanup removed only the file, so no later start reset the flags."""
    requests: list[tuple[int, bool]] = []

    class Commands:
        def set_backup(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
            requests.append((token, backup))
            if token == 3:
                error = KernelError("under the kernel's path manager")
                error.errno = errno.EINVAL
                raise error

        def close(self) -> None:
            pass

    listed = [SimpleNamespace(token=token, four_tuple=None, made_backup=token != 2) for token in (1, 2, 3)]
    sockets: Any = SimpleNamespace(batches=lambda: [listed], close=lambda: None)
    fakes = replace(REAL, subflow_commands=Commands, sockets=lambda _: sockets)  # type: ignore[arg-type]
    monkeypatch.setattr(cleanup, "REAL", fakes)
    if file_exists:
        family.FlagsNote(host.state).write()
    settings: Any = SimpleNamespace(state_directory=host.state)
    report = asyncio.run(cleanup._backup_flags(settings))
    assert report == ("sockets: the backup flag of 1 subflow cleared" if file_exists else "")
    assert requests == ([(1, False), (3, False)] if file_exists else [])
    assert not (host.state / family.FLAGS_NOTE).exists()


def test_flags_file_stays_if_flags_cannot_be_reset(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> None:
        raise KernelError("no list")

    family.FlagsNote(host.state).write()
    sockets: Any = SimpleNamespace(batches=batches, close=lambda: None)
    monkeypatch.setattr(cleanup, "REAL", replace(REAL, sockets=lambda _: sockets))
    settings: Any = SimpleNamespace(state_directory=host.state)
    with pytest.raises(KernelError, match="no list"):
        asyncio.run(cleanup._backup_flags(settings))
    assert list(host.state.iterdir())


def test_reload_to_another_steering_policy_keeps_the_keeper(host: FakeHost) -> None:
    async def script(manager: UserspacePathManager) -> None:
        for _ in range(3):
            await manager.prepare(STEERED)
            await manager.commit(STEERED)
        assert len(host.keepers) == 1
        await manager.prepare(LOAD_BALANCED)
        assert host.pm_type == "1"
        await manager.commit(LOAD_BALANCED)
        assert host.pm_type == "0"
        assert not host.keepers[0].alive

    run(host, script)


@pytest.mark.parametrize("policy", [LOAD_BALANCED, DRY_RUN.applied], ids=["load balancing", "dry run"])
def test_other_policies_change_nothing(host: FakeHost, policy: Any) -> None:
    async def script(manager: UserspacePathManager) -> None:
        await manager.prepare(policy)
        await manager.commit(policy)
        await manager.close()

    run(host, script)
    assert host.log == []
    assert not host.state.exists()


def test_prepared_changes_are_rolled_back_unless_the_old_policy_needs_them(host: FakeHost) -> None:
    async def script(manager: UserspacePathManager) -> None:
        await manager.commit(LOAD_BALANCED)
        await manager.prepare(STEERED)
        await manager.roll_back(LOAD_BALANCED)
        assert host.pm_type == "0"
        assert not host.keepers[0].alive
        await manager.prepare(STEERED)
        await manager.commit(STEERED)
        for policy in (STEERED, LOAD_BALANCED):
            await manager.prepare(policy)
            await manager.roll_back(STEERED)
            assert host.pm_type == "1"
            assert host.keepers[1].alive

    run(host, script)


def _keeper_cannot_start(host: FakeHost) -> None:
    host.keeper_can_start = False


def _keeper_does_not_answer(host: FakeHost) -> None:
    host.running_keeper = FakeKeeper(host)
    host.running_keeper.refuses = True


@pytest.mark.parametrize("break_host", [_keeper_cannot_start, _keeper_does_not_answer, FakeHost.remove_a_sysctl])
def test_failed_preparation_changes_nothing(host: FakeHost, break_host: Callable[[FakeHost], None]) -> None:
    break_host(host)

    async def script(manager: UserspacePathManager) -> None:
        with pytest.raises(KernelError):
            await manager.prepare(STEERED)
        await manager.roll_back(LOAD_BALANCED)

    run(host, script)
    assert host.pm_type == "0"
    assert not [each for each in host.keepers if each.alive]
    assert not host.state.exists() or not list(host.state.iterdir())


def test_successor_uses_the_keeper_of_a_killed_throttler(host: FakeHost) -> None:
    """The keeper may be running or killed. In both cases the values to restore are known."""

    async def prepare_and_commit(manager: UserspacePathManager) -> None:
        await manager.prepare(STEERED)
        await manager.commit(STEERED)

    run(host, prepare_and_commit)
    host.running_keeper = host.keepers[0]
    host.log.clear()

    async def successor(manager: UserspacePathManager) -> None:
        await manager.prepare(STEERED)
        await manager.commit(STEERED)
        assert host.log == ["hold 0 while 1"]

    run(host, successor)
    host.running_keeper = None

    async def other_policy(manager: UserspacePathManager) -> None:
        await manager.prepare(LOAD_BALANCED)
        await manager.commit(LOAD_BALANCED)
        assert host.pm_type == "0"

    run(host, other_policy)


def test_killed_keeper_is_replaced(host: FakeHost) -> None:
    async def script(manager: UserspacePathManager) -> None:
        await manager.prepare(STEERED)
        await manager.commit(STEERED)
        host.keeper_can_start = False
        host.keepers[0].alive = False
        with pytest.raises(KernelError, match="start the keeper"):
            await manager.verify()
        assert manager.repairs == 0
        host.keeper_can_start = True
        await manager.verify()
        assert host.log[-2:] == ["start while 1", "hold 0 while 1"]
        assert manager.repairs == 1

    run(host, script)


def test_stale_loss_count_is_lower_than_the_kernels_default() -> None:
    """In mptcp_pm_subflow_chk_stale(), the other path's count, which is 1, must be below max(value - 1, 1)."""
    value = int(path_manager_module.SYSCTLS[sysctl.STALE_LOSS_COUNT])
    assert max(value - 1, 1) > 1
    assert value < 4, "the value is not below the kernel's default"
