# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out which helper programs identify a client: programs of "external_acl_type", and programs of "auth_param" for
passwords. Pure.

According to their manuals, some of Squid's own helpers accept every client: they supply names for the log, show a page
first, or limit the time of use.

The answer of one helper (a user, a tag, a note) may be passed to another helper, and lists may depend on it
("ext_user"). An answer identifies the client only if every helper that gives answers gets information about the client,
because it is unknown which helper gave the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from .source import Statement

_HELPER_OPTION = re.compile(r"[a-z._-]+=.*|ipv[46]")
"""Options of an external_acl_type, which come before its codes. After the codes come the helper and its arguments."""
_CODE = re.compile(
    r"""%["\[#'/]?-?[0-9]*(?P<before>\{[^}]*\})?(?:http::|ssl::|tls::)?(?P<code>.*?)(?P<after>\{[^}]*\})?"""
)
"""One code: one word, possibly with an argument before or after it. A code with a maximum length (%.1SRC) does not
match, because it passes only a part of the value."""
_OF_THE_CLIENT = re.compile(r"SRCEUI(?:48|64)|LOGIN|(?:USER_|CA_|USER_CA_)CERT\w*|>eui|ul|credentials|>cert_\w+")
_ADDRESS = frozenset(("SRC", ">a"))
"""Codes that pass the client's address to an external helper (external_acl_type, logformat). The codes above pass its
MAC address, user or certificate. All other codes, for example for parts of the request, do not identify the client; an
identd's answer (IDENT, ui) is chosen by the client."""
_HEADER = re.compile(r">?(?:ha?)?")
"""Codes for one header field of the request (with an argument), or for all. A field may contain a user's password."""
_UNIDENTIFYING = re.compile(
    r"""\{(?: accept(?:-.*)? | cache-control | connection | content-.* | date | dnt | expect | forwarded | from | host
      | if-.* | keep-alive | max-forwards | origin | pragma | proxy-connection | range | referer | sec-.* | te
      | trailer | transfer-encoding | upgrade(?:-.*)? | user-agent | via | x-forwarded-.* | x-original-forwarded-for
      | (?:.*-)?(?:real|client|remote|cluster-client|connecting)-?(?:ip|addr|address|host)(?:v6)? )(?::.*)?\}""",
    re.VERBOSE | re.IGNORECASE,
)
"""Header fields that do not identify the client: fields about the request or the client's program, and fields in which
a client may claim any identity."""
_OF_A_HELPER = frozenset(("EXT_USER", "EXT_LOG", "EXT_TAG", "TAG", "ue", "ea", "et"))
"""Codes for an external helper's answers."""
_OF_A_LOGIN = frozenset(("LOGIN", "ul", "un", "credentials"))
"""Codes for the user whose password was checked. %LOGIN and %ul make Squid ask for one."""
_ASKS_FOR_A_LOGIN = frozenset(("LOGIN", "ul"))
_ACCEPTS_ANY_PASSWORD = re.compile(r"""["']?(?:.*/)?(?:(?:basic|ntlm)_fake_auth|fakeauth_auth)(?:\.\w+)?["']?""")
"""Programs of auth_param that accept any name and password (basic_fake_auth, ntlm_fake_auth, and an old name)."""
_ACCEPTS_ALL = re.compile(r"""["']?(?:.*/)?ext_(?:session|time_quota|delayer)_acl(?:\.\w+)?["']?""")
"""Programs of external_acl_type that do not identify clients: the first accepts every client from its second request
on, the second accepts unknown clients for five minutes a day, the third only delays clients."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """The information about clients that the helper programs of a configuration have."""

    any_login_counts: bool
    """Whether a program that takes any password may ask clients for one."""
    answers_identify: bool
    """Whether the external helpers' answers identify the client; True also without such helpers."""
    uninformed: frozenset[str]
    """Names of external helpers that get no information that identifies the client, or accept every client."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Which inputs of a helper identify the client."""

    addresses: bool
    host_names: bool
    logins: bool
    answers: bool
    names: bool
    """%un: the user name from a login, from a helper's answer or from an identd, whichever exists."""
    notes: bool


def helpers(statements: Iterable[Statement], *, addresses_count: bool = True, names_count: bool = True) -> Helpers:
    """Return the information that the helper programs of *statements* have about clients. *addresses_count*: whether a
    client's address identifies it; a believed X-Forwarded-For may contain any address. *names_count*: whether its host
    name identifies it, which the owner of its reverse zone chooses."""
    statements = list(statements)
    external = [(each.words[1], each.words[2:]) for each in statements if _is_external(each)]
    passwords = [each for each in statements if each.directive == "auth_param"]
    any_password = any(_ACCEPTS_ANY_PASSWORD.fullmatch(word) for each in passwords for word in each.words[3:])
    logins = bool(passwords) and not any_password
    no_identd, no_notes = not any(map(_asks_an_identd, statements)), not any(map(_makes_notes, statements))

    def known(answers: bool, something: bool) -> _Known:
        return _Known(
            addresses_count, names_count, not any_password, answers, something and no_identd, something and no_notes
        )

    all_informed = all(_is_informed(words, known(True, True)) for _, words in external)
    answers = all_informed and any(_is_informed(words, known(False, logins)) for _, words in external)
    found = known(answers, answers or (all_informed and logins))
    uninformed = frozenset(name for name, words in external if not _is_informed(words, found))
    return Helpers(any_password, answers or not external, uninformed)


def _is_external(statement: Statement) -> bool:
    return statement.directive == "external_acl_type" and len(statement.words) > 1


def _asks_an_identd(statement: Statement) -> bool:
    words = statement.words
    return words[:2] == ("ident_lookup_access", "allow") or (
        statement.directive == "acl" and words[2:3] in (("ident",), ("ident_regex",))
    )


def _makes_notes(statement: Statement) -> bool:
    """Return whether *statement* creates notes that do not come from an external helper."""
    words = statement.words
    return statement.directive in ("note", "url_rewrite_program", "store_id_program") or (
        statement.directive == "acl" and len(words) > 2 and words[2].startswith("annotate_")
    )


def _is_informed(words: Sequence[str], known: _Known) -> bool:
    """Return whether an external_acl_type, with these *words* after its name, passes information that identifies the
    client, and its helper does not accept every client."""
    behind_options = list(dropwhile(_HELPER_OPTION.fullmatch, words))
    codes = list(takewhile(lambda word: word.startswith("%"), behind_options))
    accepts_all = any(_ACCEPTS_ALL.fullmatch(word) for word in behind_options[len(codes) :])
    return any(_identifies(code, known, accepts_all) for code in codes)


def _identifies(word: str, known: _Known, accepts_all: bool) -> bool:
    found = _CODE.fullmatch(word)
    if found is None:
        return False
    code, argument = found["code"], found["before"] or found["after"]
    if accepts_all:
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
    return bool(_HEADER.fullmatch(code)) and not _UNIDENTIFYING.fullmatch(argument)
