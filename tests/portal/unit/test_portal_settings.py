# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for portal.yaml: the meaning of its keys, and the message and line of each mistake."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from portal_settings import ONBOARDING, onboarding

from mptcp_common.problems import DocumentError
from mptcp_common.schema_file import schema_text
from mptcp_portal.schemas import NAME
from mptcp_portal.settings import ListenAddress, Settings, load_settings, read_settings, settings_schema

CONF = Path(__file__).parents[3] / "conf"
DEFAULTS = Settings(
    Path("/run/mptcp-throttler/status.sock"), ListenAddress("127.0.0.1", 3180), "proxy", 3128, None, None, "portal.yaml"
)
CAPTIVE = "captive_portal:\n  listen: 192.168.1.10:3182\n"
ON_ALL_ADDRESSES = ONBOARDING.replace("192.168.1.10:", "0.0.0.0:")


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_settings(text, "portal.yaml")
    return str(caught.value).splitlines()


def test_shipped_file_has_the_defaults() -> None:
    text = (CONF / "portal.yaml").read_text()
    assert load_settings(text, "portal.yaml") == DEFAULTS
    assert load_settings("", "portal.yaml") == DEFAULTS
    assert text.startswith("# yaml-language-server: $schema=portal.schema.json\n")


def test_commented_keys_of_the_shipped_file_are_valid() -> None:
    lines = (CONF / "portal.yaml").read_text().splitlines()
    keys = [
        line[2:] for line in lines[1:] if line.startswith("# ") and (line[2] == " " or line.split(" ")[1].endswith(":"))
    ]
    found = load_settings("\n".join(keys), "portal.yaml")
    assert found.onboarding is not None
    assert found.onboarding.wifi == "Home"
    assert found.onboarding.proxy == "192.168.1.10:3128"
    assert found.captive is not None
    assert found.status_socket == DEFAULTS.status_socket
    assert found.check == DEFAULTS.check


def test_shipped_schema_matches_the_code() -> None:
    assert (CONF / NAME).read_text() == schema_text(settings_schema())


