"""What a client is shown for the check page where ``mptcp-portal`` does not answer.

Squid takes it for a template: a percent sign would begin one of its codes. It asks again by itself, because a Squid
that found nobody there looks for the portal anew upon a request, and asks it for the next one. It asks without loading
the page anew each time, which would take readers back to its beginning (WCAG 2, 2.2.1).
"""

from __future__ import annotations

from typing import Final

MISSING: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The check page does not answer</title>
<style>
:root { color-scheme: light dark; background: Canvas; color: CanvasText }
body { font: 1.1rem/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 40rem }
</style>
<h1>The check page does not answer</h1>
<p>Your device reached the proxy: this page comes from it, and other pages are not affected. The program that could
say how your device is connected (mptcp-portal) is not running there, or does not answer. It is asked again every
few seconds; you can also <a href="/">ask now</a>.</p>
<p>Whoever runs the proxy can start it: <code>systemctl start mptcp-portal</code></p>
<script>
async function look() {
  try {
    if ((await fetch("/check.json", { cache: "no-store" })).ok) location.replace("/");
  } catch {}
  setTimeout(look, 3000);
}
setTimeout(look, 3000);
</script>
</html>
"""
