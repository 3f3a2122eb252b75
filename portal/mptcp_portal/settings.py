# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings file, portal.yaml: the portal's listening addresses, and its information for clients. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mptcp_common.endpoints import PROXY_PORT, address_and_port
from mptcp_common.fields import Parsed, Port, Section, editor_schema
from mptcp_common.paths import AbsoluteFileName, SocketName
from mptcp_common.problems import DocumentError, Problem, shown
from mptcp_common.validate import load, problem_at
from mptcp_common.yaml_document import text_of

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-portal/portal.yaml")
CHECK_NAME: Final = "check.mptcp.internal"
"""The reserved name of the check page. ICANN reserved .internal for private use (resolution of 29 July 2024): public
name servers do not resolve it, no certificate and no HSTS list names it, and it cannot be registered."""

Network = IPv4Network | IPv6Network
_HOST_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BROADCAST: Final = IPv4Address("255.255.255.255")
_HOST: Final = re.compile(rf"{_HOST_LABEL}(?:\.{_HOST_LABEL})*", re.ASCII)
_PAGE: Final = re.compile(
    r"https?://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?(?:/[A-Za-z0-9._~/-]*)?", re.ASCII
)
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_APN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,98}[A-Za-z0-9])?", re.ASCII)
_MAX_SSID_BYTES: Final = 32
"""Maximum length of an SSID (IEEE 802.11, 9.4.2.2)."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address and port to listen on."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def conflicts_with(self, other: ListenAddress) -> bool:
        """Return whether two programs cannot listen on both; either may mean all addresses of the host."""
        ours, theirs = ip_address(self.address), ip_address(other.address)
        if self.port != other.port:
            return False
        # [::] includes all IPv4 addresses; 0.0.0.0 includes no IPv6 address.
        if any(each.version == 6 and each.is_unspecified for each in (ours, theirs)):
            return True
        return ours.version == theirs.version and (ours == theirs or ours.is_unspecified or theirs.is_unspecified)


def _names_one_host(address: IPv4Address | IPv6Address) -> bool:
    """Return whether *address* alone identifies a host. A multicast address does not, and a link-local IPv6 address
    does not without an interface."""
    return not (address.is_multicast or (address.version == 6 and address.is_link_local))


def _listen(value: object) -> ListenAddress:
    listen = ListenAddress(*address_and_port(value, "192.168.1.10:3181", "[fd00::1]:3181"))
    address = ip_address(listen.address)
    if not _names_one_host(address) or getattr(address, "ipv4_mapped", None):
        raise ValueError(
            f"{shown(value)} is link-local, multicast, or IPv4 written as IPv6: the portal cannot listen on it; write "
            "another address of this host"
        )
    return listen


def _loopback(value: object) -> ListenAddress:
    listen = _listen(value)
    if not ip_address(listen.address).is_loopback or ":" in listen.address:
        raise ValueError(
            f"{shown(value)} is not on this host's loopback; write 127.0.0.1 and a port: only Squid may connect"
        )
    return listen


def _host(value: object) -> str:
    # Refuse a zone (fe80::1%eth0): it is valid only on this host, and may contain any text.
    if isinstance(value, str) and "%" not in value:
        try:
            # On a client, 0.0.0.0, :: and loopback addresses are the client itself.
            address = ip_address(value)
            if not (address.is_unspecified or address.is_loopback or address == _BROADCAST) and _names_one_host(
                address
            ):
                return str(address)
        except ValueError:
            # Browsers parse a name whose last label is a number as an IPv4 address, or reject it (WHATWG URL).
            last = value.rpartition(".")[2].lower()
            if len(value) <= 253 and _HOST.fullmatch(value) and not (last.isdigit() or last == "localhost"):
                return value.lower()
    raise ValueError(
        f"{shown(value)} is not an address or name of a host that clients can reach; "
        'write e.g. "192.168.1.10" or "proxy.example.net"'
    )


def _direct(value: object) -> Network | str:
    """Return a network, or a domain: ``example.net`` includes all its subdomains."""
    if isinstance(value, str) and "%" not in value:
        try:
            return ip_network(value)
        except ValueError:
            bare = value.removeprefix("*.").removeprefix(".").lower()
            if _HOST.fullmatch(bare) and not bare.rpartition(".")[2].isdigit():
                return bare
    raise ValueError(f'{shown(value)} is neither a network nor a domain; write e.g. "203.0.113.0/24" or "example.net"')


def _https(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https://[!-~]{1,200}", value):
        raise ValueError(f'{shown(value)} is not an https address; write e.g. "https://portal.example.net/"')
    return value


def _url(value: object) -> str:
    """Return the page's address. File names are appended to it, and shell commands on the page contain it."""
    found = _PAGE.fullmatch(value) if isinstance(value, str) and len(value) <= 200 else None
    try:
        if found is not None and 0 < int(found["port"] or 80) < 65536:
            host = found["host"]
            _host(str(IPv6Address(host[1:-1])) if host.startswith("[") else host)
            return found[0]
    except ValueError:
        pass
    raise ValueError(
        f'{shown(value)} is not a plain web address (no "?" or "#"); write e.g. "http://proxy.example.net/"'
    )


