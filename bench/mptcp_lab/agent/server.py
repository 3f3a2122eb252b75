# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent on a host that is reached by ssh. While it runs, it owns the run's programs, changes and files.

The driver writes requests to the agent's standard input and reads answers from its standard output; each is a line with
a JSON object. When the input ends, the driver has finished, was killed or lost its network. The agent then ends the
programs and all processes that they started, undoes the changes, the last change first, and removes the directory. Its
last answer lists the changes and files that remain.

Each request has ``do`` and ``id``. The answer has the same ``id``, and ``error`` if the request failed:

=========  ================================  ====================================================================
``do``     fields                            answer
=========  ================================  ====================================================================
run        argv, input, timeout              code, out, err when it has ended
change     argv, timeout, undo               change: the number of the undo command
start      argv, env, mounts, log            pid; later a line ``{"ended": pid, "code": …}``
signal     pid, number, tree                 only the ``id``
undo       change, timeout                   only the ``id``
=========  ================================  ====================================================================
"""

from __future__ import annotations

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

from .files import remove_tree
from .processes import MountError, descendants, end_of, kill_tree, with_mounts

GRACE = 10.0
"""Seconds that the programs may take to end after SIGTERM."""
BEAT_SECONDS = 30.0
"""Seconds between two empty lines to the driver, so that TCP notices a dead connection, tcp(7)."""
UNDO_SECONDS = 60.0
"""Seconds that undoing one change may take after the driver has ended."""
PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2), from linux/prctl.h."""


class RequestFailed(Exception):
    """A request failed; the text is for the driver."""


def run(argv: list[str], text: str | None, timeout: float) -> dict[str, Any]:
    """Run a command until it ends. After *timeout* seconds, kill it and raise :class:`RequestFailed`."""
    source = subprocess.DEVNULL if text is None else subprocess.PIPE
    child = _start(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = child.communicate(None if text is None else text.encode(), timeout)
    except subprocess.TimeoutExpired:
        kill_tree(child.pid)
        out, err = child.communicate()
        raise RequestFailed(f"not ended within {timeout:g} s{end_of(out, err)}") from None
    return {"code": child.returncode, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}


def _run_or_fail(argv: list[str], timeout: float) -> None:
    done = run(argv, None, timeout)
    if done["code"] != 0:
        raise RequestFailed(f"exit code {done['code']}{end_of(done['out'], done['err'])}")


def _start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(argv, start_new_session=True, **options)
    except FileNotFoundError:
        raise RequestFailed(f"the program {argv[0]!r} is not installed") from None
    except OSError as error:
        raise RequestFailed(f"{argv[0]}: {error.strerror}") from None


class Server:
    """Runs programs and makes changes as the driver requests, and cleans up at the end."""

    def __init__(self, directory: Path, answers: IO[bytes]) -> None:
        self.directory = directory
        self._answers = answers
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        """Threads that serve a request."""
        self._undo_commands: dict[int, list[str]] = {}
        self._count = 0

    def answer(self, line: dict[str, Any]) -> None:
        with self._writing, suppress(OSError):  # the driver may have ended
            self._answers.write(json.dumps(line).encode() + b"\n")
            self._answers.flush()

    def serve(self, requests: IO[bytes]) -> None:
        """Serve *requests* until the input ends."""
        for line in requests:
            # Use a thread, because a request may be slow, and others must not wait for it.
            thread = threading.Thread(target=self._respond, args=(json.loads(line),), daemon=True)
            thread.start()
            self._threads = [each for each in (*self._threads, thread) if each.is_alive()]

    def _respond(self, request: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"_do_{request['do']}")(request)
        except (RequestFailed, MountError) as reason:
            answer = {"error": str(reason)}
        except Exception as error:
            # Answer any error, so that the driver does not wait forever.
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.answer({"id": request["id"], **answer})

    def _do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        return run(request["argv"], request.get("input"), request["timeout"])

    def _do_change(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._changing:
            self._count += 1
            # Record the undo command before the change, because undoing a change that was not made is harmless.
            self._undo_commands[self._count] = request["undo"]
            _run_or_fail(request["argv"], request["timeout"])
            return {"change": self._count}

    def _do_start(self, request: dict[str, Any]) -> dict[str, Any]:
        argv = with_mounts(request["argv"], request["mounts"])
        with open(request["log"], "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            program = _start(argv, **streams, env={**os.environ, **request["env"]})
        self._programs[program.pid] = program
        threading.Thread(target=self._report_end, args=(program,), daemon=True).start()
        return {"pid": program.pid}

    def _report_end(self, program: subprocess.Popen[bytes]) -> None:
        self.answer({"ended": program.pid, "code": program.wait()})

    def _do_signal(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["tree"]:
            kill_tree(request["pid"])
        else:
            self._programs[request["pid"]].send_signal(request["number"])
        return {}

    def _do_undo(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._changing:
            self._undo(request["change"], request["timeout"])
        return {}

    def _undo(self, number: int, timeout: float) -> None:
        _run_or_fail(self._undo_commands[number], timeout)
        # Delete the command only now. If undoing the change has failed, it is tried again at the end.
        del self._undo_commands[number]

    def end(self) -> list[str]:
        """End the programs, undo the changes and remove the directory. Return what failed."""
        for program in self._programs.values():
            if program.poll() is None:
                program.terminate()
        deadline = time.monotonic() + GRACE
        while any(p.poll() is None for p in self._programs.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        # As a subreaper, this process inherits processes whose parents have ended. Wait for the last requests, because
        # they may still start a process.
        deadline = time.monotonic() + GRACE
        is_last = False
        while not is_last:
            is_last = time.monotonic() > deadline or not any(each.is_alive() for each in self._threads)
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        failures = []
        with self._changing:
            for number, argv in reversed(list(self._undo_commands.items())):
                try:
                    self._undo(number, UNDO_SECONDS)
                except RequestFailed as reason:
                    failures.append(f"{' '.join(argv)}: {reason}")
        failure = remove_tree(self.directory)
        return failures if failure is None else [*failures, failure]


def main(directory: str) -> None:
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
            time.sleep(BEAT_SECONDS)
            server.answer({})

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # A write to a lost connection must not kill this process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    threading.Thread(target=beat, daemon=True).start()
    server.answer({"ready": directory})
    with suppress(KeyboardInterrupt, OSError, ValueError):
        server.serve(requests)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server.answer({"failures": server.end()})
    # Exit without waiting for the threads of the killed commands.
    os._exit(0)
