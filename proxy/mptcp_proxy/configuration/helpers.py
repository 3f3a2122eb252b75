# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out which helper programs identify a client: programs of "external_acl_type", and programs of "auth_param" for
passwords. Pure.

According to their manuals, some of Squid's own helpers accept every client: they only supply names for the log, show a
page first, or limit the time of use.

Squid may pass the answer of one helper (a user, a tag, a note) to another helper, and lists may depend on it
("ext_user"). It is unknown which helper gave an answer. So an answer identifies the client only if every helper with
answers gets information that identifies the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from .source import Statement

_HELPER_OPTION = re.compile(r"[a-z._-]+=.*|ipv[46]")
"""An option of external_acl_type. The options come first, then the codes, then the helper and its arguments."""
_CODE_WORD = re.compile(
    r"""%["\[#'/]?-?[0-9]*(?P<before>\{[^}]*\})?(?:http::|ssl::|tls::)?(?P<code>.*?)(?P<after>\{[^}]*\})?"""
)
"""A word with one code, possibly with an argument before or after it. A code with a maximum length (%.1SRC) does not
match, because Squid passes only a part of its value."""
_CLIENT_CODES = re.compile(r"SRCEUI(?:48|64)|LOGIN|(?:USER_|CA_|USER_CA_)CERT\w*|>eui|ul|credentials|>cert_\w+")
_ADDRESS_CODES = frozenset(("SRC", ">a"))
"""Codes that pass the client's address to an external helper (external_acl_type, logformat). _CLIENT_CODES pass its MAC
address, user or certificate. Other codes, for example for parts of the request, do not identify the client. The client
also chooses the answer of an identd (IDENT, ui)."""
_HEADER_CODES = re.compile(r">?(?:ha?)?")
"""Codes for one header field of the request (with an argument) or for all fields. A field may contain a password."""
_UNIDENTIFYING_FIELDS = re.compile(
    r"""\{(?: accept(?:-.*)? | cache-control | connection | content-.* | date | dnt | expect | forwarded | from | host
      | if-.* | keep-alive | max-forwards | origin | pragma | proxy-connection | range | referer | sec-.* | te
      | trailer | transfer-encoding | upgrade(?:-.*)? | user-agent | via | x-forwarded-.* | x-original-forwarded-for
      | (?:.*-)?(?:real|client|remote|cluster-client|connecting)-?(?:ip|addr|address|host)(?:v6)? )(?::.*)?\}""",
    re.VERBOSE | re.IGNORECASE,
)
"""Header fields that do not identify the client: they describe the request or the client's program, or the client may
claim any identity in them."""
_ANSWER_CODES = frozenset(("EXT_USER", "EXT_LOG", "EXT_TAG", "TAG", "ue", "ea", "et"))
"""Codes for the answers of external helpers."""
_LOGIN_CODES = frozenset(("LOGIN", "ul", "un", "credentials"))
"""Codes for the user whose password was checked. With %LOGIN and %ul, Squid requests a password."""
_LOGIN_REQUESTS = frozenset(("LOGIN", "ul"))
_ACCEPTS_ANY_PASSWORD = re.compile(r"""["']?(?:.*/)?(?:(?:basic|ntlm)_fake_auth|fakeauth_auth)(?:\.\w+)?["']?""")
"""Programs of auth_param that accept any name and password (basic_fake_auth, ntlm_fake_auth, and an old name)."""
_ACCEPTS_ALL = re.compile(r"""["']?(?:.*/)?ext_(?:session|time_quota|delayer)_acl(?:\.\w+)?["']?""")
"""Programs of external_acl_type that accept every client: ext_session_acl from the second request on,
ext_time_quota_acl for five minutes a day, and ext_delayer_acl after a delay."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """The information about clients that the helper programs of a configuration have."""

    any_login_counts: bool
    """Whether a program that accepts any password may check logins."""
    answers_identify: bool
    """Whether the answers of external helpers identify the client; also True without such helpers."""
    uninformed: frozenset[str]
    """Names of external helpers that get no information that identifies the client, or accept every client."""


@dataclass(frozen=True, slots=True)
class _IdentifyingInputs:
    """The inputs of a helper that identify the client."""

    addresses: bool
    host_names: bool
    logins: bool
    answers: bool
    names: bool
    """Whether %un identifies the client: the user name of a login, of a helper's answer or of an identd."""
    notes: bool


