"""Which helper programs know a client: those of "external_acl_type", and those of "auth_param" for passwords. Pure.

Squid comes with some that take anybody, by what their manuals say: they are there for names in the log, for a page that
is shown first, or for a bound on somebody's time.

What one helper answers (a user, a tag, a note) another one may be told, and lists may ask for it ("ext_user"). It says
who the client is where all helpers that answer are told of the client: which of them gives the name is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from .source import Statement

_HELPER_OPTION = re.compile(r"[a-z._-]+=.*|ipv[46]")
"""What may stand before the codes of an external_acl_type; behind them is the helper, with its own arguments."""
_CODE = re.compile(
    r"""%["\[#'/]?-?[0-9]*(?P<before>\{[^}]*\})?(?:http::|ssl::|tls::)?(?P<code>.*?)(?P<behind>\{[^}]*\})?"""
)
"""How a code is written: each word is one, with or without an argument, before or behind it. By one with a greatest
length (%.1SRC) the helper is told a part."""
_OF_THE_CLIENT = re.compile(r"SRCEUI(?:48|64)|LOGIN|(?:USER_|CA_|USER_CA_)CERT\w*|>eui|ul|credentials|>cert_\w+")
_ADDRESS = frozenset(("SRC", ">a"))
"""Codes by which an external helper is told who the client is (external_acl_type, logformat): its MAC address, its user
or its certificate; its address. Any other, as of what is asked for, says nothing of it; what an identd says (IDENT, ui)
is the client's own."""
_HEADER = re.compile(r">?(?:ha?)?")
"""One of the request's header fields, where it has an argument, or all: a user's password may be in it."""
_SAYS_NOTHING = re.compile(
    r"""\{(?: accept(?:-.*)? | cache-control | connection | content-.* | date | dnt | expect | forwarded | from | host
      | if-.* | keep-alive | max-forwards | origin | pragma | proxy-connection | range | referer | sec-.* | te
      | trailer | transfer-encoding | upgrade(?:-.*)? | user-agent | via | x-forwarded-.* | x-original-forwarded-for
      | (?:.*-)?(?:real|client|remote|cluster-client|connecting)-?(?:ip|addr|address|host)(?:v6)? )(?::.*)?\}""",
    re.VERBOSE | re.IGNORECASE,
)
"""Fields that are about what is asked for, or by which program, or in which anybody may claim to be anybody."""
_OF_A_HELPER = frozenset(("EXT_USER", "EXT_LOG", "EXT_TAG", "TAG", "ue", "ea", "et"))
"""Codes for what an external helper has answered."""
_OF_A_LOGIN = frozenset(("LOGIN", "ul", "un", "credentials"))
"""Codes for the user whose password was looked at. %LOGIN and %ul have the client asked for one."""
_ASKS_FOR_A_LOGIN = frozenset(("LOGIN", "ul"))
_TAKES_ANY_PASSWORD = re.compile(r"""["']?(?:.*/)?(?:(?:basic|ntlm)_fake_auth|fakeauth_auth)(?:\.\w+)?["']?""")
"""Programs of auth_param: whatever name a client says is its own (basic_fake_auth, ntlm_fake_auth, and an old name)."""
_TAKES_ANYBODY = re.compile(r"""["']?(?:.*/)?ext_(?:session|time_quota|delayer)_acl(?:\.\w+)?["']?""")
"""Programs of external_acl_type that know nobody: the first takes a client from its second request on, the second one
whom it does not know for five minutes a day, the third makes everybody wait."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the helper programs of a configuration know."""

    anybody_logs_in: bool
    """Whether clients may be asked for passwords by a program that takes any."""
    answers_tell: bool
    """Whether what the external ones answer says who the client is; also where there are none."""
    not_told: frozenset[str]
    """The external ones that are told nothing of the client, or take anybody, by their names."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Which of what a helper may be told, beside addresses and certificates, says who a client is."""

    addresses: bool
    host_names: bool
    logins: bool
    """The user whose password was looked at, where there is one."""
    answers: bool
    """Those of external helpers."""
    names: bool
    """%un: of a login, of a helper's answer and of an identd's, whichever there is."""
    notes: bool


def helpers(statements: Iterable[Statement], *, addresses_count: bool = True, names_count: bool = True) -> Helpers:
    """Return what the helper programs of *statements* know.

    *addresses_count*: whether a client's address shows who it is; where X-Forwarded-For is believed it may be any.
    *names_count*: whether its name does, which whoever runs its reverse zone chooses.
    """
    statements = list(statements)
    external = [(each.words[1], each.words[2:]) for each in statements if _is_external(each)]
    passwords = [each for each in statements if each.directive == "auth_param"]
    anybody = any(_TAKES_ANY_PASSWORD.fullmatch(word) for each in passwords for word in each.words[3:])
    logins = bool(passwords) and not anybody
    no_identd, no_notes = not any(map(_asks_an_identd, statements)), not any(map(_makes_notes, statements))

    def known(answers: bool, something: bool) -> _Known:
        return _Known(
            addresses_count, names_count, not anybody, answers, something and no_identd, something and no_notes
        )

    all_told = all(_tells_who(words, known(True, True)) for _, words in external)
    answers = all_told and any(_tells_who(words, known(False, logins)) for _, words in external)
    found = known(answers, answers or (all_told and logins))
    not_told = frozenset(name for name, words in external if not _tells_who(words, found))
    return Helpers(anybody, answers or not external, not_told)


def _is_external(statement: Statement) -> bool:
    return statement.directive == "external_acl_type" and len(statement.words) > 1


def _asks_an_identd(statement: Statement) -> bool:
    words = statement.words
    return words[:2] == ("ident_lookup_access", "allow") or (
        statement.directive == "acl" and words[2:3] in (("ident",), ("ident_regex",))
    )


def _makes_notes(statement: Statement) -> bool:
    """Say whether there are notes by *statement* that none of those helpers has made."""
    words = statement.words
    return statement.directive in ("note", "url_rewrite_program", "store_id_program") or (
        statement.directive == "acl" and len(words) > 2 and words[2].startswith("annotate_")
    )


def _tells_who(words: Sequence[str], known: _Known) -> bool:
    """Say whether *words* of an external_acl_type, behind its name, have its helper told who the client is, and the
    helper is not one that takes anybody."""
    behind_options = list(dropwhile(_HELPER_OPTION.fullmatch, words))
    codes = list(takewhile(lambda word: word.startswith("%"), behind_options))
    takes_anybody = any(_TAKES_ANYBODY.fullmatch(word) for word in behind_options[len(codes) :])
    return any(_says_who(code, known, takes_anybody) for code in codes)


def _says_who(word: str, known: _Known, takes_anybody: bool) -> bool:
    found = _CODE.fullmatch(word)
    if found is None:
        return False
    code, argument = found["code"], found["before"] or found["behind"]
    if takes_anybody:
        return known.logins and code in _ASKS_FOR_A_LOGIN
    if code == "un":
        return known.logins and known.names
    if code in _ADDRESS:
        return known.addresses
    if code == ">A":
        return known.host_names
    if code == "note":
        return argument is not None and known.notes
    if code in _OF_A_HELPER:
        return known.answers
    if _OF_THE_CLIENT.fullmatch(code):
        return known.logins or code not in _OF_A_LOGIN
    if argument is None:
        return code in (">h", ">ha")
    return bool(_HEADER.fullmatch(code)) and not _SAYS_NOTHING.fullmatch(argument)
