"""Which helper programs know a client: those of "external_acl_type", and those of "auth_param" for passwords. Pure.

Squid comes with some that take anybody, by what their manuals say: they are there for names in the log, for a page that
is shown first, or for a bound on somebody's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import dropwhile, takewhile

from .source import Statement

_HELPER_OPTION = re.compile(r"[a-z._-]+=.*|ipv[46]")
"""What may stand before the codes of an external_acl_type; behind them is the helper, with its own arguments."""
_OF_THE_CLIENT = re.compile(
    r"""
    [-"\[#'/]*  [0-9.]*  (?:http::|ssl::)?
    (?: SRC (?:EUI48|EUI64)? | LOGIN | EXT_(?:USER|LOG|TAG) | (?:USER_|CA_|USER_CA_)CERT\w* | >a | >A | >eui
      | u[nles] | ea | credentials | >cert_\w+ | >ha? | (?:>?ha?)? \{[^}]*\} | note\{[^}]*\}
      | >? \{[^}]*\} (?:http::)? (?:>?ha?|note)? )
    [^\w]*
    """,
    re.VERBOSE,
)
"""A code, without its %, by which an external helper is told who the client is (external_acl_type, logformat): its
address, its user, or a header, which may have a user's password. Any other, as of what is asked for, says nothing of
it; what an identd says (IDENT, ui) is the client's own."""
_OF_A_LOGIN = re.compile(r"[^A-Za-z]*(?:http::)?(?:LOGIN|ul|un|credentials)[^\w]*")
"""Such a code for the user whose password was looked at. %LOGIN and %ul have the client asked for one."""
_ASKS_FOR_A_LOGIN = re.compile(r"[^A-Za-z]*(?:http::)?(?:LOGIN|ul)[^\w]*")
_TAKES_ANY_PASSWORD = re.compile(r"""["']?(?:.*/)?(?:(?:basic|ntlm)_fake_auth|fakeauth_auth)(?:\.\w+)?["']?""")
"""Programs of auth_param: whatever name a client says is its own (basic_fake_auth, ntlm_fake_auth, and an old name)."""
_TAKES_ANYBODY = re.compile(r"""["']?(?:.*/)?ext_(?:session|time_quota|delayer)_acl(?:\.\w+)?["']?""")
"""Programs of external_acl_type that know nobody: the first takes a client from its second request on, the second one
whom it does not know for five minutes a day, the third makes everybody wait."""


def anybody_logs_in(statements: Iterable[Statement]) -> bool:
    """Say whether clients may be asked for passwords by a program that takes any."""
    return any(
        each.directive == "auth_param" and any(_TAKES_ANY_PASSWORD.fullmatch(word) for word in each.words[3:])
        for each in statements
    )


def tells_who(words: Sequence[str], *, by_login: bool = True) -> bool:
    """Say whether *words* of an external_acl_type, behind its name, have its helper told who the client is, and the
    helper is not one that takes anybody. *by_login*: whether a password shows who a client is."""
    behind_options = list(dropwhile(_HELPER_OPTION.fullmatch, words))
    codes = list(takewhile(lambda word: word.startswith("%"), behind_options))
    takes_anybody = any(_TAKES_ANYBODY.fullmatch(word) for word in behind_options[len(codes) :])
    return any(_says_who(code, by_login, takes_anybody) for word in codes for code in word.split("%"))


def _says_who(code: str, by_login: bool, takes_anybody: bool) -> bool:
    if takes_anybody:
        return by_login and bool(_ASKS_FOR_A_LOGIN.fullmatch(code))
    return bool(_OF_THE_CLIENT.fullmatch(code)) and (by_login or not _OF_A_LOGIN.fullmatch(code))
