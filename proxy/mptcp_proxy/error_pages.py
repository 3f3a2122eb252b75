# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages that people see when Squid has no answer from a site, in place of Squid's own pages.

They are for ``error_directory`` in squid.conf. Squid treats each file as a template, in which a percent sign begins a
code: %H is the requested host, %c the error's name, %T the time. If the file for one of Squid's error names is missing,
Squid logs an error at each start. So its own templates are added for all other names: errors of requests that the
shipped squid.conf refuses anyway, such as FTP, and errors of later versions.

A browser shows such a page only for an address without TLS. If a tunnel (CONNECT) is refused, it shows its own page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

CHECK_PAGE: Final = "http://check.mptcp.internal/"
SQUIDS_OWN: Final = Path("/usr/share/squid/errors/templates")

HEAD: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #16202c; --quiet: #4d5a6a; --line: #d5dbe3;
  --link: #0a56b0; --fair: #8a4b00 }}
@media (prefers-color-scheme: dark) {{ :root {{ --ground: #10151c; --card: #1a212b; --text: #e8edf3; --quiet: #a9b5c3;
  --line: #343f4d; --link: #82b7ff; --fair: #ffb866 }} }}
* {{ box-sizing: border-box }}
html {{ -webkit-text-size-adjust: none }}
body {{ margin: 0; background: var(--ground); color: var(--text); font: 1.0625rem/1.55 system-ui, sans-serif }}
main {{ max-width: 44rem; margin: 1.25rem auto 3rem; padding: 0 1rem }}
section {{ background: var(--card); border: 1px solid var(--line); border-left: .4rem solid var(--fair);
  border-radius: .75rem; padding: 1.1rem 1.2rem; overflow-wrap: anywhere }}
h1 {{ margin: 0 0 .75rem; font-size: 1.6rem; line-height: 1.25; color: var(--fair) }}
h2 {{ margin: 1.25rem 0 .4rem; font-size: 1.15rem }}
ul {{ margin: 0; padding-left: 1.2rem }}
a {{ color: var(--link) }}
.quiet {{ color: var(--quiet); font-size: .95rem }}
:focus-visible {{ outline: 3px solid var(--link); outline-offset: 2px }}
</style>
"""
"""The head of all pages from Squid, in the portal's colours (portal.css)."""
_PAGE: Final = """\
<main data-proxy-page="{kind}">
<section>
<h1>{title}</h1>
{what}
<h2>What to do</h2>
<ul>
{todo}
</ul>
</section>
{check}\
<p class="quiet">For whoever runs the proxy: %c, %T</p>
</main>
</html>
"""
_CHECK: Final = f"""\
<p>How your device is connected to the proxy: <a href="{CHECK_PAGE}">{CHECK_PAGE}</a></p>
"""
_ASK: Final = "If other sites fail, too, tell whoever runs the proxy."

_PAGES: Final[dict[str, tuple[str, str, tuple[str, ...], str]]] = {
    "refused": (
        "The proxy refuses this request",
        "<p>You asked for <strong>%H</strong>, and the rules of the proxy do not allow it. Most likely nobody may "
        "open this address through the proxy. Your connection to the proxy is in order.</p>",
        (
            "Check the address. The proxy opens no addresses of its own host, and no unusual ports.",
            "If your device has very many connections open, close some of what uses them, and try again.",
            "If everything is refused, the proxy does not serve your network: ask whoever runs it.",
        ),
        "ERR_ACCESS_DENIED ERR_FORWARDING_DENIED",
    ),
    "sign-in": (
        "The proxy wants to know who you are",
        "<p>It asks for a name and a password, and did not get the right ones.</p>",
        ("Try again, and sign in.", "If you have no password for the proxy, ask whoever runs it."),
        "ERR_CACHE_ACCESS_DENIED ERR_CACHE_MGR_ACCESS_DENIED",
    ),
    "no-address": (
        "This site was not found",
        "<p>The proxy looked for the address of <strong>%H</strong> and got none. Most likely the name is misspelt, or "
        "there is no such site; it may also be that the proxy has no name server at the moment. Your device and its "
        "connection to the proxy are in order.</p>",
        ("Check the name.", "Try another site. " + _ASK),
        "ERR_DNS_FAIL",
    ),
    "no-answer": (
        "This site does not answer",
        "<p>The proxy tried to reach <strong>%H</strong> for you, and got no answer. Most likely the site is down, or "
        "its address is wrong; it may also be that the proxy has no Internet connection at the moment. Your device and "
        "its connection to the proxy are in order.</p>",
        ("Try again in a minute.", "Try another site. " + _ASK),
        "ERR_CONNECT_FAIL ERR_CANNOT_FORWARD ERR_READ_TIMEOUT ERR_LIFETIME_EXP ERR_SECURE_CONNECT_FAIL",
    ),
    "broken-answer": (
        "The answer of this site broke off",
        "<p>The proxy reached <strong>%H</strong>, and got no answer that can be used. Most likely the site is "
        "at fault. Your device and its connection to the proxy are in order.</p>",
        ("Try again in a minute.", "Try another site. " + _ASK),
        "ERR_READ_ERROR ERR_WRITE_ERROR ERR_ZERO_SIZE_OBJECT ERR_INVALID_RESP",
    ),
    "odd-request": (
        "The proxy cannot read this request",
        "<p>What came from your device is not what a proxy for the web takes. Most likely there is a mistake in the "
        "address, or in the program that asked.</p>",
        ("Check the address.", "Try another program, a web browser for instance."),
        "ERR_INVALID_URL ERR_INVALID_REQ ERR_UNSUP_REQ ERR_UNSUP_HTTPVERSION ERR_PROTOCOL_UNKNOWN ERR_TOO_BIG "
        "ERR_CONFLICT_HOST",
    ),
    "busy": (
        "The proxy cannot do this now",
        "<p>It is stopping or restarting, or has too much to do. Neither your device nor the site is at fault.</p>",
        ("Try again in a minute.", "If it stays so, tell whoever runs the proxy."),
        "ERR_SHUTTING_DOWN ERR_SOCKET_FAILURE",
    ),
}
"""By kind of error: title, what happened and the likely cause, what to do, and Squid's names of these errors."""
_RELAY_PAGES: Final = {
    "no-proxy": (
        "The relay gets no answer from the proxy",
        "<p>You asked for <strong>%H</strong>. The relay in your network, by which you go, hands that to a proxy, and "
        "got no answer from it. Most likely the relay has no Internet connection at the moment, or the proxy does not "
        "run. Your device and its connection to the relay are in order.</p>",
        ("Try again in a minute.", "If it stays so, tell whoever runs the relay."),
        f"{_PAGES['no-answer'][3]} {_PAGES['broken-answer'][3]}",
    ),
}
"""A relay's replacement for the pages about sites, because a relay does not contact sites itself."""


def error_pages(
    *, with_check_page: bool, relay: bool = False, squids_own: Path = SQUIDS_OWN
) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and content. *with_check_page*: link the check page, which exists."""
    ours = dict(_ours(_CHECK if with_check_page else "", relay))
    yield from ours.items()
    with suppress(OSError):
        for path in sorted(squids_own.iterdir()):
            if path.name not in ours and path.is_file():
                yield path.name, path.read_bytes()


def _ours(check: str, relay: bool) -> Iterator[tuple[str, bytes]]:
    for kind, (title, what, todo, names) in (*_PAGES.items(), *(_RELAY_PAGES.items() if relay else ())):
        items = "\n".join(f"<li>{each}</li>" for each in todo)
        body = _PAGE.format(kind=kind, title=title, what=what, todo=items, check=check)
        content = (HEAD.format(title=title) + body).encode()
        for name in names.split():
            yield name, content
