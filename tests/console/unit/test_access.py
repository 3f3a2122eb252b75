# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tokens, cookies and host names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_console.access import COOKIE_SECONDS, HostNames, Token, token_problem

TEXT = "3f0c1d2e4b5a69788796a5b4c3d2e1f0"
NOW = 1_795_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("short", "5 characters"),
        ("a" * 600, "600 characters"),
        ("a b" * 10, "spaces"),
        ("ü" * 30, "ASCII"),
    ],
)
def test_token_problem_names_the_mistake(text: str, expected: str) -> None:
    assert expected in (token_problem(text) or "")


def test_authorization_header_must_carry_the_exact_token() -> None:
    token = Token(TEXT)
    assert token.is_in_header(f"Bearer {TEXT}")
    assert token.is_in_header(f"bearer {TEXT}")
    for other in (
        "",
        "Bearer",
        f"Basic {TEXT}",
        f"Bearer {TEXT}x",
        f"Bearer {TEXT[:-1]}",
        f"Bearer {TEXT.upper()}",
        "Bearer ü",
    ):
        assert not token.is_in_header(other), other


def test_cookie_is_valid_only_in_its_time_and_for_its_token() -> None:
    token = Token(TEXT)
    cookie = token.cookie(NOW)
    assert token.is_valid_cookie(cookie, NOW)
    assert token.is_valid_cookie(cookie, NOW + COOKIE_SECONDS - 1)
    assert not token.is_valid_cookie(cookie, NOW + COOKIE_SECONDS)
    assert not Token(TEXT + "x").is_valid_cookie(cookie, NOW)
    assert TEXT not in cookie


def test_cookie_with_a_changed_expiry_is_invalid() -> None:
    token = Token(TEXT)
    expiry, _, signature = token.cookie(NOW).partition(".")
    assert not token.is_valid_cookie(f"{int(expiry) + 1}.{signature}", NOW)
    assert not token.is_valid_cookie(f"{expiry}0.{signature}", NOW)


@given(st.text())
def test_arbitrary_text_is_neither_token_nor_cookie(text: str) -> None:
    token = Token(TEXT)
    assert not token.matches(text)
    assert not token.is_in_header(text)
    assert not token.is_valid_cookie(text, NOW)


LOOPBACK_NAMES = ["localhost", "LOCALHOST:8610", "127.0.0.1", "127.0.0.1:9999", "[::1]:8610", "localhost."]
FOREIGN_NAMES = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "",
    ":",
    "[::1",
    "a b",
    "192.0.2.7",
    "[fe80::1]",
]


@pytest.mark.parametrize("host", LOOPBACK_NAMES)
def test_loopback_listener_allows_names_of_loopback(host: str) -> None:
    assert HostNames("127.0.0.1").accepts(host)


@pytest.mark.parametrize("host", FOREIGN_NAMES)
def test_loopback_listener_refuses_other_names(host: str) -> None:
    assert not HostNames("127.0.0.1").accepts(host)


def test_other_listener_allows_its_address_and_configured_names() -> None:
    names = HostNames("192.0.2.7", ["Proxy.lan"])
    assert names.accepts("192.0.2.7:8610")
    assert names.accepts("proxy.lan:8610")
    for host in ("localhost", "127.0.0.1", "192.0.2.8", "proxy.lan.evil.example", "evil.example", "[proxy.lan]"):
        assert not names.accepts(host), host


@pytest.mark.parametrize("listening", ["0.0.0.0", "::"])
def test_wildcard_listener_allows_addresses_configured_names_and_localhost(listening: str) -> None:
    """Defect: the console refused localhost there, which an ssh tunnel uses."""
    names = HostNames(listening, ["proxy.lan"])
    for host in ("192.0.2.7", "[2001:db8::1]:8610", "127.0.0.1", "proxy.lan", "localhost:8610", "localhost"):
        assert names.accepts(host), host
    for host in ("evil.example", "localhost.evil.example"):
        assert not names.accepts(host), host
