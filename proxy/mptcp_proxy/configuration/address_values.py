# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the addresses that one value of an ``acl ... src`` or ``dst`` matches, by Squid's own grammar. Pure.

Rules (Squid 5.7 and 6.13, src/acl/Ip.cc, FactoryParse and DecodeMask; src/ip/Address.cc):

* Squid compares the beginning of a value with several forms, one after the other (sscanf(3)), and ignores the text
  after the first match: of ``10.0.0.0/8,192.168.0.0/16`` only the first half counts.
* An IPv4 address may be short, octal or hexadecimal, as for inet_aton(3): ``0/1`` is half of the address space.
* A mask is a length, or an address whose number of leading one bits is the length.
* With a length of 0, Squid uses a mask of all ones, which means one address. Only "all" and the other words in ``_ALL``
  mean all addresses.
* In a value with a slash that matches none of the forms, Squid masks the wrong bits: ``::ffff:10.0.0.0/104`` means all
  addresses.

The *certain* addresses of a value are those that it matches in every version of Squid, and the *possible* addresses
those that it matches in some version. If this module does not understand a value, all addresses are possible, and none
is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network

from .addresses import EVERYBODY, IPV4, NOBODY, Addresses
from .source import SPACE

FORMS = "ADDRESS, ADDRESS/LENGTH or FIRST-LAST, separated by blanks; for example 10.0.0.0/8 fd00::/8"
_IPV4_OFFSET = 0xFFFF << 32
"""0.0.0.0 as an IPv4-mapped IPv6 address."""
_MAX_PART_LENGTH = 255
"""Maximum number of characters of each part. Squid has a buffer of this size, and does not check for overflow."""
_ALL = ("all", "0/0", "0.0.0.0/0", "0.0.0.0/0.0.0.0", "0.0.0.0-255.255.255.255", "0.0.0.0-0.0.0.0/0")
"""Values that match all addresses of both IP versions, although some look like IPv4."""
_UNICAST = Addresses.from_prefixes(
    "1000::/4", "2000::/3", "4000::/2", "8000::/2", "c000::/3", "e000::/4", "fc00::/7", "fe80::/10"
)
"""The addresses that "ipv6" means for Squid 5 and 6."""
_V4_BLOCK = re.compile(r"([0-9.]+)(?:-([0-9.]+))?(?:/([0-9.]+))?(.*)", re.DOTALL)
_V6_BLOCK = re.compile(r"([0-9A-Fa-f:]+)(?:-([0-9A-Fa-f:]+))?(?:/([0-9]+))?(.*)", re.DOTALL)
_PART = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_NETMASK = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")
_ADDRESS_LIKE = re.compile(r"[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*(?:[-/].*)?")
_FIRST_WORD = re.compile(rf"([^{SPACE}]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AddressValue:
    """The addresses that a value matches."""

    possible: Addresses
    certain: Addresses
    remark: str = ""
    """Why the value is not understood, or which part Squid ignores; empty if neither."""


def address_value(text: str) -> AddressValue:
    """Return the addresses that the value *text* matches; none for a host name."""
    if text in _ALL:
        return _exactly(EVERYBODY)
    if text == "ipv4":  # for Squid 5 and 6, this is an address with a length of 0
        return AddressValue(IPV4.all, NOBODY)
    if text == "ipv6":
        return AddressValue(EVERYBODY - IPV4.all, _UNICAST)
    for form, parse, bits in ((_V4_BLOCK, _ipv4, 32), (_V6_BLOCK, _ipv6, 128)):
        found = form.match(text)
        if found and (found[2] or found[3] or (found[4].startswith("/") and len(found[4]) > 1)):
            return _block(found, parse, bits)
    first, rest = _word(text)
    if "/" in text:
        return _unknown("Squid would not read this as an address and a length")
    return _exactly(_single(first), _ignored_text_remark(rest))


def _exactly(addresses: Addresses, remark: str = "") -> AddressValue:
    return AddressValue(addresses, addresses, remark)


def _unknown(remark: str) -> AddressValue:
    return AddressValue(EVERYBODY, NOBODY, remark)


def _word(text: str) -> tuple[str, str]:
    found = _FIRST_WORD.match(text)
    return (found[1], found[2]) if found else (text, "")


def _ignored_text_remark(rest: str) -> str:
    """Return the remark about the *rest* after a value; empty if it is only punctuation or words, or a comment."""
    words = rest.split()
    if rest[:1] in SPACE:
        words = [word for word in words if _ADDRESS_LIKE.fullmatch(word)]
    if rest.startswith("#") or not any(each.isalnum() for word in words for each in word):
        return ""
    return f"Squid ignores {' '.join(words)!r}"


def _block(found: re.Match[str], parse: Callable[[str], int | None], bits: int) -> AddressValue:
    """Return the value of a prefix or range. *found*: its first and last address, and mask. *bits*: address size."""
    if max(len(part or "") for part in found.groups()[:3]) > _MAX_PART_LENGTH:
        return _unknown("longer than Squid's buffer")
    first, last = parse(found[1]), parse(found[2]) if found[2] else 0
    length, rest = bits, found[4]
    if found[3] is None and rest.startswith("/"):
        # If no digit follows the slash, Squid uses no mask, or for one IPv6 address, the mask of the previous value.
        if bits == 128 and found[2] is None:
            return _unknown("no length after the slash")
    elif found[3] is not None:
        parsed = _length(found[3], bits)
        if isinstance(parsed, str):
            return _unknown(parsed)
        if parsed > bits:
            return _exactly(NOBODY)  # Squid exits with an error
        length = parsed
    if first is None or last is None:
        return _unknown("not an address")
    return _between(first, last, length, bits, _ignored_text_remark(rest))


def _between(first: int, last: int, length: int, bits: int, remark: str) -> AddressValue:
    offset = _IPV4_OFFSET if bits == 32 else 0
    all_ones = (1 << bits) - 1
    if length == 0:
        return AddressValue(IPV4.all if bits == 32 else EVERYBODY, NOBODY, remark)
    host_mask = all_ones >> length
    first, last = first & ~host_mask, last & ~host_mask
    only_first = Addresses(((offset + first, offset + (first | host_mask)),))
    if last in (0, _IPV4_OFFSET):
        # For Squid, an unspecified last address (IPv4 or IPv6) means that there is no range.
        return _exactly(only_first, remark)
    if last < first:
        return AddressValue(only_first, NOBODY, remark or "the last address is lower than the first")
    return _exactly(Addresses(((offset + first, offset + (last | host_mask)),)), remark)


def _length(text: str, bits: int) -> int | str:
    """Return the length of a mask in bits, or a remark if Squid does not read the mask as intended."""
    if text.isdigit() and int(text) <= 128:
        return int(text)
    if bits == 32 and _NETMASK.fullmatch(text) and all(int(part) <= 255 for part in text.split(".")):
        mask = int(IPv4Address(text))
        ones = f"{mask:032b}".partition("0")[0]
        if mask == int(ip_network(f"0.0.0.0/{len(ones)}").netmask):
            return len(ones)
        return f"not a netmask: Squid uses the number of its leading ones as the length, here {len(ones)}"
    return "not a mask"


def _ipv4(text: str) -> int | None:
    """Return an IPv4 address as inet_aton(3) reads it: the last of up to four parts fills all remaining bytes."""
    parts = text.split(".")
    if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
        return None
    numbers = [int(part, 8 if part.startswith("0") and part.isdigit() else 0) for part in parts]
    last_bytes = 5 - len(parts)
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 1 << 8 * last_bytes:
        return None
    value = 0
    for number in numbers[:-1]:
        value = value << 8 | number
    return value << 8 * last_bytes | numbers[-1]


def _ipv6(text: str) -> int | None:
    try:
        return int(IPv6Address(text))
    except ValueError:
        return None


def _single(text: str) -> Addresses:
    if (number := _ipv4(text)) is not None:
        number += _IPV4_OFFSET
    elif (number := _ipv6(text.partition("%")[0])) is None:
        return NOBODY
    return Addresses(((number, number),))