def _line(max_bytes: int) -> Parsed:
    """Return the annotation for one line of text of at most *max_bytes* bytes."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError(f"{shown(value)} is not one line of text; put it in quotes")
        if len(value.encode()) > max_bytes:
            raise ValueError(f"{shown(value)} is too long; {max_bytes} bytes are allowed")
        return value

    return Parsed(parse, {"type": "string", "minLength": 1, "maxLength": max_bytes})


def _matching(pattern: re.Pattern[str], expected: str) -> Parsed:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{shown(value)} is not {expected}")
        return value

    return Parsed(parse, {"type": "string", "pattern": f"^(?:{pattern.pattern})$"})


_TEXT: Final = {"type": "string", "minLength": 1}
Listen = Annotated[ListenAddress, Parsed(_listen, _TEXT)]


class CheckSection(Section):
    """The check page, which clients reach only through the proxy."""

    listen: Annotated[ListenAddress, Parsed(_loopback, _TEXT)] = Field(
        default=ListenAddress("127.0.0.1", 3180),
        description="Where Squid gets the check page: the address and port of cache_peer in squid.conf.",
        examples=["127.0.0.1:3180"],
        json_schema_extra={"default": "127.0.0.1:3180"},
    )
    squid_user: Annotated[str, _matching(_USER, "the name of a user; write e.g. proxy")] = Field(
        default="proxy",
        description="cache_effective_user of squid.conf. No other user of this host gets an answer.",
        examples=["proxy"],
    )


class ProxySection(Section):
    """The proxy, as described to clients."""

    address: Annotated[str, Parsed(_host, _TEXT)] = Field(
        description="Address or name of the proxy for clients.", examples=["192.168.1.10"]
    )
    port: Port = Field(default=3128, description="http_port of squid.conf.")
    name: Annotated[str, _line(60)] = Field(
        default="Multipath proxy", description="Its name in pages and profiles.", examples=["Proxy at home"]
    )


class ProfileSection(Section):
    """A configuration profile for iPhones and iPads; it needs a Wi-Fi network or an APN."""

    wifi: Annotated[str, _line(_MAX_SSID_BYTES)] | None = Field(
        default=None,
        description="Name (SSID) of the Wi-Fi network on which to use the proxy. The phone asks for its password.",
        examples=["Home"],
    )
    apn: Annotated[str, _matching(_APN, 'the name of an APN; write e.g. "internet"')] | None = Field(
        default=None,
        description="Access point name of the mobile operator, if the proxy can be reached from there.",
        examples=["internet"],
    )


class OnboardingSection(Section):
    """The page that explains how to use the proxy, with proxy.pac, wpad.dat and the profile."""

    listen: Listen = Field(
        description="An address of this host on the clients' network, and a port.", examples=["192.168.1.10:3181"]
    )
    url: Annotated[str, Parsed(_url, _TEXT)] | None = Field(
        default=None,
        description="The page's address if it differs from `listen`: a name, or a server in front.",
        examples=["http://proxy.example.net/"],
    )
    direct_fallback: bool = Field(
        default=False,
        description="Whether browsers may bypass the proxy while it does not answer (DIRECT in proxy.pac).",
    )
    direct: list[Annotated[Network | str, Parsed(_direct, _TEXT)]] = Field(
        default=[],
        description="Networks and domains that clients reach without the proxy, in addition to local names and "
        "private addresses.",
        examples=[["203.0.113.0/24", "example.net"]],
    )
    profile: ProfileSection = Field(default=ProfileSection(), json_schema_extra={"default": {}})


class CaptiveSection(Section):
    """The captive portal API (RFC 8908): no client is captive, and clients learn their remaining volume."""

    listen: Listen = Field(description="An address of this host, and a port.", examples=["192.168.1.10:3182"])
    certificate: AbsoluteFileName | None = Field(
        default=None,
        description="Certificate chain (PEM). The API needs HTTPS.",
        examples=["/etc/ssl/portal.pem"],
    )
    key: AbsoluteFileName | None = Field(
        default=None, description="Its private key (PEM).", examples=["/etc/ssl/private/portal.pem"]
    )
    behind: list[Annotated[Network | str, Parsed(_direct, _TEXT)]] = Field(
        default=[],
        description="Addresses of the HTTPS server in front of this one, which sends the client's address in "
        "X-Forwarded-For. Replaces the certificate.",
        examples=[["127.0.0.1/32"]],
    )
    user_portal_url: Annotated[str, Parsed(_https, _TEXT)] | None = Field(
        default=None,
        description="A page (https) that systems show to their users.",
        examples=["https://proxy.example.net/"],
    )


class PortalSection(Section):
    """Settings of mptcp-portal: the check page, the page for new clients, the captive portal API."""

    status_socket: SocketName = Field(
        default=Path("/run/mptcp-throttler/status.sock"),
        description="The throttler's status socket.",
        examples=["/run/mptcp-throttler/status.sock"],
    )
    check: CheckSection = Field(default=CheckSection(), json_schema_extra={"default": {}})
    proxy: ProxySection | None = Field(default=None)
    onboarding: OnboardingSection | None = Field(default=None)
    captive_portal: CaptiveSection | None = Field(default=None)


@dataclass(frozen=True, slots=True)
class Onboarding:
    """The information for new clients, checked."""

    proxy_address: str
    proxy_port: int
    name: str
    listen: ListenAddress
    url: str
    """The page's address, with a trailing slash. It never comes from a request."""
    direct_fallback: bool
    direct: tuple[Network | str, ...]
    wifi: str | None
    apn: str | None

    @property
    def proxy(self) -> str:
        """ADDRESS:PORT of the proxy, as in the settings of a browser."""
        host = self.proxy_address
        return f"[{host}]:{self.proxy_port}" if ":" in host else f"{host}:{self.proxy_port}"