def test_page_url_is_configured_or_has_the_listening_address() -> None:
    assert onboarding().url == "http://192.168.1.10:3181/"
    assert onboarding("url: http://proxy.example.net").url == "http://proxy.example.net/"
    for url in ("https://proxy.example.net:8443/how/to/", "http://[2001:db8::1]:3181/", "http://192.168.1.10/"):
        assert onboarding(f"url: '{url}'").url == url


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("check: {listen: 0.0.0.0:3180}", 1, "loopback"),
        ("check: {listen: 127.0.0.1}", 1, "not an address and port"),
        ("check: {listen: 127.0.0.1:99999}", 1, "not an address and port"),
        # Otherwise only the kernel would notice this mistake, when the service starts.
        (ONBOARDING.replace("192.168.1.10:3181", "'[fe80::1]:3181'"), 3, "is link-local, multicast, or IPv4"),
        (ONBOARDING.replace("192.168.1.10:3181", "'[::ffff:192.168.1.10]:3181'"), 3, "IPv4 written as IPv6"),
        (ONBOARDING.replace("192.168.1.10:3181", "224.0.0.1:3181"), 3, "multicast"),
        (ON_ALL_ADDRESSES.replace("3181", "3180") + "  url: http://x/", 3, "used by check"),
        ("check:\n  squid_user: no user", 2, "name of a user"),
        ("status_socket: status.sock", 1, "absolute"),
        (f"status_socket: /{'x' * 108}", 1, "too long"),
        ("onboarding: {listen: 10.0.0.1:3181}", 1, "section proxy"),
        ("proxy: {address: 'a b'}", 1, "not an address or name"),
        ("proxy: {address: 1.2.3}", 1, "not an address or name"),
        # A zone may contain any text, which would end up in proxy.pac and in shell commands.
        ("proxy: {address: 'fe80::1%eth0'}", 1, "not an address or name"),
        ("proxy: {address: 'fe80::1%x; PROXY 192.0.2.6:1'}", 1, "not an address or name"),
        ("proxy: {address: '[fe80::1]'}", 1, "not an address or name"),
        ("proxy: {address: 'a\"; alert(1); \"'}", 1, "not an address or name"),
        ("proxy: {address: '$(reboot)'}", 1, "not an address or name"),
        ("proxy: {address: 'x.example.net:80'}", 1, "not an address or name"),
        # The script, the profile and the QR code would contain this address, which clients cannot reach.
        ("proxy: {address: 0.0.0.0}", 1, "not an address or name"),
        ("proxy: {address: '::'}", 1, "not an address or name"),
        ("proxy: {address: 127.0.0.1}", 1, "that clients can reach"),
        ("proxy: {address: '::1'}", 1, "that clients can reach"),
        ("proxy: {address: localhost}", 1, "that clients can reach"),
        ("proxy: {address: 255.255.255.255}", 1, "that clients can reach"),
        (ONBOARDING.replace("3181", "3128"), 3, "used by the proxy"),
        (ON_ALL_ADDRESSES.replace("3181", "3128") + "  url: http://x/", 3, "used by the proxy"),
        ("proxy: {address: 'fe80::1'}", 1, "not an address or name"),
        (ONBOARDING + "  url: 'http://[fe80::1]:3181/'", 4, "web address"),
        (ONBOARDING + "  url: http://0.0.0.0:3181/", 4, "web address"),
        (ON_ALL_ADDRESSES, 3, "write one of them, or add url"),
        (ON_ALL_ADDRESSES.replace("0.0.0.0", "'[::]").replace("3181", "3181'"), 3, "write one of them, or add url"),
        ("proxy: {adress: 10.0.0.1}", 1, 'did you mean "address"'),
        ("proxy: {address: 10.0.0.1, port: 0}", 1, "out of range"),
        (ONBOARDING + "  direct: [example..net]", 4, "neither a network nor a domain"),
        (ONBOARDING + "  direct: [10.0.0.1/8]", 4, "neither a network nor a domain"),
        (ONBOARDING + "  direct_fallback: 1", 4, "write true or false"),
        (ONBOARDING + "  url: ftp://x/", 4, "web address"),
        (ONBOARDING + "  url: 'http://[192.168.1.10]/'", 4, "web address"),
        (ONBOARDING + "  url: http://me@x/", 4, "web address"),
        (ONBOARDING + "  url: http://x:99999/", 4, "web address"),
        (ONBOARDING + "  url: http://x/?a", 4, "web address"),
        (ONBOARDING + "  url: http://x/$(reboot)/", 4, "web address"),
        (ONBOARDING + "  url: http://x/';reboot;'/", 4, "web address"),
        (ONBOARDING + "  url: 'http://[::1%25x;y]/'", 4, "web address"),
        (ONBOARDING + "  direct: ['fe80::%a;b/64']", 4, "neither a network nor a domain"),
        (ONBOARDING + "  direct: ['a\"b.example']", 4, "neither a network nor a domain"),
        (ONBOARDING + f"  profile:\n    wifi: {'x' * 33}", 5, "32 bytes"),
        (ONBOARDING + "  profile:\n    apn: 'a b'", 5, "APN"),
        (CAPTIVE, 1, "HTTPS"),
        (CAPTIVE + "  certificate: /x", 1, "belong together"),
        (CAPTIVE + "  certificate: /x\n  key: /y\n  behind: [127.0.0.1/32]", 5, "either certificate"),
        (CAPTIVE + "  behind: [example.net]", 3, "a name is not allowed"),
        (CAPTIVE + "  behind: [127.0.0.1/32]\n  user_portal_url: http://x/", 4, "https"),
        (ONBOARDING + CAPTIVE.replace("3182", "3181") + "  behind: [127.0.0.1/32]", 5, "used by onboarding"),
    ],
)
def test_mistake_is_reported_with_its_line(text: str, line: int, message: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"portal.yaml:{line}: ")
    assert message in found


def test_page_on_a_wildcard_address_has_the_configured_url() -> None:
    found = load_settings(ON_ALL_ADDRESSES + "  url: http://proxy.example.net:3181\n", "portal.yaml").onboarding
    assert found is not None
    assert (str(found.listen), found.url) == ("0.0.0.0:3181", "http://proxy.example.net:3181/")


def test_same_port_on_different_addresses_is_accepted() -> None:
    ports = ONBOARDING.replace("192.168.1.10:", "'[fd00::1]:").replace("3181", "3180'")
    found = load_settings(ports + CAPTIVE.replace("3182", "3180") + "  behind: [127.0.0.1/32]", "portal.yaml")
    assert found.captive is not None
    assert found.onboarding is not None
    assert {str(found.onboarding.listen), str(found.captive.listen)} == {"[fd00::1]:3180", "192.168.1.10:3180"}


@pytest.mark.parametrize("wildcard", ["[::]", "[0::0:0]", "0.0.0.0"])
def test_wildcard_address_conflicts_with_the_same_port(wildcard: str) -> None:
    """[::] also includes every IPv4 address."""
    ports = ONBOARDING.replace("192.168.1.10:3181", f"'{wildcard}:3180'") + "  url: http://x/\n"
    (found,) = problems(ports)
    assert '3180" is used by check; write another port' in found


def test_all_mistakes_are_reported_together() -> None:
    assert len(problems("check: {listen: x}\nproxy: {address: ''}\nother: 1\n")) == 3


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read: No such file"):
        read_settings(tmp_path / "none.yaml")
    (tmp_path / "latin").write_bytes(b"proxy: \xff")
    with pytest.raises(DocumentError, match="not UTF-8"):
        read_settings(tmp_path / "latin")


@given(st.text(max_size=200))
def test_arbitrary_text_raises_only_document_errors(text: str) -> None:
    with suppress(DocumentError):
        load_settings(ONBOARDING + "  direct: [" + text + "]", "portal.yaml")
