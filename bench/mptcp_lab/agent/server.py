# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent on a host that is reached by ssh. While it runs, it owns the run's programs, changes and files.

The driver talks to one agent on each host. It writes requests to the agent's standard input and reads answers from its
standard output; each is a line with a JSON object. When the input ends, the driver has finished, was killed or lost
its network. The agent then ends the programs and all processes that they started (SIGTERM, SIGKILL after ``GRACE``
seconds), undoes the changes, the last change first, and removes the directory. So nothing of a run outlives its driver.
The last answer of the agent lists what it could not undo or remove.

Each request has ``do`` and ``id``. The answer has the same ``id``, and ``error`` if the request failed:

=========  ====================================  ==========================================================
``do``     fields                                answer
=========  ====================================  ==========================================================
run        argv, input, timeout                  code, out, err when it has ended
start      argv, env, mounts, log                pid; later a line ``{"ended": pid, "code": …}``
signal     pid, number, tree                     nothing more
write      path, text                            nothing more
read       path, offset, size                    data (base64), at most size bytes
change     argv, undo, timeout                   change, its number
undo       change, timeout                       nothing more
=========  ====================================  ==========================================================
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .directories import removed
from .processes import MountError, descendants, kill_tree, with_mounts

GRACE = 10.0
"""Seconds that the programs may take to end after SIGTERM."""
BEAT = 30.0
"""Seconds between two empty lines to the driver. On a dead connection they make TCP time out, tcp(7), which ends
the connection."""
UNDOING = 60.0
"""Seconds that undoing one change may take after the driver has ended."""
PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2), from linux/prctl.h."""


class Refused(Exception):
    """A request failed; the text is for the driver."""


def run(argv: list[str], text: str | None, timeout: float) -> tuple[int, str, str]:
    """Run a command until it ends. After *timeout* seconds, kill it and raise :class:`Refused`."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise Refused(_not_started(argv, error)) from None
    try:
        out, err = child.communicate(None if text is None else text.encode(), timeout)
    except subprocess.TimeoutExpired:
        kill_tree(child.pid)
        out, err = child.communicate()
        raise Refused(f"no end after {timeout:g} s{_end_of(out + err)}") from None
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def undo(argv: list[str], timeout: float) -> None:
    """Run a command that undoes a change. Raises :class:`Refused` if it fails."""
    code, out, err = run(argv, None, timeout)
    if code != 0:
        raise Refused(_exit(code, out, err))


