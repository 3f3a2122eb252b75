# SPDX-License-Identifier: GPL-2.0-or-later
"""A page in headless Chromium, which uses MPTCP by mptcpize(8), and the times of its downloads.

The page's script fetches all files at once; Chromium uses six persistent connections for that. Then the script requests
``/done?…`` with the times from the origin. They are read from the origin's log, without access to the browser.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mptcp_lab.testbed import LiveNode, TestbedError
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import Origin, mptcp_command, wait_until

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
    "--disable-default-apps", "--disable-extensions",
)  # fmt: skip
_PAGE = """\
<!doctype html><title>A page</title><script>
const names = "%s".split(" ");
Promise.all(names.map(async (name, i) => {
  const begun = performance.now();
  const body = await (await fetch("/" + name + "?" + i)).arrayBuffer();
  return [begun, performance.now(), body.byteLength].map(Math.round).join("+");
})).then(all => fetch("/done?%s&" + Math.round(performance.timeOrigin) + "&" + all.join(",")));
</script>
"""
_numbers = count(1)


class Page:
    """A page whose script loads files that exist on *origin*."""

    def __init__(self, origin: Origin, names: Sequence[str]) -> None:
        self._names = names
        self._origin = origin
        # Files are named after their size. This one's name says 0, so that the page's own bytes are not checked.
        self.name = f"0-{next(_numbers)}.html"
        text = _PAGE % (" ".join(names), self.name)
        origin.host.write(str(Path(origin.directory.name) / "htdocs" / self.name), text)

    @property
    def url(self) -> str:
        return self._origin.url(self.name)

    def answers(self, within: float, process: Process) -> list[dict[str, Any]]:
        """Return the page's times in ``agent.fetch``'s form. Raises TestbedError if none come *within* seconds."""
        found: list[tuple[str, str]] = []

        def said() -> bool:
            log = self._origin.host.read(self._origin.directory / "access.log").decode(errors="replace")
            found[:] = re.findall(rf"/done\?{re.escape(self.name)}&(\d+)&([\d+,]+)", log)
            return bool(found)

        wait_until(said, "Chromium has the page", timeout=within, process=process)
        begun, times = found[0]
        return answers(self.name, self._names, int(begun) / 1e3 - (time.time() - time.monotonic()), times)


def answers(page: str, names: Sequence[str], begun: float, said: str) -> list[dict[str, Any]]:
    """Parse the times that a page *said*, which began at *begun*. The first answer is for the page itself."""
    found = []
    for name, one in zip(names, said.split(","), strict=True):
        began, end, octets = map(int, one.split("+"))
        found.append(_answer(name, begun + began / 1e3, begun + end / 1e3, octets))
    return [_answer(page, begun, min(each["began"] for each in found), 0), *found]


def _answer(name: str, began: float, end: float, octets: int) -> dict[str, Any]:
    return {"name": name, "began": began, "connected": began, "end": end, "octets": octets, "error": None}


@contextmanager
def chromium(client: LiveNode, proxy: str, url: str, number: int) -> Iterator[Process]:
    """Load *url* through *proxy* in a Chromium with a new profile, and yield its process."""
    profile = client.directory / f"chromium-{number}"
    argv = ["chromium", *FLAGS, f"--user-data-dir={profile}", f"--proxy-server={proxy}", url]
    process = client.popen(mptcp_command(argv), name="chromium", env={"HOME": str(client.directory)})
    try:
        yield process
    except TestbedError as error:
        raise TestbedError(f"Chromium: {error}") from None
    finally:
        process.kill_tree()
