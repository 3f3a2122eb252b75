# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the proxy's parser reads generated configurations as Squid does: the same statements, and at least the
same addresses.

``squid -k parse`` prints each statement. It reports an unknown directive (``zzz1``) only when it executes the
directive, which shows whether a branch is executed. It warns if a value of a list contains another value, which shows
the addresses in a value (Squid 5.7 and 6.13; later versions merge such values without a message).

The generated lines contain no names of programs, and no host names, because Squid would resolve them.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from examples import examples

from mptcp_proxy.configuration.address_values import address_value
from mptcp_proxy.configuration.parse_differences import differences
from mptcp_proxy.configuration.source import Statement, all_statements, read, render
from mptcp_proxy.squid import Squid, find_squid

SEED = 8684
CONFIGURATIONS = examples(150)
"""Number of configurations. Squid parses a configuration in about 25 ms."""
VALUES = examples(250)
BATCH = 10
SERVICE = "fuzz"
_STAMP = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: kid\d+)?\| ?")


@pytest.fixture(scope="module")
def squid() -> Squid:
    found = find_squid()
    if found is None:
        pytest.skip("Squid is not installed")
    return found


def squid_output(squid: Squid, path: Path) -> list[str]:
    """Return the messages of Squid about a file, without times."""
    return [_STAMP.sub("", line) for line in squid.parse(path, SERVICE).split("\n")]


def executed_directives(lines: Sequence[str]) -> list[str]:
    """Return the unknown directives that Squid tried to execute."""
    return [found[1] for line in lines if (found := re.search(r"unrecognized: '(zzz\d+)", line))]


# ---- Statements ----------------------------------------------------------------------------------------------------

_BLANKS = [" "] * 12 + ["\t", "  ", "\v", "\f", "\u00a0", "\x1c", "\x85", "\u2003", "\u200b"]
_CONDITIONS = """
true false 1=1 1=2 010=8 010=10 0x10=16 -1=-1 +1=1 0=-0 99999999999999999999=9223372036854775807 1=01
${process_number}=0 ${process_number}=1 0${process_number}=0
""".split()  # noqa: SIM905
_INVALID_CONDITIONS = "08=8 1_0=10 0b1=1 \u0661=1 =0 1 true=true ${service_name}=1".split()  # noqa: SIM905
"""Conditions that make Squid exit."""
_COMMENTS = ["", "# zzz", "line 7", 'line 7 "/x"']
_ENDS = ["\n"] * 20 + ["\r\n", "\\\n", " \\\n", "\\ \n", "\\\r\n", " \n", "\v\n", "\r!all\n", "\0x\n", "\n\\\n", "\n\n"]


def random_configuration(rng: random.Random, parts: Sequence[Path]) -> str:
    """Return unknown statements, with branches, comments, continued lines and long lines."""
    text, depth = [], 0
    for number in range(rng.randrange(4, 16)):
        blank = rng.choice(_BLANKS)
        match rng.randrange(18):
            case 0 | 1 | 2 if depth < 3:
                condition = rng.choice(_CONDITIONS if rng.random() < 0.95 else _INVALID_CONDITIONS)
                text.append(f"if{blank}{condition.replace('=', rng.choice(['=', ' = ', '= ', ' =']))}")
                depth += 1
            case 3 | 4 if depth:
                text.append(f"else{rng.choice(['', blank, f'{blank}x'])}")
            case 5 | 6 if depth:
                text.append(f"endif{rng.choice(['', blank])}")
                depth -= 1
            case 7:
                text.append(f"{rng.choice(['', blank])}#{rng.choice(_COMMENTS)}")
            case 8 if parts:
                text.append(f"include{blank}{rng.choice(parts)}")
            case 9:
                text.append(f"#{'x' * rng.choice([100, 8100, 8183, 8184, 8185, 8191, 16380])}zzz{number}")
            case _:
                text.append(
                    f"{rng.choice(['', blank])}zzz{number}{rng.choice(['', blank, f'{blank}# x', f' a{blank}b'])}"
                )
        text.append(rng.choice(_ENDS))
    return "".join([*text, "\n", "endif\n" * depth])


def expected_directives(statements: Sequence[Statement]) -> Iterator[tuple[str, bool | None]]:
    """Yield the unknown directives, and whether Squid executes them according to the parser (None: it depends)."""
    for statement in statements:
        if found := re.match(r"zzz\d+", statement.text):
            yield found[0], statement.applies


def assert_same_statements(lines: list[str], statements: Sequence[Statement]) -> None:
    """Compare *lines*, the messages of Squid, with the statements that the parser has read."""
    assert not list(differences(lines, statements))
    # After a fatal error, Squid reads no further lines.
    processed = sum(line.startswith("Processing: ") for line in lines)
    found = executed_directives(lines)
    for name, applies in expected_directives(statements[:processed]):
        if applies is not None:
            assert (name in found) == applies, name
    assert set(found) <= {name for name, _ in expected_directives(statements)}


