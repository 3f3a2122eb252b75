# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts the console as a program with its settings, and sends it HTTP requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

PORT = 8610


@dataclass
class Console:
    """A running ``mptcp-console run``."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def get(self, path: str) -> Any:
        """Return the JSON answer for *path*. Raise OSError if there is no answer."""
        with build_opener(ProxyHandler({})).open(self.url + path, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def console(
    directory: Path,
    status_socket: Path,
    port: int = PORT,
    prefix: Sequence[str] = (),
    settings: str = "",
    program: Sequence[str] = (str(Path(sys.executable).parent / "mptcp-console"),),
    address: str = "127.0.0.1",
) -> Iterator[Console]:
    """Start the console; *prefix* runs it in a namespace or as another user.

    The console must end with status 0, or be killed by the test. *address* is the address to listen on, in the notation
    of the settings.
    """
    config = directory / f"console-{port}.yaml"
    access = "" if "token_file" in settings else "open_to_this_host: true\n"
    config.write_text(f"listen: '{address}:{port}'\nstatus_socket: {status_socket}\n{access}{settings}")
    log = directory / f"console-{port}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*prefix, *program, "run", "--config", str(config)],
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while b"serving http" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield Console(process, f"http://127.0.0.1:{port}", log)
    finally:
        if process.poll() is None:
            process.terminate()
        exit_status = process.wait(30)
    assert "Traceback" not in log.read_text(), log.read_text()
    assert exit_status in (0, -9), log.read_text()
