"""What is known of other processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mptcp_proxy.process import catches, children, pid_in


def test_processes(tmp_path: Path) -> None:
    pid_file = tmp_path / "squid.pid"
    own_name = Path("/proc/self/comm").read_text().strip()
    assert pid_in(pid_file, own_name) is None
    pid_file.write_text(f"{os.getpid()}\n")
    assert pid_in(pid_file, own_name) == os.getpid()
    # The number of a Squid that crashed, which another program has got since.
    assert pid_in(pid_file, "squid") is None
    for nonsense in ("", "x", "0", "-1", str(2**22 + 1)):
        pid_file.write_text(nonsense)
        assert pid_in(pid_file, own_name) is None
    assert children(2**22 + 1) == ()


def test_signals_that_a_process_catches() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not catches(os.getpid(), signal.SIGUSR2)
        assert not catches(2**22 + 1, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
