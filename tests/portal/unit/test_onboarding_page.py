# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the page for new clients: it depends only on the settings, not on what a client sends."""

from __future__ import annotations

import plistlib
import re

import pytest
from portal_settings import ONBOARDING, onboarding
from starlette.testclient import TestClient

from mptcp_portal.onboarding_page import onboarding_app
from mptcp_portal.proxy_pac import proxy_pac

ALL_OPTIONS = ("direct_fallback: true", "profile: {wifi: Home, apn: internet}")
PATHS = ("/", "/proxy.pac", "/wpad.dat", "/qr.svg", "/proxy.mobileconfig", "/portal.css", "/icon.svg")


def client(*lines: str, base: str = ONBOARDING, host: str = "testserver") -> TestClient:
    return TestClient(onboarding_app(onboarding(*lines, base=base)), base_url=f"http://{host}")


def test_page_shows_how_to_use_the_proxy() -> None:
    text = client(*ALL_OPTIONS).get("/").text
    for words in (
        "192.168.1.10",
        "3128",
        "Proxy at home",
        "http://192.168.1.10:3181/proxy.pac",
        "check.mptcp.internal",
    ):
        assert words in text
    summaries = re.findall(r"<summary>(.*?)</summary>", text)
    assert summaries == [
        "iPhone, iPad", "Android", "Firefox", "Chromium, Chrome", "Linux", "Raspberry Pi OS", "OpenWrt",
    ]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_host_header_does_not_change_the_page(path: str) -> None:
    expected = client(*ALL_OPTIONS).get(path)
    assert expected.status_code == 200
    for headers in ({"host": "evil.example"}, {"x-forwarded-host": "evil.example", "forwarded": "host=evil.example"}):
        found = client(*ALL_OPTIONS, host="evil.example").get(path, headers=headers)
        assert found.content == expected.content
        assert "evil" not in found.text


@pytest.mark.parametrize("path", [f"{each}/" for each in PATHS[1:]])
def test_extra_slash_causes_no_redirect_to_the_host_header(path: str) -> None:
    """Defect: an extra slash caused a redirect to the host of the request's Host header."""
    found = client(*ALL_OPTIONS, host="evil.example").get(path, follow_redirects=False)
    assert found.status_code == 404
    assert "location" not in found.headers


def test_proxy_pac_and_wpad_dat_are_the_same() -> None:
    pac, wpad = client().get("/proxy.pac"), client().get("/wpad.dat")
    assert pac.text == wpad.text == proxy_pac(onboarding())
    assert pac.headers["content-type"].split(";")[0] == "application/x-ns-proxy-autoconfig"


def test_profile_has_its_content_type() -> None:
    found = client(*ALL_OPTIONS).get("/proxy.mobileconfig")
    assert found.headers["content-type"] == "application/x-apple-aspen-config"
    assert plistlib.loads(found.content)["PayloadDisplayName"] == "Proxy at home"


def test_page_without_a_network_has_no_profile() -> None:
    assert client().get("/proxy.mobileconfig").status_code == 404
    assert "mobileconfig" not in client().get("/").text


def test_page_loads_nothing_from_other_sites() -> None:
    page = client(*ALL_OPTIONS).get("/")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert set(loaded) == {
        "portal.css", "icon.svg", "qr.svg", "proxy.mobileconfig", "http://check.mptcp.internal/",
    }  # fmt: skip
    assert not re.search(r"<script|<style|style=", page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "set-cookie" not in page.headers


def test_configured_names_are_escaped() -> None:
    base = ONBOARDING.replace("Proxy at home", "'<b>mine</b>'")
    page = client("profile: {wifi: '<i>x</i>'}", base=base).get("/").text
    assert "<b>" not in page
    assert "<i>" not in page


def test_qr_code_depends_on_the_pages_address() -> None:
    """Another address gives another picture. The browser test decodes it."""
    first, second = (client(*lines).get("/qr.svg").text for lines in ((), ("url: http://proxy.example.net/",)))
    assert first.startswith("<?xml")
    assert first != second
