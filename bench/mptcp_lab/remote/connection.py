# SPDX-License-Identifier: GPL-2.0-or-later
"""One ssh session with the agent on a host, which carries all requests and answers.

The OpenSSH client connects, so that the user's configuration, keys, jump hosts and known hosts apply. The first line
that is sent contains the agent's folder, which is unpacked into a directory of mkdtemp(3). After that, ``agent.server``
answers. When this process ends, in any way, the agent's input ends, and the agent undoes all changes on the host.
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
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from ..agent import server
from ..agent.files import parent_directory
from ..testbed.commands import TestbedError

PREFIX = "mptcp-bench-"
"""Prefix of the names of the directories on the hosts."""
CONNECT_SECONDS = 30.0
"""Maximum seconds until the agent answers."""
ANSWER_SECONDS = 30.0
"""Maximum seconds for an answer, beyond the time that the command may take."""
MIN_PYTHON = (3, 9)
"""Oldest version of Python that the agent supports."""

_FIRST_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none")
_LAST_OPTIONS = (
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    # Use an open master connection of the user if one exists, but do not open a new one, which would remain.
    *("-o", "ControlMaster=no"),
)
_START = """\
command -v python3 >/dev/null || { echo "there is no python3" >&2; exit 1; }
if [ "$(id -u)" = 0 ]; then set --; else sudo -n true || exit 1; set -- sudo -n; fi
exec "$@" python3 -I -c "$CODE" "$PARENT"
"""
"""Commands that start the agent. With -I, Python ignores the working directory and PYTHON* variables."""
_CODE = f"""\
import sys
if sys.version_info < {MIN_PYTHON}: sys.exit("python3 is too old; %d.%d or newer is needed" % {MIN_PYTHON})
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
class HostRole:
    """One of the three hosts, and how to reach it."""

    name: str
    """The role of the host: client, proxy or origin."""
    destination: str
    """The destination for ssh(1): ``user@host``, or a Host of ssh_config(5)."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of ssh_config(5) by keyword."""
    directory: str | None = None
    """Parent of the run's directory on the host; None for the host's default, mostly /tmp."""
    devices: tuple[str, ...] = ()
    """The interfaces at which other hosts reach this host."""
    addresses: Mapping[int, str] = field(default_factory=dict)
    """Addresses by family, if they differ from those of the first device."""
    commands: str | None = None
    """The directory with our commands on the host; None if its PATH contains this directory."""

    def __str__(self) -> str:
        return f"{self.name}: {self.destination}"


def packed_agent() -> bytes:
    """Return the agent's folder as a ZIP archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for module in sorted(files(server.__package__).iterdir(), key=lambda file: file.name):
            if module.name.endswith(".py"):
                packed.writestr(f"agent/{module.name}", module.read_bytes())
    return archive.getvalue()


def ssh_command(host: HostRole) -> list[str]:
    """Return the command that starts the agent on the host by ssh."""
    variables = {"CODE": _CODE, "PARENT": host.directory or ""}
    script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()) + _START
    options = [word for key, value in host.options.items() for word in ("-o", f"{key}={value}")]
    # Start sh, because the login shell may be a different shell. If an option occurs twice, ssh uses the first value.
    remote = f"exec sh -c {shlex.quote(script)}"
    return ["ssh", *_FIRST_OPTIONS, *options, *_LAST_OPTIONS, "--", host.destination, remote]


def agent_command(directory: Path, module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``agent.MODULE`` from the folder that was unpacked into *directory* on a host.

    Only the directory, which belongs to root, is added to Python's search path.
    """
    return ["python3", "-I", "-c", _RUN_MODULE, str(directory), f"agent.{module}", *arguments]


