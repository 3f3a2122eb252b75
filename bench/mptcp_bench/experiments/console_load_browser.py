# SPDX-License-Identifier: GPL-2.0-or-later
"""A headless Chromium that measures when the console's table is complete, by the DevTools protocol over a pipe.

With ``--remote-debugging-pipe`` Chromium reads JSON messages from descriptor 3 and writes them to descriptor 4, each
followed by a zero byte. Times are from the page's own clock, which starts with the navigation.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from mptcp_lab.agent.processes import kill_tree
from mptcp_lab.testbed import LiveNode, TestbedError

from .pages_browser import FLAGS

_START: Final = """\
import fcntl, os, sys
there, back = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3])
os.dup2(there, 3)
os.dup2(back, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_WATCH: Final = """\
window.tableStands = 0;
new MutationObserver(() => {
  const said = document.querySelector('#connections-count')?.textContent ?? '';
  if (!window.tableStands && said.startsWith(%s) && document.querySelectorAll('#connections tbody').length === %d)
    window.tableStands = performance.now();
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
_POLL: Final = 0.05


class Browser:
    """A Chromium process with one page."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._from = to, back
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        target = self._do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._do("Page.enable")

    def watch(self, count: str, rows: int) -> None:
        """Make every page record the time when its table says *count* and has *rows* rows."""
        self._do("Page.addScriptToEvaluateOnNewDocument", source=_WATCH % (json.dumps(count), rows))

    def seconds(self, url: str, within: float) -> float:
        """Load *url* in a new page. Return the seconds until its table is complete; infinite after *within* seconds."""
        for each in ("about:blank", url):
            self._do("Page.navigate", url=each)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            found = self._do("Runtime.evaluate", expression="window.tableStands", returnByValue=True)
            if stands := found["result"].get("value"):
                return float(stands) / 1000
            time.sleep(_POLL)
        return float("inf")

    def _do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises TestbedError if Chromium does not answer, or with an error."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            message, zero, rest = self._rest.partition(b"\0")
            if zero:
                self._rest = rest
                answer = json.loads(message)
                if answer.get("id") == self._number:
                    if "error" in answer:
                        raise TestbedError(f"Chromium: {method}: {answer['error'].get('message')}")
                    result: dict[str, Any] = answer["result"]
                    return result
                continue
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 16) if ready else b""
            if not data:
                raise TestbedError(f"Chromium: {method}: no answer")
            self._rest += data


@contextmanager
def browser(node: LiveNode) -> Iterator[Browser]:
    """Start a Chromium with a new profile in *node*'s namespace. Raises TestbedError if it ends by itself."""
    profile = node.directory / "chromium-console"
    there, to = os.pipe()
    back, out = os.pipe()
    argv = ["chromium", *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    start = [sys.executable, "-I", "-c", _START, str(there), str(out), *argv]
    with (node.directory / "chromium-console.log").open("ab") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", node.namespace, *start],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(there, out),
            env={**os.environ, "HOME": str(node.directory)},
            start_new_session=True,
        )
    os.close(there)
    os.close(out)
    try:
        with suppress(BrokenPipeError):
            yield Browser(to, back)
            return
        raise TestbedError("Chromium ended")
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
        process.wait(10)
        os.close(to)
        os.close(back)
