# SPDX-License-Identifier: GPL-2.0-or-later
"""One ssh session with the agent at its other end. Every request and answer goes through it.

The OpenSSH client connects, so that the user's configuration, keys, agent, jump hosts and known hosts apply. The first
line that is sent contains the agent's folder, which is unpacked into a directory of mkdtemp(3). After that,
``agent.server`` answers. When this process ends, in any way, the session's input ends, and the agent undoes its
changes.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import shlex
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..agent import server
from ..agent.directories import parent_directory
from ..testbed.commands import TestbedError

PREFIX = "mptcp-bench-"
"""Prefix of the names of the directories on the hosts."""
CONNECTING = 30.0
"""Maximum seconds until the agent answers."""
ANSWERING = 30.0
"""Maximum seconds for an answer, beyond the time that the command may take."""
PYTHON = (3, 9)

_BEFORE = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none")
_AFTER = (
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    # Use an open master connection of the user if one exists, but do not open a new one, which would remain.
    *("-o", "ControlMaster=no"),
)
_START = """\
command -v python3 >/dev/null || { echo "there is no python3" >&2; exit 1; }
if [ "$(id -u)" = 0 ]; then set --; else sudo -n true || exit 1; set -- sudo -n; fi
exec "$@" python3 -I -c "$CODE" "$PARENT"
"""
"""Commands that start the agent. With -I, root imports nothing from the working directory, and PYTHON* variables are
ignored."""
_CODE = f"""\
import sys
if sys.version_info < {PYTHON}: sys.exit("python3 is too old; %d.%d or newer is needed" % {PYTHON})
import base64, io, os, shutil, tempfile, zipfile
from pathlib import Path
{inspect.getsource(parent_directory)}
folder = sys.stdin.buffer.readline()
if not folder.endswith(b"\\n"): sys.exit(0)
directory = tempfile.mkdtemp(prefix="{PREFIX}", dir=sys.argv[1] or parent_directory())
try:
    os.chmod(directory, 0o755)
    zipfile.ZipFile(io.BytesIO(base64.b64decode(folder))).extractall(directory)
except BaseException:  # a full disk
    shutil.rmtree(directory, ignore_errors=True)
    raise
os.chdir(directory)
sys.path.insert(0, directory)
from agent import server
server.main(directory)
"""
_RUN_MODULE = """\
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to a host."""

    destination: str
    """The destination for ssh(1): ``user@host``, or a Host of ssh_config(5)."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of ssh_config(5) by keyword."""
    directory: str | None = None
    """Parent of the run's directory on the host; None for the host's default, mostly /tmp."""


def packed_agent() -> bytes:
    """Return the agent's folder as a ZIP archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for module in sorted(files(server.__package__).iterdir(), key=lambda file: file.name):
            if module.name.endswith(".py"):
                packed.writestr(f"agent/{module.name}", module.read_bytes())
    return archive.getvalue()


def ssh_command(login: Login) -> list[str]:
    """Return the command that starts the agent on the host by ssh."""
    variables = {"CODE": _CODE, "PARENT": login.directory or ""}
    script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()) + _START
    options = [word for key, value in login.options.items() for word in ("-o", f"{key}={value}")]
    # Start sh, because the login shell may be a different shell. ssh uses an option's first value, so that the user's
    # values override the values in _AFTER, but not those in _BEFORE.
    remote = f"exec sh -c {shlex.quote(script)}"
    return ["ssh", *_BEFORE, *options, *_AFTER, "--", login.destination, remote]


def agent_command(directory: Path, module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``agent.MODULE`` from the folder that was unpacked into *directory* on a host.

    The command is isolated like the session itself: only the directory, which belongs to root, is added to Python's
    search path.
    """
    return ["python3", "-I", "-c", _RUN_MODULE, str(directory), f"agent.{module}", *arguments]


