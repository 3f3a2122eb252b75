# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the iPhone profile: it is a property list with the keys of Apple's reference."""

from __future__ import annotations

import plistlib
import re
from typing import Any

from portal_settings import ONBOARDING, onboarding

from mptcp_portal.profile import has_profile, profile

WIFI_AND_APN = "profile: {wifi: Home, apn: internet.example}"
PAYLOAD = {"PayloadType", "PayloadVersion", "PayloadIdentifier", "PayloadUUID", "PayloadDisplayName"}
"""Keys of every payload ("Device Management", TopLevel and CommonPayloadKeys)."""


def read(*lines: str, base: str = ONBOARDING) -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(profile(onboarding(*lines, base=base)), fmt=plistlib.FMT_XML)
    return found


def test_profile_sets_the_proxy_for_wifi_and_mobile_network() -> None:
    found = read(WIFI_AND_APN)
    assert found["PayloadType"] == "Configuration"
    wifi, cellular = found["PayloadContent"]
    assert wifi["PayloadType"] == "com.apple.wifi.managed"
    assert {key: value for key, value in wifi.items() if key not in PAYLOAD} == {
        "SSID_STR": "Home",
        "AutoJoin": True,
        "EncryptionType": "Any",
        "ProxyType": "Manual",
        "ProxyServer": "192.168.1.10",
        "ProxyServerPort": 3128,
    }
    assert cellular["PayloadType"] == "com.apple.cellular"
    assert cellular["APNs"] == [{"Name": "internet.example", "ProxyServer": "192.168.1.10", "ProxyPort": 3128}]


def test_each_payload_has_the_keys_that_apple_requires() -> None:
    found = read(WIFI_AND_APN)
    payloads = [found, *found["PayloadContent"]]
    for each in payloads:
        assert set(each) >= PAYLOAD
        assert each["PayloadVersion"] == 1
        assert re.fullmatch(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}", each["PayloadUUID"])
        assert re.fullmatch(r"[A-Za-z0-9.-]+", each["PayloadIdentifier"])
    for key in ("PayloadUUID", "PayloadIdentifier"):
        assert len({each[key] for each in payloads}) == 3


def test_profile_identifiers_depend_only_on_the_proxy() -> None:
    """The identifiers do not depend on other settings; another proxy's profile has other identifiers."""

    def names(found: dict[str, Any]) -> list[tuple[str, str]]:
        return [(each["PayloadIdentifier"], each["PayloadUUID"]) for each in (found, *found["PayloadContent"])]

    assert names(read(WIFI_AND_APN)) == names(read("profile: {wifi: Other, apn: other}"))
    other_proxy = ONBOARDING.replace("address: 192.168.1.10", 'address: "fd00::1"')
    assert not set(names(read(WIFI_AND_APN))) & set(names(read(WIFI_AND_APN, base=other_proxy)))


def test_settings_without_a_network_have_no_profile() -> None:
    assert not has_profile(onboarding())
    assert has_profile(onboarding(WIFI_AND_APN))
    assert [each["PayloadType"] for each in read("profile: {apn: x}")["PayloadContent"]] == ["com.apple.cellular"]
