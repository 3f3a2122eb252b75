# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages that users see, instead of Squid's own error pages, when Squid has no answer from a site.

The files are for ``error_directory`` in squid.conf. Squid treats each file as a template, in which a percent sign
begins a code: %H is the requested host, %c the error's name, %T the time. If the file for one of Squid's error names is
missing, Squid logs an error at each start. So Squid's own templates are copied for all other errors: those of requests
that the shipped squid.conf refuses, such as FTP, and those of later versions.

A browser shows such a page only for an address without TLS. If a tunnel (CONNECT) is refused, it shows its own page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

CHECK_PAGE: Final = "http://check.mptcp.internal/"
SQUID_TEMPLATES: Final = Path("/usr/share/squid/errors/templates")

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
{event}
<h2>What to do</h2>
<ul>
{advice}
</ul>
</section>
{check}\
<p class="quiet">For the operator of the proxy: %c, %T</p>
</main>
</html>
"""
_CHECK: Final = f"""\
<p>How your device is connected to the proxy: <a href="{CHECK_PAGE}">{CHECK_PAGE}</a></p>
"""
_TELL_OPERATOR: Final = "If other sites fail, too, tell the operator of the proxy."

_PAGES: Final[dict[str, tuple[str, str, tuple[str, ...], str]]] = {
    "refused": (
        "The proxy refuses this request",
        "<p>You asked for <strong>%H</strong>, and the rules of the proxy do not allow it. Most likely this "
        "address is closed to everyone. Your connection to the proxy works.</p>",
        (
            "Check the address. The proxy does not connect to its own host, or to unusual ports.",
            "If your device has very many open connections, close some programs that use them, and try again.",
            "If everything is refused, the proxy does not serve your network: ask its operator.",
        ),
        "ERR_ACCESS_DENIED ERR_FORWARDING_DENIED",
    ),
    "sign-in": (
        "The proxy requires a login",
        "<p>It did not get a valid name and password.</p>",
        ("Try again, and sign in.", "If you have no password for the proxy, ask its operator."),
        "ERR_CACHE_ACCESS_DENIED ERR_CACHE_MGR_ACCESS_DENIED",
    ),
    "no-address": (
        "This site was not found",
        "<p>The proxy found no address of <strong>%H</strong>. Most likely the name is misspelt, or there is no such "
        "site; or the proxy may have no name server at the moment. Your device and its connection to the proxy "
        "work.</p>",
        ("Check the name.", "Try another site. " + _TELL_OPERATOR),
        "ERR_DNS_FAIL",
    ),
    "no-answer": (
        "This site does not answer",
        "<p>The proxy tried to reach <strong>%H</strong> for you, and got no answer. Most likely the site is down, or "
        "its address is wrong; or the proxy may have no Internet connection at the moment. Your device and its "
        "connection to the proxy work.</p>",
        ("Try again in a minute.", "Try another site. " + _TELL_OPERATOR),
        "ERR_CONNECT_FAIL ERR_CANNOT_FORWARD ERR_READ_TIMEOUT ERR_LIFETIME_EXP ERR_SECURE_CONNECT_FAIL",
    ),
    "broken-answer": (
        "The answer of this site broke off",
        "<p>The proxy reached <strong>%H</strong>, but got no usable answer. Most likely the site is at fault. Your "
        "device and its connection to the proxy work.</p>",
        ("Try again in a minute.", "Try another site. " + _TELL_OPERATOR),
        "ERR_READ_ERROR ERR_WRITE_ERROR ERR_ZERO_SIZE_OBJECT ERR_INVALID_RESP",
    ),
    "odd-request": (
        "The proxy cannot read this request",
        "<p>Your device sent something that is not a web request. Most likely there is a mistake in the address, or in "
        "the program that sent it.</p>",
        ("Check the address.", "Try another program, for instance a web browser."),
        "ERR_INVALID_URL ERR_INVALID_REQ ERR_UNSUP_REQ ERR_UNSUP_HTTPVERSION ERR_PROTOCOL_UNKNOWN ERR_TOO_BIG "
        "ERR_CONFLICT_HOST",
    ),
    "busy": (
        "The proxy cannot do this now",
        "<p>It is stopping or restarting, or is overloaded. Neither your device nor the site is at fault.</p>",
        ("Try again in a minute.", "If that does not help, tell the operator of the proxy."),
        "ERR_SHUTTING_DOWN ERR_SOCKET_FAILURE",
    ),
}
"""For each kind of error: the title, the event and its likely cause, the advice, and Squid's names of these errors."""
_RELAY_PAGES: Final = {
    "no-proxy": (
        "The relay gets no answer from the proxy",
        "<p>You asked for <strong>%H</strong>. The relay in your network sent that to a proxy, and got no answer. Most "
        "likely the relay has no Internet connection at the moment, or the proxy does not run. Your device and its "
        "connection to the relay work.</p>",
        ("Try again in a minute.", "If that does not help, tell the operator of the relay."),
        f"{_PAGES['no-answer'][3]} {_PAGES['broken-answer'][3]}",
    ),
}
"""A relay's replacement for the pages about sites, because a relay does not contact sites itself."""


def error_pages(
    *, with_check_page: bool, relay: bool = False, squid_templates: Path = SQUID_TEMPLATES
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file. *with_check_page*: the pages have a link to the check page."""
    own_pages = dict(_own_pages(_CHECK if with_check_page else "", relay))
    yield from own_pages.items()
    with suppress(OSError):
        for path in sorted(squid_templates.iterdir()):
            if path.name not in own_pages and path.is_file():
                yield path.name, path.read_bytes()


def _own_pages(check: str, relay: bool) -> Iterator[tuple[str, bytes]]:
    for kind, (title, event, advice, names) in (*_PAGES.items(), *(_RELAY_PAGES.items() if relay else ())):
        items = "\n".join(f"<li>{each}</li>" for each in advice)
        body = _PAGE.format(kind=kind, title=title, event=event, advice=items, check=check)
        content = (HEAD.format(title=title) + body).encode()
        for name in names.split():
            yield name, content