@dataclass(frozen=True, slots=True)
class Captive:
    """The captive portal API, checked. Either it has both files, or a web server with HTTPS is in front."""

    listen: ListenAddress
    certificate: Path | None
    key: Path | None
    behind: tuple[Network, ...]
    user_portal_url: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings with which the portal runs."""

    status_socket: Path
    check: ListenAddress
    squid_user: str
    squid_port: int
    """Squid's port on this host."""
    onboarding: Onboarding | None
    captive: Captive | None
    source: str


def load_settings(text: str, source: str) -> Settings:
    """Return the settings in *text*; raise DocumentError with all mistakes. *source*: name of the file, for
    messages."""
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        text = "{}"  # everything is commented out: use the defaults
    section, document = load(PortalSection, text, source)
    mistakes: list[Problem] = []

    def complain(path: tuple[str | int, ...], message: str) -> None:
        mistakes.append(problem_at(document, path, None, message, document.key_position(path)))

    if section.onboarding is not None and section.proxy is None:
        complain(("onboarding",), "needs the section proxy, with the proxy's address")
    page = section.onboarding
    if page is not None and page.url is None and ip_address(page.listen.address).is_unspecified:
        message = f"{page.listen.address} means all addresses of this host; write one of them, or add url"
        complain(("onboarding", "listen"), message)
    captive = section.captive_portal
    if captive is not None:
        file_count = (captive.certificate is not None) + (captive.key is not None)
        if file_count == 1:
            complain(("captive_portal",), "certificate and key belong together; write both, or neither")
        if file_count == 0 and not captive.behind:
            message = "write certificate and key, or `behind` with the address of the web server in front"
            complain(("captive_portal",), f"RFC 8908 requires HTTPS: {message}")
        if file_count and captive.behind:
            complain(("captive_portal", "behind"), "write either certificate and key, or `behind`, not both")
        for index, each in enumerate(captive.behind):
            if isinstance(each, str):
                complain(("captive_portal", "behind", index), f"{shown(each)} is not an address; a name is not allowed")
    in_use: dict[str, ListenAddress] = {}
    if section.proxy is not None and (listen := _proxy_listen(section.proxy.address, section.proxy.port)) is not None:
        in_use["the proxy"] = listen
    for key, part in (("check", section.check), ("onboarding", section.onboarding), ("captive_portal", captive)):
        if part is None:
            continue
        if user := next((name for name, listen in in_use.items() if listen.conflicts_with(part.listen)), None):
            complain((key, "listen"), f"{shown(str(part.listen))} is used by {user}; write another port")
        in_use[key] = part.listen
    if mistakes:
        raise DocumentError(mistakes)
    return Settings(
        status_socket=section.status_socket,
        check=section.check.listen,
        squid_user=section.check.squid_user,
        squid_port=(section.proxy.port if section.proxy else PROXY_PORT),
        onboarding=_make_onboarding(section),
        captive=None if captive is None else _captive(captive),
        source=source,
    )


def _proxy_listen(host: str, port: int) -> ListenAddress | None:
    """Return the address on which the proxy listens; None if *host* is a name."""
    try:
        return ListenAddress(str(ip_address(host)), port)
    except ValueError:
        return None


def _make_onboarding(section: PortalSection) -> Onboarding | None:
    page, proxy = section.onboarding, section.proxy
    if page is None or proxy is None:
        return None
    url = page.url or f"http://{page.listen}/"
    return Onboarding(
        proxy_address=proxy.address,
        proxy_port=proxy.port,
        name=proxy.name,
        listen=page.listen,
        url=url if url.endswith("/") else url + "/",
        direct_fallback=page.direct_fallback,
        direct=tuple(page.direct),
        wifi=page.profile.wifi,
        apn=page.profile.apn,
    )


def _captive(section: CaptiveSection) -> Captive:
    behind = tuple(each for each in section.behind if not isinstance(each, str))
    return Captive(section.listen, section.certificate, section.key, behind, section.user_portal_url)


def read_settings(path: Path) -> Settings:
    """Return the settings in *path*. Raises DocumentError with all problems of the file."""
    return load_settings(text_of(path), str(path))


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings file."""
    return editor_schema(PortalSection)
