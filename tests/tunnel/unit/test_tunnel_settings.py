# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tunnel.yaml: all mistakes are reported at once, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_common.problems import DocumentError
from mptcp_common.schema_file import schema_text
from mptcp_tunnel.model import Mode, Split
from mptcp_tunnel.schemas import NAME
from mptcp_tunnel.settings import load_settings, read_key, settings_schema

CONF = Path(__file__).parents[3] / "conf"

RELAY = """\
tunnels:
  home:
    port: 51820
    key: /etc/mptcp-tunnel/home.key
    peer: "203.0.113.5:51820"
    paths: {dsl: eth0, lte: wwan0}
"""
PROXY = """\
uplinks: [eth0]
tunnels:
  home: {port: 51820, key: /etc/mptcp-tunnel/home.key}
"""


def test_settings_of_a_relay_and_a_proxy_are_read() -> None:
    relay, proxy = load_settings(RELAY, "t"), load_settings(PROXY, "t")
    assert relay.uplinks == ("eth0", "wwan0")
    assert relay.tunnels[0].paths == (("dsl", "eth0"), ("lte", "wwan0"))
    assert relay.tunnels[0].split == Split(Mode.SPILL, 10_000_000, spill_share=0.75)
    assert (proxy.uplinks, proxy.tunnels[0].peer) == (("eth0",), None)


@pytest.mark.parametrize(
    ("lines", "split"),
    [
        ("spill_ms: 30", Split(spill=30_000_000)),
        ("mode: rate", Split(spill=0)),
        ("mode: order\n    spill_ms: 5\n    duplicate: true", Split(Mode.ORDER, 5_000_000, duplicate=True)),
        ("mode: weights\n    weights: [90, 10]", Split(Mode.WEIGHTS, weights=(90, 10))),
        ("mode: order", Split(Mode.ORDER, 30_000_000)),
        ("mode: one", Split(Mode.ONE)),
    ],
)
def test_each_mode_is_read(lines: str, split: Split) -> None:
    assert load_settings(f"{RELAY}    {lines}\n", "t").tunnels[0].split == split


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("mode: spill", [10_000_000, 10_000_000, 30_000_000]),
        ("spill_ms: 20", [20_000_000] * 3),
        ("mode: rate", [0] * 3),
        ("mode: order", [30_000_000] * 3),
    ],
)
def test_limit_of_spill_follows_the_delays_unless_it_is_set(lines: str, limits: list[int]) -> None:
    split = load_settings(f"{RELAY}    {lines}\n", "t").tunnels[0].split
    # The greatest difference between the delays of the paths is 0, 4 or 40 ms.
    assert [split.spill_limit(difference) for difference in (0, 4_000_000, 40_000_000)] == limits


def test_shares_follow_the_weights() -> None:
    (tunnel,) = load_settings(PROXY.replace("}", ", mode: weights, weights: [3, 1]}"), "t").tunnels
    assert [tunnel.split.share(path) for path in range(3)] == [0.75, 0.25, 0.25]
    assert Split().share(0) is None


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (RELAY.replace("{dsl: eth0, lte: wwan0}", "{dsl: eth0}"), 2, "1 paths; a relay has 2 to 8"),
        (RELAY.replace("lte: wwan0", "lte: eth0"), 6, "two paths have the same interface"),
        (RELAY.replace('    peer: "203.0.113.5:51820"\n', ""), 5, 'paths need a "peer"'),
        (PROXY.replace("uplinks: [eth0]\n", ""), 2, 'needs "uplinks"'),
        (RELAY.replace("203.0.113.5:51820", "vpn.example.net"), 5, "is not an address and port"),
        (RELAY.replace("51820\n    key", "0\n    key"), 3, "1 to 65535 is allowed"),
        (RELAY + "    mode: ordered\n", 7, 'did you mean "order"'),
        (RELAY + "    mode: one\n    spill_ms: 10\n", 8, "write mode spill or order"),
        (RELAY + "    weights: [1, 2]\n", 7, "mode spill does not use weights"),
        (RELAY + "    mode: weights\n    weights: [1, 2, 3]\n", 7, "3 weights; 2, one for each path, are needed"),
        (RELAY + "    mode: weights\n    weights: [1, 0]\n", 8, "0 is out of range; 1 to 1000 is allowed"),
        (PROXY.replace("}", ", mode: weights}"), 3, "0 weights; 2 to 8 are needed"),
        (RELAY + RELAY.partition("\n")[2].replace("home:", "other:"), 10, "tunnel home has the same peer"),
    ],
)
def test_mistake_is_reported_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_settings(text, "tunnel.yaml")
    found = [problem for problem in caught.value.problems if message in str(problem)]
    assert [problem.line for problem in found] == [line], str(caught.value)


def test_short_or_world_readable_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"short\n")
    with pytest.raises(ValueError, match="can be read by other users than its owner; chmod 600"):
        read_key(key)
    key.chmod(0o600)
    with pytest.raises(ValueError, match="has 5 bytes; a key has at least 16"):
        read_key(key)
    key.write_bytes(b" " + b"x" * 16 + b"\n")
    assert read_key(key) == b"x" * 16


def test_shipped_example_is_valid_and_its_schema_current() -> None:
    text = (CONF / "tunnel.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={NAME}\n")
    assert load_settings(text, "tunnel.yaml").tunnels[0].peer is not None
    assert (CONF / NAME).read_text() == schema_text(settings_schema()), "run: python -m mptcp_tunnel.schemas conf"