def _not_started(argv: list[str], error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"the program {argv[0]!r} is not installed"
    return f"{argv[0]}: {error.strerror}"


def _exit(code: int, out: str, err: str) -> str:
    return f"exit code {code}{_end_of((out + err).encode())}"


def _end_of(output: bytes) -> str:
    return "".join(f"\n    {line}" for line in output.decode(errors="replace").splitlines()[-12:])


class Server:
    """Runs programs and makes changes as the driver requests, and cleans up at the end."""

    def __init__(self, directory: Path, answers: IO[bytes]) -> None:
        self.directory = directory
        self._answers = answers
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._under_way: list[threading.Thread] = []
        """Threads that serve slow requests."""
        self._changes: dict[int, list[str]] = {}
        self._count = 0

    def answer(self, line: dict[str, Any]) -> None:
        with self._writing, suppress(OSError):  #  # the driver may be gone
            self._answers.write(json.dumps(line).encode() + b"\n")
            self._answers.flush()

    def serve(self, requests: IO[bytes]) -> None:
        """Serve *requests* until the input ends."""
        for line in requests:
            request = json.loads(line)
            if request["do"] in ("run", "change", "undo"):
                # Use a thread, because these requests are slow, and others must not wait for them.
                thread = threading.Thread(target=self._respond, args=(request,), daemon=True)
                thread.start()
                self._under_way = [each for each in (*self._under_way, thread) if each.is_alive()]
            else:
                self._respond(request)

    def _respond(self, request: dict[str, Any]) -> None:
        try:
            found = getattr(self, f"_do_{request['do']}")(request)
        except Refused as reason:
            found = {"error": str(reason)}
        except OSError as error:
            found = {"error": f"{error.filename or request['do']}: {error.strerror}"}
        except Exception as error:
            # Answer any error, so that the driver does not wait forever.
            found = {"error": f"{type(error).__name__}: {error}"}
        self.answer({"id": request["id"], **found})

    def _do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        code, out, err = run(request["argv"], request["input"], request["timeout"])
        return {"code": code, "out": out, "err": err}

    def _do_start(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            argv = with_mounts(request["argv"], request["mounts"])
        except MountError as error:
            raise Refused(str(error)) from None
        with open(request["log"], "ab") as log:
            try:
                program = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **request["env"]},
                    start_new_session=True,
                )
            except OSError as error:
                raise Refused(_not_started(argv, error)) from None
        self._programs[program.pid] = program
        threading.Thread(target=self._wait, args=(program,), daemon=True).start()
        return {"pid": program.pid}

    def _wait(self, program: subprocess.Popen[bytes]) -> None:
        self.answer({"ended": program.pid, "code": program.wait()})

    def _do_signal(self, request: dict[str, Any]) -> dict[str, Any]:
        program = self._programs[request["pid"]]
        below = descendants(program.pid) if request["tree"] else ()
        program.send_signal(request["number"])
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, request["number"])
        return {}

    def _do_write(self, request: dict[str, Any]) -> dict[str, Any]:
        path = Path(request["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(request["text"])
        return {}

    def _do_read(self, request: dict[str, Any]) -> dict[str, Any]:
        with open(request["path"], "rb") as file:
            file.seek(request["offset"])
            return {"data": base64.b64encode(file.read(request["size"])).decode()}

    def _do_change(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._changing:
            self._count += 1
            number = self._count
            # Record the undo command before the change, because undoing a change that was not made is harmless.
            self._changes[number] = request["undo"]
            code, out, err = run(request["argv"], None, request["timeout"])
            if code != 0:
                with suppress(Refused):
                    self._undo(number, request["timeout"])
                raise Refused(_exit(code, out, err))
            return {"change": number}

    def _do_undo(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._changing:
            self._undo(request["change"], request["timeout"])
        return {}

    def _undo(self, number: int, timeout: float) -> None:
        undo(self._changes[number], timeout)
        # Delete the record only now. If undoing the change has failed, it is tried again at the end.
        del self._changes[number]

    def end(self) -> list[str]:
        """End the programs, undo the changes and remove the directory. Return what failed."""
        left = []
        for program in self._programs.values():
            if program.poll() is None:
                program.terminate()
        deadline = time.monotonic() + GRACE
        while any(p.poll() is None for p in self._programs.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._kill_offspring()
        with self._changing:
            for number in sorted(self._changes, reverse=True):
                argv = self._changes[number]
                try:
                    self._undo(number, UNDOING)
                except Refused as reason:
                    left.append(f"{' '.join(argv)}: {reason}")
        stays = removed(self.directory)
        return left if stays is None else [*left, stays]

    def _kill_offspring(self) -> None:
        """Kill all descendants of this process. As a subreaper, it inherits processes that the programs left behind.

        A request just before the end may still start a process. Wait for such requests, up to ``GRACE`` seconds.
        """
        deadline = time.monotonic() + GRACE
        while True:
            more_may_come = any(each.is_alive() for each in self._under_way) and time.monotonic() < deadline
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not more_may_come:
                return
            time.sleep(0.02)


def main(directory: str) -> int:
    """Serve the driver's requests until they end. All files are below *directory*."""
    # For root, sshd sets PATH to little more than /usr/bin:/bin.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    os.umask(0o022)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    # Only answers may be written to the protocol's output, not the output of a program or of a stray print().
    sys.stdout = sys.stderr
    server = Server(Path(directory), answers)

    def beat() -> None:
        while True:
            time.sleep(BEAT)
            server.answer({})

    def over(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, over)
    # When the driver has ended, an answer must raise an error, not kill this process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    threading.Thread(target=beat, daemon=True).start()
    server.answer({"ready": directory, "pid": os.getpid()})
    with suppress(KeyboardInterrupt, OSError, ValueError):
        server.serve(requests)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server.answer({"left": server.end()})
    # Exit without waiting for the threads of the killed commands.
    os._exit(0)
