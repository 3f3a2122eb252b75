# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for gateway.yaml: all mistakes are reported at once, each with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_common.problems import DocumentError
from mptcp_common.schema_file import schema_text
from mptcp_gateway.schemas import NAME
from mptcp_gateway.settings import load_settings, settings_schema

CONF = Path(__file__).parents[3] / "conf"
GOOD = "uplinks: {dsl: eth0, lte: wwan0}\nparents: [proxy.example.net:3128]\n"


def test_settings_are_read() -> None:
    settings = load_settings(GOOD.replace("net:3128", 'net:3128, "[2001:db8::5]:80"'), "gateway.yaml")
    assert list(settings.uplinks.items()) == [("dsl", "eth0"), ("lte", "wwan0")]
    assert settings.parents == (("proxy.example.net", 3128), ("2001:db8::5", 80))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (GOOD.replace(", lte: wwan0", ""), ["1: uplinks: 1 uplinks; 2 to 8 are allowed"]),
        (GOOD.replace("wwan0", "eth0"), ["1: uplinks: two uplinks have the same device"]),
        (
            GOOD.replace("proxy.example.net:3128", ""),
            ["2: parents: no parent; uplinks are tried by connections to a parent"],
        ),
        (
            GOOD
            + 'lan: {devices: [br0, "a*"], past: {devices: [192.168.1.1/24], ports: [0]}, fail: shut}\nlogin: me\n',
            ["3: lan.fail", "3: lan.past.devices[0]", "3: lan.past.ports[0]"],
        ),
        (
            GOOD + 'lan: {devices: ["a*"]}\nlogin: me\n',
            ["3: lan: a*: nftables accepts no interface", "4: login: write NAME:PASSWORD"],
        ),
        (GOOD + "lan: {devices: []}\n", ["3: lan: no devices"]),
        (
            "uplinks: {dsl: eth0/1, lte: wwan0}\nparents: [proxy.example.net]\nparent: x\n",
            ["1: uplinks.dsl", "2: parents[0]", '3: parent: unknown key (did you mean "parents"?)'],
        ),
    ],
)
def test_mistakes_are_reported_with_their_lines(text: str, problems: list[str]) -> None:
    with pytest.raises(DocumentError) as caught:
        load_settings(text, "gateway.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(problems)
    for line, start in zip(sorted(lines), problems, strict=True):
        assert line.startswith(f"gateway.yaml:{start}"), line


def test_commented_keys_of_the_example_are_valid() -> None:
    text = re.sub(
        r"^# (lan:|login:| ( \S| {3}\S)).*$", lambda it: it[0][2:], (CONF / "gateway.yaml").read_text(), flags=re.M
    )
    settings = load_settings(text, "gateway.yaml")
    assert settings.login == "home:secret"
    lan = settings.lan
    assert lan is not None
    assert (lan.devices, lan.tunnel, lan.quic_refused, lan.fail_open) == (("br0",), "wg0", True, True)
    assert [str(each) for each in (*lan.exempt_devices, *lan.exempt_destinations)] == [
        "192.168.1.20/32",
        "203.0.113.0/24",
    ]
    assert lan.exempt_ports == (5060,)


def test_shipped_example_is_valid_and_its_schema_current() -> None:
    text = (CONF / "gateway.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={NAME}\n")
    assert load_settings(text, "gateway.yaml").uplinks
    assert (CONF / NAME).read_text() == schema_text(settings_schema()), "run: python -m mptcp_gateway.schemas conf"
