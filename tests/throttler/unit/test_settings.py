# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the daemon's settings: their values, errors, and consistency with the policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.problems import DocumentError, Severity
from mptcp_throttler.config.settings import Settings, check_together, load_settings
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.shaping.model import Ownership

CONF = Path(__file__).parents[3] / "conf"
REQUIRED = "interfaces: [wan0]\npolicy: policy.yaml\n"
"""Two lines, so that added text starts on line 3."""
DEFAULTS = {
    "interfaces": ["wan0"],
    "listen_ports": [3128],
    "tunnel_ports": [],
    "tunnel_socket": Path("/run/mptcp-tunnel/status.sock"),
    "policy": Path("/etc/mptcp-throttler/policy.yaml"),
    "netfilter": "auto",
    "mark_mask": 0x00FF0000,
    "htb_major": 0x4D50,
    "status_socket": Path("/run/mptcp-throttler/status.sock"),
    "status_group": None,
    "state_directory": Path("/run/mptcp-throttler"),
    "ledger": Path("/var/lib/mptcp-throttler/ledger.sqlite"),
    "gso_max_size": "auto",
    "verify_interval": 10.0,
    "max_connections": 65536,
    "log_level": "info",
}


def load(text: str) -> Settings:
    return load_settings(text, "/etc/mptcp-throttler/throttler.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_settings(text, "throttler.yaml")
    return str(caught.value).splitlines()


def test_defaults_of_minimal_settings() -> None:
    assert load(REQUIRED).model_dump() == DEFAULTS


def test_shipped_settings_are_the_defaults() -> None:
    text = (CONF / "throttler.yaml").read_text()
    assert load(text).model_dump() == DEFAULTS
    assert text.startswith("# yaml-language-server: $schema=throttler.schema.json\n")


def test_commented_lines_of_the_shipped_settings_are_the_defaults() -> None:
    lines = (CONF / "throttler.yaml").read_text().splitlines()
    keys = [line[2:] for line in lines if line.startswith("# ") and line[2:].split(":")[0].islower()]
    commented = [line for line in keys if " " not in line.split(":")[0] and ": " in line]
    settings = [line for line in commented if not line.startswith(("yaml-language", "auto:"))]
    assert len(settings) == 13
    assert load(REQUIRED + "\n".join(settings)).model_dump() == DEFAULTS


def test_settings_with_all_keys() -> None:
    settings = load("""\
interfaces: [eth0, wlan0]
listen_ports: [3128, 8080]
policy: /srv/policy.yaml
netfilter: nftables
mark_mask: 0xF000
htb_major: 0x1
status_socket: /run/x.sock
state_directory: /var/lib/x
gso_max_size: 4500
verify_interval: 2.5
max_connections: 1000
log_level: debug
""")
    assert settings.model_dump() == DEFAULTS | {
        "interfaces": ["eth0", "wlan0"],
        "listen_ports": [3128, 8080],
        "policy": Path("/srv/policy.yaml"),
        "netfilter": "nftables",
        "mark_mask": 0xF000,
        "htb_major": 1,
        "status_socket": Path("/run/x.sock"),
        "state_directory": Path("/var/lib/x"),
        "gso_max_size": 4500,
        "verify_interval": 2.5,
        "max_connections": 1000,
        "log_level": "debug",
    }
    assert settings.ownership == Ownership(listen_ports=(3128, 8080), mark_mask=0xF000, htb_major=1)


@pytest.mark.parametrize(
    ("source", "policy", "expected"),
    [
        ("/etc/x/throttler.yaml", "policy.yaml", "/etc/x/policy.yaml"),
        ("/etc/x/throttler.yaml", "../policy.yaml", "/etc/x/../policy.yaml"),
        ("/etc/x/throttler.yaml", "/srv/policy.yaml", "/srv/policy.yaml"),
        ("throttler.yaml", "policy.yaml", "policy.yaml"),
        ("conf/throttler.yaml", "policy.yaml", "conf/policy.yaml"),
    ],
)
def test_policy_path_is_relative_to_the_settings_file(source: str, policy: str, expected: str) -> None:
    assert load_settings(f"interfaces: [a]\npolicy: {policy}\n", source).policy == Path(expected)


@pytest.mark.parametrize(
    ("written", "mask"),
    [("0x00ff0000", 0x00FF0000), ("'0x1'", 1), ("0xffffffff", 0xFFFFFFFF), ("0x80000000", 1 << 31), ("256", 256)],
)
def test_mark_mask_is_parsed(written: str, mask: int) -> None:
    assert load(f"{REQUIRED}mark_mask: {written}\n").ownership.mark_mask == mask


@given(st.integers(0, 2**33))
def test_mark_mask_is_accepted_if_its_bits_are_contiguous(number: int) -> None:
    contiguous = number < 2**32 and "01" not in f"{number:b}".rstrip("0") and number != 0
    text = f"{REQUIRED}mark_mask: {number:#x}\n"
    if contiguous:
        assert load(text).ownership.mark_mask == number
    else:
        assert len(problems(text)) == 1


ALL_KEYS = (
    "interfaces, listen_ports, tunnel_ports, tunnel_socket, "
    "policy, netfilter, mark_mask, htb_major, status_socket, status_group, state_directory, "
    "ledger, "
    "gso_max_size, verify_interval, max_connections, log_level"
)
INVALID = {
    "port 0": ("listen_ports: [0]", "listen_ports[0]: 0 is out of range; 1 to 65535 is allowed"),
    "port as text": (
        'listen_ports: ["80"]',
        'listen_ports[0]: "80" is not a whole number; 1 to 65535 is allowed',
    ),
    "a port instead of a list": ("listen_ports: 3128", "listen_ports: 3128 is not a list; write [3128]"),
    "port twice": ("listen_ports: [80, 80]", "listen_ports[1]: 80 is listed twice; once is enough"),
    "misspelt netfilter": (
        "netfilter: nftable",
        'netfilter: "nftable" is not allowed (did you mean "nftables"?); write auto, iptables or nftables',
    ),
    "mask with gaps": (
        "mark_mask: 0x00f0f000",
        "mark_mask: 0x00f0f000 has gaps; its bits must be contiguous (e.g. 0x00ff0000)",
    ),
    "mask 0": (
        "mark_mask: 0",
        "mark_mask: 0x00000000 is out of range; a packet mark has 32 bits, 0x00000001 to 0xffffffff is allowed",
    ),
    "mask too wide": (
        "mark_mask: 0x1ff000000",
        "mark_mask: 0x1ff000000 is out of range; a packet mark has 32 bits, 0x00000001 to 0xffffffff is allowed",
    ),
    "mask as a word": (
        "mark_mask: ff0000",
        'mark_mask: "ff0000" is not a mark mask; write a hexadecimal number (e.g. 0x00ff0000)',
    ),
    "mask true": (
        "mark_mask: true",
        "mark_mask: true is not a mark mask; write a hexadecimal number (e.g. 0x00ff0000)",
    ),
    "major too large": ("htb_major: 0xffff", "htb_major: 0xffff is out of range; 0x0001 to 0xfffe is allowed"),
    "major with a colon": (
        "htb_major: '4d50:'",
        'htb_major: "4d50:" is not a handle; write a hexadecimal number (e.g. 0x4d50)',
    ),
    "relative socket": (
        "status_socket: status.sock",
        'status_socket: "status.sock" is not an absolute path; start it with "/"',
    ),
    "socket too long": (
        f"status_socket: /{'x' * 107}",
        f'status_socket: "/{"x" * 58}…" is too long for a Unix socket; Linux allows 107 bytes',
    ),
    "state directory as a number": (
        "state_directory: 5",
        "state_directory: 5 is not a path; write the name of a file",
    ),
    "small segments": (
        "gso_max_size: 1500",
        "gso_max_size: 1500 is out of range; from 2 KiB to 64 KiB is allowed; or write auto or keep",
    ),
    "segments as a word": (
        "gso_max_size: off",
        'gso_max_size: "off" is not a size; write a number and one of B, KB, MB, KiB, MiB (e.g. "15 KB"); '
        "or write auto or keep",
    ),
    "interval 0": ("verify_interval: 0", "verify_interval: 0 is out of range; 1 to 3600 seconds are allowed"),
    "interval with a unit": (
        "verify_interval: 30s",
        'verify_interval: "30s" is not a number of seconds; 1 to 3600 is allowed',
    ),
    "interval nan": ("verify_interval: .nan", "verify_interval: nan is out of range; 1 to 3600 seconds are allowed"),
    "0 connections": (
        "max_connections: 0",
        "max_connections: 0 is out of range; 1 to 1000000 is allowed",
    ),
    "unknown log level": ("log_level: trace", 'log_level: "trace" is not allowed; write error, warning, info or debug'),
    "log level without a value": ("log_level:", "log_level: has no value; write one, or leave the key out"),
    "group as a number": ("status_group: 7", "status_group: 7 is not the name of a group; write e.g. adm"),
    "group with blanks": (
        'status_group: "a b"',
        'status_group: "a b" is not the name of a group; write e.g. adm',
    ),
    "misspelt key": (
        "mark-mask: 0xff",
        f'mark-mask: unknown key (did you mean "mark_mask"?); allowed here: {ALL_KEYS}',
    ),
    "unknown key": ("colour: red", f"colour: unknown key; allowed here: {ALL_KEYS}"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_setting(case: str) -> None:
    text, expected = INVALID[case]
    assert problems(f"{REQUIRED}{text}\n") == [f"throttler.yaml:3: {expected}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["throttler.yaml:1: the file is empty"]),
        (
            "log_level: info\n",
            [
                'throttler.yaml:1: interfaces: is required, as in "interfaces: [wan0]"',
                'throttler.yaml:1: policy: is required, as in "policy: policy.yaml"',
            ],
        ),
        (
            "interfaces: []\npolicy: ''\n",
            [
                "throttler.yaml:1: interfaces: the list is empty; write at least one item",
                'throttler.yaml:2: policy: "" is not a path; write the name of a file',
            ],
        ),
        (
            "interfaces: [wan0, wan0, a-very-long-name]\npolicy: p\n",
            [
                'throttler.yaml:1: interfaces[1]: "wan0" is listed twice; once is enough',
                'throttler.yaml:1: interfaces[2]: "a-very-long-name" is too long for an interface; '
                "Linux allows 15 characters",
            ],
        ),
    ],
    ids=["empty file", "no required setting", "empty values", "repeated and too long interfaces"],
)
def test_missing_or_invalid_required_settings_are_reported(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


def rules(count: int) -> str:
    return "rules:\n" + "".join(f"- {{name: r{index}, throttle: {{rate: 5mbit}}}}\n" for index in range(count))


@pytest.mark.parametrize(
    ("mask", "count", "is_sufficient"),
    [("0x1", 1, True), ("0x1", 2, False), ("0x00030000", 3, True), ("0x00030000", 4, False), ("0x00ff0000", 255, True)],
)
def test_mark_mask_must_have_a_value_for_each_rule(mask: str, count: int, is_sufficient: bool) -> None:
    settings = load_settings(f"{REQUIRED}mark_mask: {mask}\n", "throttler.yaml")
    found = check_together(settings, load_policy(f"version: 1\n{rules(count)}", "policy.yaml"))
    assert (list(found) == []) is is_sufficient
    for index in range(count if is_sufficient else 0):
        assert settings.ownership.mark_of_rule(index) != 0
    assert len({settings.ownership.mark_of_rule(index) for index in range(count)}) == count or not is_sufficient


def test_too_narrow_mark_mask_is_an_error_on_its_line() -> None:
    settings = load_settings(f"{REQUIRED}\nmark_mask: 0x00030000\n", "throttler.yaml")
    (problem,) = check_together(settings, load_policy(f"version: 1\n{rules(5)}", "policy.yaml"))
    assert str(problem) == (
        "throttler.yaml:4: mark_mask: 0x00030000 is enough for 3 rules, but the policy has 5; "
        "use at least 3 bits, or fewer rules"
    )
    assert problem.severity is Severity.ERROR


def test_too_narrow_default_mask_is_an_error_without_a_line() -> None:
    settings = load_settings(REQUIRED, "throttler.yaml")
    (problem,) = check_together(settings, load_policy(f"version: 1\n{rules(256)}", "policy.yaml"))
    assert str(problem) == (
        "throttler.yaml: mark_mask: 0x00ff0000 is enough for 255 rules, but the policy has 256; "
        "use at least 9 bits, or fewer rules"
    )


def test_path_on_an_interface_without_capture_causes_a_warning() -> None:
    settings = load_settings(REQUIRED, "throttler.yaml")
    policy = load_policy("version: 1\npaths: {lte: {interfaces: [wan0, lte0]}}\nrules: []\n", "policy.yaml")
    (problem,) = check_together(settings, policy)
    assert str(problem) == (
        "throttler.yaml:1: warning: interfaces: the policy's path lte names lte0, which is not listed here: "
        "add it, or its subflows are not captured"
    )


def test_shipped_settings_and_policy_are_consistent() -> None:
    settings = load_settings((CONF / "throttler.yaml").read_text(), str(CONF / "throttler.yaml"))
    assert settings.policy == CONF / "policy.yaml"
    assert not list(check_together(settings, load_policy(settings.policy.read_text(), "policy.yaml")))