def test_parser_reads_the_statements_that_squid_reads(squid: Squid, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path, copy, parts = tmp_path / "squid.conf", tmp_path / "copy.conf", [tmp_path / f"part{n}.conf" for n in (1, 2)]
    compared_count = refused_count = 0
    for _ in range(CONFIGURATIONS):
        for part in parts:
            part.write_text(
                "".join(f"zzz{rng.randrange(100, 200)}\n" for _ in range(2)) + rng.choice(["", "if 1=2\nendif\n"])
            )
        with_parts = rng.random() < 0.4
        text = random_configuration(rng, parts if with_parts else [])
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        lines, problems = read(path, SERVICE)
        if any("bytes: Squid would read the part" in problem.text for problem in problems):
            refused_count += 1
            continue
        if problems and with_parts:
            refused_count += 1
            continue
        copy.write_bytes(render(lines))
        try:
            printed = squid_output(squid, copy)
            assert_same_statements(printed, list(all_statements(lines, SERVICE)))
            # The parser replaces an include with its text. Squid must read the same text.
            original = squid_output(squid, path)
            assert executed_directives(original) == executed_directives(printed)
            if not with_parts:
                assert_same_statements(original, list(all_statements(lines, SERVICE)))
        except AssertionError as error:
            error.add_note(f"input: {text!r}\nsquid: {squid_output(squid, copy)!r}")
            raise
        compared_count += 1
    assert compared_count > CONFIGURATIONS / 3
    assert refused_count > CONFIGURATIONS / 30


# ---- Addresses -----------------------------------------------------------------------------------------------------

_PROBES = """
0.0.0.1 8.8.8.8 9.255.255.255 10.0.0.1 10.200.0.1 127.0.0.1 128.0.0.1 192.168.1.1 223.1.2.3 255.255.255.254
::2 1fff::1 2000::1 2a00::1 3fff::1 fd00::1 ffff::1
""".split()  # noqa: SIM905
_V4 = """
0 0.0.0.0 10 10.0.0.0 10.1 010.0.0.0 0x0a000000 128 128.0 128.0.0.0 192.168.0.0 255.255.255.255 1.2.3.4.5 256.0.0.0
1..2 08.0.0.0 3232235777 4294967296
""".split()  # noqa: SIM905
_V6 = ":: 2000:: 2a00:: fd00:: ff:: ::ffff:0:0 ::ffff:10.0.0.0 fe80::1%1 1 face 2000:::1".split()  # noqa: SIM905
_MASKS = [
    " 3",
    "",
    *"""
0 1 3 8 08 31 32 33 96 104 128 129 2147483648 255.0.0.0 255.0.255.0 0.255.255.255 255 255.0 0.0.0.0 255.255.255.255
+3 -1 x 8x 8, 8. 8/8 0x8 1e1
""".split(),  # noqa: SIM905
]
_MASKED = ["0.0.0.0", "10.0.0.0", "128.0.0.0", "2000::", "::ffff:10.0.0.0"]
_SUFFIXES = ["", "", "", "", ",128.0.0.0/1", "x", "-", "/", ",", "#x", ";", ":", "-9", " 8.0.0.0/5", "\v1"]


def random_value(rng: random.Random) -> str:
    """Return a text that is similar to an address with a mask, or to a range."""
    first, last, mask = rng.choice(_V4 + _V6), rng.choice(_V4 + _V6), rng.choice(_MASKS)
    form = rng.choice([f"{first}/{mask}", f"{first}/{mask}", f"{first}-{last}", f"{first}-{last}/{mask}"])
    text = form + rng.choice(_SUFFIXES)
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(string.hexdigits + ".:/-,x%+") + text[at + rng.randrange(2) :]
    return text


def may_be_host_name(text: str) -> bool:
    """Return whether Squid may resolve *text* as a host name: it is neither a range nor an address with a mask."""
    return not re.match(r"[^/\s]+/[^\s]|[0-9.]+-[0-9.]|[0-9A-Fa-f:]+-[0-9A-Fa-f:]", text)


def probes_in_values(squid: Squid, directory: Path, texts: Sequence[str]) -> list[set[str] | None]:
    """Return for each value the probe addresses that it contains according to Squid, or None if Squid refuses it.

    Each value is the only line of a file, because a value may contain blanks.
    """
    path = directory / "squid.conf"
    names = [directory / f"v{number}" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        name.write_text(f"{text}\n")
    found: list[set[str] | None] = []
    while len(found) < len(texts):
        begin = len(found)
        found.append(set())
        rules = (
            f'acl a{number}x{probe} src {_PROBES[probe]} "{names[number]}"\n'
            for number in range(begin, len(texts))
            for probe in range(len(_PROBES))
        )
        path.write_text("".join(rules))
        probe = ""
        for line in squid_output(squid, path):
            if statement := re.match(r"Processing: acl a(\d+)x\d+ src (\S+)", line):
                probe = statement[2]
                found.extend(set() for _ in range(len(found), int(statement[1]) + 1))
            elif "is a subnetwork of" in line and found[-1] is not None:
                found[-1].add(probe)
            elif "FATAL: Bungled" in line:
                found[-1] = None
    return found


def test_parser_reads_the_addresses_that_squid_reads(squid: Squid, tmp_path: Path) -> None:
    if not re.match(r"[56]\.", squid.version):
        pytest.skip(f"Squid {squid.version} does not show what a list contains")
    rng = random.Random(SEED)
    forms = [f"{address}/{mask}" for address in _MASKED for mask in _MASKS]
    texts = [text for text in (*forms, *(random_value(rng) for _ in range(VALUES))) if not may_be_host_name(text)]
    probes = {probe: address_value(probe).certain for probe in _PROBES}
    accepted_count = 0
    for begin in range(0, len(texts), BATCH):
        batch = texts[begin : begin + BATCH]
        for text, found in zip(batch, probes_in_values(squid, tmp_path, batch), strict=True):
            parsed = address_value(text)
            assert not parsed.certain - parsed.possible, text
            if found is None:
                continue
            accepted_count += 1
            for probe, bits in probes.items():
                if probe in found:
                    assert bits & parsed.possible, (text, probe)
                else:
                    assert not bits & parsed.certain, (text, probe)
    assert accepted_count > len(texts) / 4