class Connection:
    """A session with the agent on one host. Threads may share it."""

    def __init__(self, host: HostRole) -> None:
        """Connect. Raises TestbedError."""
        self._host = host
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the session
        try:
            streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
            # Ctrl-C at the terminal must reach only this process, which ends the session in order.
            self._ssh = subprocess.Popen(ssh_command(host), **streams, start_new_session=True)
        except FileNotFoundError:
            self._errors.close()
            raise TestbedError(f"{host}: the program ssh is not installed") from None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._numbers = count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._exit_codes: dict[int, int] = {}
        self._directory: str | None = None
        self._failures: list[str] | None = None
        self.lost = False
        self._reader = threading.Thread(target=self._read, name=f"ssh-{host.name}", daemon=True)
        self._reader.start()
        self._send(base64.b64encode(packed_agent()))
        with self._changed:
            self._changed.wait_for(lambda: self._directory is not None or self.lost, CONNECT_SECONDS)
        if self._directory is None:
            reason = "cannot log in as root" if self.lost else f"no answer within {CONNECT_SECONDS:g} s"
            with suppress(subprocess.TimeoutExpired):
                self._ssh.wait(1)
            self._ssh.kill()
            self._ssh.wait()
            raise TestbedError(f"{self._host}: {reason}{self._last_error()}")
        self.directory: Path = Path(self._directory)

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        # Take the last line: banners come first, the error such as "Host key verification failed." last.
        return "".join([f": {line.strip().rstrip('.')}" for line in lines if line.strip()][-1:])

    def _send(self, line: bytes) -> None:
        assert self._ssh.stdin is not None
        # If the connection is lost, the reader notices that.
        with self._sending, suppress(OSError):
            self._ssh.stdin.write(line + b"\n")
            self._ssh.stdin.flush()

    def _read(self) -> None:
        assert self._ssh.stdout is not None
        for line in self._ssh.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # a login shell's greeting
            if not isinstance(answer, dict):
                continue
            with self._changed:
                if "id" in answer:
                    self._answers[answer["id"]] = answer
                elif "ended" in answer:
                    self._exit_codes[answer["ended"]] = answer["code"]
                self._directory = answer.get("ready", self._directory)
                self._failures = answer.get("failures", self._failures)
                self._changed.notify_all()
        with self._changed:
            self.lost = True
            self._changed.notify_all()

    def request(self, do: str, attempt: str, *, timeout: float = 0.0, **fields: Any) -> dict[str, Any]:
        """Request the agent to *do* an action that may take *timeout* seconds, and return its answer.

        Raises TestbedError if the connection is lost, or if the request fails: then the text contains *attempt*.
        """
        number = next(self._numbers)
        self._send(json.dumps({"id": number, "do": do, "timeout": timeout, **fields}).encode())
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self.lost, timeout + ANSWER_SECONDS)
            answer = self._answers.pop(number, None)
        if answer is None and not self.lost:
            raise TestbedError(f"{self._host}: no answer within {timeout + ANSWER_SECONDS:g} s")
        if answer is None:
            raise self._loss()
        if "error" in answer:
            raise TestbedError(f"[{self._host.name}] {attempt}: {answer['error']}")
        return answer

    def _loss(self) -> TestbedError:
        return TestbedError(f"{self._host}: the connection was lost{self._last_error()}")

    def exit_code(self, pid: int, timeout: float) -> int | None:
        """Return *pid*'s exit code; None if it runs after *timeout* s. Raises TestbedError without a connection."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exit_codes or self.lost, timeout)
            if self.lost and pid not in self._exit_codes:
                raise self._loss()
            return self._exit_codes.get(pid)

    def close(self, *, failing: bool = False) -> None:
        """End the session. Raises TestbedError unless the host confirms that it has undone all changes.

        A lost connection is not reported if the driver is *failing* with its own error.
        """
        assert self._ssh.stdin is not None
        is_reported = not (self.lost and failing)
        with suppress(OSError):
            self._ssh.stdin.close()
        self._reader.join(server.GRACE + server.UNDO_SECONDS + ANSWER_SECONDS)
        try:
            self._ssh.wait(1)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        reason = self._last_error()
        self._errors.close()
        if self._failures:
            raise TestbedError(f"{self._host}: not undone: {'; '.join(self._failures)}")
        if self._failures is None and is_reported:
            raise TestbedError(f"{self._host}: the host has not confirmed that all changes were undone{reason}")
