# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for failures in laboratory and experiments: programs end, the first error is raised, files are reported."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_bench.wire.capture import capture_segments
from mptcp_lab.remote import ssh
from mptcp_lab.remote.connection import HostRole
from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError, ownership
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import start_origin, start_proxy, start_sink, start_throttler

MESSAGE = "the program has ended"


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError(MESSAGE)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TestbedError("the proxy has ended"), None], ids=repr)
@pytest.mark.parametrize(
    "scope", [ssh.SshHost(HostRole("proxy", "proxy.test")), Testbed(TWO_PATHS)], ids=["ssh", "testbed"]
)
def test_first_error_is_raised_if_undoing_fails_too(
    monkeypatch: pytest.MonkeyPatch, scope: AbstractContextManager[Any], error: BaseException | None
) -> None:
    """Defect: an interrupt became another error, after which the next experiment ran, so that Ctrl-C did not work."""
    monkeypatch.setattr(ssh, "Connection", lambda *_: SimpleNamespace(directory=Path(), close=failing))
    monkeypatch.setattr(Testbed, "_build", lambda built: built.scope.callback(failing))

    def use() -> None:
        with scope:
            if error is not None:
                error.__notes__ = []
                raise error

    with pytest.raises(type(error or TestbedError())) as raised:
        use()
    if error is None:
        assert str(raised.value) == MESSAGE
    else:
        assert raised.value is error
        assert error.__notes__ == [f"undoing failed as well: {MESSAGE}"]


def host(ends: list[str], run: Callable[[Sequence[str]], str]) -> Any:
    """Return a fake host whose programs fail at once. *ends* records how they are ended; *run* runs commands."""
    ways = {name: partial(ends.append, name) for name in ("stop", "kill", "kill_tree")}
    program = SimpleNamespace(
        name="fake", running=False, returncode=3, tail=str, output=failing, wait=failing, pid=0, **ways
    )
    return SimpleNamespace(
        name="proxy",
        directory=Path("/fake"),
        run=lambda argv, **_: SimpleNamespace(returncode=0, stdout=run(argv)),
        popen=lambda argv, **_: program,
        agent=lambda module, *arguments: [module, *arguments],
        address=lambda device: "192.0.2.1",
        program=str,
        provide=Path,
        write=lambda name, text: Path("/fake") / name,
        at_end=lambda callback: None,
    )


def capture_packets(host: Any) -> None:
    with capture_segments(host, ["wan0"], "tcp"):
        pass


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (lambda host: start_origin(host, {}), "stop"),
        (start_sink, "stop"),
        (start_proxy, "kill_tree"),
        # A killed throttler would leave its caps behind.
        (start_throttler, "stop"),
        (capture_packets, "stop"),
    ],
    ids=["origin", "sink", "proxy", "throttler", "capture"],
)
def test_program_that_fails_is_ended(
    start: Callable[[Any], object], end: str, interrupt: KeyboardInterrupt | None
) -> None:
    """Defect: a throttler whose start had failed kept running, so that later runs without a throttler were capped.

    Tcpdump kept running after a failure, too.
    """

    def run(argv: Sequence[str]) -> str:
        if argv[0] in ("ss", "mptcp-throttler"):
            raise interrupt or TestbedError("no answer")
        return "{}"

    ends: list[str] = []
    with pytest.raises((TestbedError, KeyboardInterrupt)):
        start(host(ends, run))
    assert ends == [end]


def test_proxy_is_ended_if_its_kernel_lacks_the_congestion_control() -> None:
    """Defect: the proxy used the host's own congestion control, but the result named the requested one."""
    ends: list[str] = []
    with pytest.raises(TestbedError, match="no congestion control bbr; it has reno"):
        start_proxy(host(ends, lambda argv: "reno cubic\n"), control="bbr")
    assert ends == ["kill_tree"]


def test_error_of_a_later_reading_ends_the_recording_with_this_error() -> None:
    failed, readings, node = threading.Event(), [{"eth0": 0}], host([], failing)

    def read() -> dict[str, int]:
        if readings:
            return readings.pop()
        failed.set()
        raise KeyError("eth0")

    with pytest.raises(KeyError, match="eth0"), Recorder(node, ["eth0"], interval=0.001, read=read):
        assert failed.wait(30)


def test_directory_that_cannot_be_removed_is_named_and_stays_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attribute in ("RUN_DIRECTORY", "NAMESPACES"):
        (tmp_path / attribute).mkdir()
        monkeypatch.setattr(ownership, attribute, tmp_path / attribute)
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    claiming = ownership.claimed_run()
    claimed = claiming.__enter__()
    (claimed.directory / "logs").mkdir()
    (claimed.directory / "logs" / "stuck").touch()
    name = f"testbed {claimed.id} of process {os.getpid()}"

    def refusing(remove: Callable[..., None], path: Any, **options: Any) -> None:
        """Fail like the removal of an immutable file, see chattr(1), for root too."""
        if Path(path).name == "stuck":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), os.fspath(path))
        remove(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", partial(refusing, os.unlink))
        patched.setattr(os, "rmdir", partial(refusing, os.rmdir))
        message = r"/logs/stuck: Operation not permitted; mptcp-bench cleanup tries again$"
        with pytest.raises(TestbedError, match=message):
            claiming.__exit__(None, None, None)
        owned = [(run.id, run.alive, run.directory) for run in ownership.runs()]
        assert owned == [(claimed.id, False, claimed.directory)]
        failure = f"{name}: remove {claimed.directory}/logs/stuck: Operation not permitted"
        assert ownership.remove_stale() == ([], [failure])
    assert ownership.remove_stale() == ([f"removed {name}"], [])
    assert not claimed.directory.exists()
    assert ownership.runs() == ()