class Connection:
    """A session with the agent on one host. Threads may share it."""

    def __init__(self, name: str, login: Login) -> None:
        """Connect. Raises TestbedError, whose line has the reason and the remedy. *name* is for messages."""
        self.name, self.login = name, login
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed with the session
        try:
            self._ssh = subprocess.Popen(
                ssh_command(login),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                # Ctrl-C at the terminal must reach only this process, which ends the session in order.
                start_new_session=True,
            )
        except FileNotFoundError:
            self._said.close()
            raise TestbedError(f"{name}: connect to {login.destination}: the program ssh is not installed") from None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._answers: dict[int, dict[str, Any]] = {}
        self._exits: dict[int, int] = {}
        self._ready: dict[str, Any] | None = None
        self._left: list[str] | None = None
        self._lost = False
        self._count = 0
        self._reader = threading.Thread(target=self._read, name=f"ssh-{name}", daemon=True)
        self._reader.start()
        try:
            self._begin()
        except BaseException:
            self._ssh.kill()
            self._ssh.wait()
            raise

    def _begin(self) -> None:
        self._send(base64.b64encode(packed_agent()))
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None or self._lost, CONNECTING)
            ready = self._ready
        if ready is None:
            raise TestbedError(self._why_not())
        self.directory: str = ready["ready"]

    def _why_not(self) -> str:
        where = f"{self.name}: {self.login.destination}"
        try:
            self._ssh.wait(1)
        except subprocess.TimeoutExpired:
            return f"{where}: no answer within {CONNECTING:g} s{self._last_words()}"
        return f"{where}: cannot log in as root{self._last_words()}"

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        # Take the last line: banners come first, the error such as "Host key verification failed." last.
        return f": {lines[-1].rstrip('.')}" if lines else ""

    def _send(self, line: bytes) -> None:
        assert self._ssh.stdin is not None
        try:
            with self._sending:
                self._ssh.stdin.write(line + b"\n")
                self._ssh.stdin.flush()
        except OSError:
            with self._changed:
                # The reader notices the lost connection too, but perhaps only after a thread has begun to wait for an
                # answer.
                self._changed.wait_for(lambda: self._lost, 5)

    def _read(self) -> None:
        assert self._ssh.stdout is not None
        for line in self._ssh.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue  #  # a login shell's greeting
            if not isinstance(answer, dict):
                continue
            with self._changed:
                if "id" in answer:
                    self._answers[answer["id"]] = answer
                elif "ended" in answer:
                    self._exits[answer["ended"]] = answer["code"]
                elif "ready" in answer:
                    self._ready = answer
                elif "left" in answer:
                    self._left = answer["left"]
                self._changed.notify_all()
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    @property
    def lost(self) -> bool:
        return self._lost

    def ask(self, do: str, attempt: str, *, timeout: float = 0.0, **fields: Any) -> dict[str, Any]:
        """Request the agent to *do* something that may take *timeout* seconds, and return its answer.

        Raises TestbedError if the connection is lost, or if the request fails; in that case, the text has *attempt* and
        the agent's message.
        """
        with self._changed:
            self._count += 1
            number = self._count
        self._send(json.dumps({"id": number, "do": do, "timeout": timeout, **fields}).encode())
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self._lost, timeout + ANSWERING)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise TestbedError(self._no_answer(timeout + ANSWERING))
        if "error" in answer:
            raise TestbedError(f"[{self.name}] {attempt}: {answer['error']}")
        return answer

    def _no_answer(self, waited: float) -> str:
        where = f"{self.name}: {self.login.destination}"
        if self._lost:
            return f"{where}: the connection was lost{self._last_words()}"
        return f"{where}: no answer within {waited:g} s"

    def exit_code(self, pid: int, timeout: float = 0.0) -> int | None:
        """Return *pid*'s exit code; None if it runs after *timeout* s. Raises TestbedError without a connection."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exits or self._lost, timeout)
            if pid in self._exits:
                return self._exits[pid]
        if self._lost:
            raise TestbedError(self._no_answer(0))
        return None

    def close(self, *, failing: bool = False) -> None:
        """End the session. Raises TestbedError if the host did not undo, or may not have undone, its changes.

        If the connection was lost before and the driver is *failing*, this is not reported, because the driver's
        own error is more important.
        """
        assert self._ssh.stdin is not None
        was_lost = self._lost
        with suppress(OSError):
            self._ssh.stdin.close()
        limit = server.GRACE + server.UNDOING + ANSWERING
        deadline = time.monotonic() + limit
        self._reader.join(limit)
        try:
            self._ssh.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        said = self._last_words()
        self._said.close()
        where = f"{self.name}: {self.login.destination}"
        if self._left:
            raise TestbedError(f"{where}: not undone: {'; '.join(self._left)}")
        if self._left is None and not (was_lost and failing):
            raise TestbedError(f"{where}: nothing says that all was undone there{said}")
