# SPDX-License-Identifier: GPL-2.0-or-later
"""The configuration profile for iOS and iPadOS: a proxy for one Wi-Fi network, and for the mobile network. Pure.

The keys are from Apple's "Device Management" reference: com.apple.wifi.managed and com.apple.cellular. A profile
replaces an installed one with the same PayloadIdentifier, so identifiers and UUIDs are derived from the profile's
purpose.
"""

from __future__ import annotations

import plistlib
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from mptcp_portal.settings import Onboarding

MEDIA_TYPE = "application/x-apple-aspen-config"
IDENTIFIER = "internal.mptcp.portal"


def has_profile(onboarding: Onboarding) -> bool:
    """Return whether a profile would have any content."""
    return onboarding.wifi is not None or onboarding.apn is not None


def profile(onboarding: Onboarding) -> bytes:
    """Return the profile as an XML property list."""
    payloads = []
    if onboarding.wifi is not None:
        payloads.append(_payload("com.apple.wifi.managed", "wifi", onboarding) | _wifi(onboarding))
    if onboarding.apn is not None:
        payloads.append(_payload("com.apple.cellular", "cellular", onboarding) | _cellular(onboarding))
    document = _payload("Configuration", "profile", onboarding) | {
        "PayloadContent": payloads,
        "PayloadDescription": f"Uses the proxy {onboarding.proxy}. Remove the profile to stop.",
        "PayloadRemovalDisallowed": False,
    }
    return plistlib.dumps(document, sort_keys=True)


def _payload(kind: str, part: str, onboarding: Onboarding) -> dict[str, Any]:
    identifier = f"{IDENTIFIER}.{onboarding.proxy_address.replace(':', '-')}.{part}"
    return {
        "PayloadType": kind,
        "PayloadVersion": 1,
        "PayloadIdentifier": identifier,
        "PayloadUUID": str(uuid5(NAMESPACE_URL, identifier)).upper(),
        "PayloadDisplayName": onboarding.name,
    }


def _wifi(onboarding: Onboarding) -> dict[str, Any]:
    # The proxy is not set by a PAC: if iOS cannot fetch the PAC, it silently bypasses the proxy.
    # The profile does not contain the password, because the whole network can read it. The phone asks for the password.
    return {
        "SSID_STR": onboarding.wifi,
        "AutoJoin": True,
        "EncryptionType": "Any",
        "ProxyType": "Manual",
        "ProxyServer": onboarding.proxy_address,
        "ProxyServerPort": onboarding.proxy_port,
    }


def _cellular(onboarding: Onboarding) -> dict[str, Any]:
    return {
        "APNs": [{"Name": onboarding.apn, "ProxyServer": onboarding.proxy_address, "ProxyPort": onboarding.proxy_port}],
    }
