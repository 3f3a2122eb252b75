# SPDX-License-Identifier: GPL-2.0-or-later
"""The page that clients get instead of the check page when ``mptcp-portal`` does not answer.

Squid treats the page as a template, in which a percent sign begins a code, so the page contains no percent sign. The
page polls without reloading itself, because a reload would return readers to the top (WCAG 2, 2.2.1).
"""

from __future__ import annotations

from typing import Final

from .error_pages import HEAD

PORTAL_DOWN: Final = (
    HEAD.format(title="The check page does not answer")
    + """\
<main data-proxy-page="no-portal">
<section>
<h1>The check page does not answer</h1>
<p>Your device reached the proxy: this page comes from it, and other pages are not affected. The program that shows
how your device is connected (mptcp-portal) is not running there, or does not answer.</p>
<h2>What to do</h2>
<ul>
<li>Leave this page open: it tries again every few seconds. Or <a href="/">try now</a>.</li>
<li>The operator of the proxy can start it: <code>systemctl start mptcp-portal</code></li>
</ul>
</section>
</main>
<script>
async function retry() {
  try {
    if ((await fetch("/", { cache: "no-store" })).ok) location.replace("/");
  } catch {}
  setTimeout(retry, 3000);
}
setTimeout(retry, 3000);
</script>
</html>
"""
)