def helpers(statements: Iterable[Statement], *, trust_addresses: bool = True, trust_host_names: bool = True) -> Helpers:
    """Return the information that the helper programs of *statements* have about clients. *trust_addresses*: whether a
    client's address identifies it. It does not if Squid trusts X-Forwarded-For, which may contain any address.
    *trust_host_names*: whether a client's host name, which the owner of its reverse zone chooses, identifies it."""
    statements = list(statements)
    external = [(each.words[1], each.words[2:]) for each in statements if _is_external(each)]
    passwords = [each for each in statements if each.directive == "auth_param"]
    any_password = any(_ACCEPTS_ANY_PASSWORD.fullmatch(word) for each in passwords for word in each.words[3:])
    logins = bool(passwords) and not any_password
    no_identd, no_notes = not any(map(_uses_an_identd, statements)), not any(map(_creates_notes, statements))

    def inputs(answers: bool, any_source: bool) -> _IdentifyingInputs:
        return _IdentifyingInputs(
            trust_addresses,
            trust_host_names,
            not any_password,
            answers,
            any_source and no_identd,
            any_source and no_notes,
        )

    all_informed = all(_is_informed(words, inputs(True, True)) for _, words in external)
    answers = all_informed and any(_is_informed(words, inputs(False, logins)) for _, words in external)
    found = inputs(answers, answers or (all_informed and logins))
    uninformed = frozenset(name for name, words in external if not _is_informed(words, found))
    return Helpers(any_password, answers or not external, uninformed)


def _is_external(statement: Statement) -> bool:
    return statement.directive == "external_acl_type" and len(statement.words) > 1


def _uses_an_identd(statement: Statement) -> bool:
    words = statement.words
    return words[:2] == ("ident_lookup_access", "allow") or (
        statement.directive == "acl" and words[2:3] in (("ident",), ("ident_regex",))
    )


def _creates_notes(statement: Statement) -> bool:
    """Return whether *statement* creates notes that do not come from an external helper."""
    words = statement.words
    return statement.directive in ("note", "url_rewrite_program", "store_id_program") or (
        statement.directive == "acl" and len(words) > 2 and words[2].startswith("annotate_")
    )


def _is_informed(words: Sequence[str], inputs: _IdentifyingInputs) -> bool:
    """Return whether an external_acl_type, with these *words* after its name, passes information that identifies the
    client, and its helper does not accept every client."""
    after_options = list(dropwhile(_HELPER_OPTION.fullmatch, words))
    codes = list(takewhile(lambda word: word.startswith("%"), after_options))
    accepts_all = any(_ACCEPTS_ALL.fullmatch(word) for word in after_options[len(codes) :])
    return any(_identifies(code, inputs, accepts_all) for code in codes)


def _identifies(word: str, inputs: _IdentifyingInputs, accepts_all: bool) -> bool:
    found = _CODE_WORD.fullmatch(word)
    if found is None:
        return False
    code, argument = found["code"], found["before"] or found["after"]
    if accepts_all:
        return inputs.logins and code in _LOGIN_REQUESTS
    if code == "un":
        return inputs.logins and inputs.names
    if code in _ADDRESS_CODES:
        return inputs.addresses
    if code == ">A":
        return inputs.host_names
    if code == "note":
        return argument is not None and inputs.notes
    if code in _ANSWER_CODES:
        return inputs.answers
    if _CLIENT_CODES.fullmatch(code):
        return inputs.logins or code not in _LOGIN_CODES
    if argument is None:
        return code in (">h", ">ha")
    return bool(_HEADER_CODES.fullmatch(code)) and not _UNIDENTIFYING_FIELDS.fullmatch(argument)
