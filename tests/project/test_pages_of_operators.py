# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that commands, limits, exit statuses and units on the pages for operators match the code."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_common import exit_status
from mptcp_common.yaml_document import parse_document
from mptcp_throttler.mptcp.limits import TrackerLimits

REPOSITORY = Path(__file__).parents[2]
COMMANDS = sorted(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"])
PAGES = ("quickstart", "operator", "troubleshooting", "recipes", "packages", "firewall")
OPERATOR = (REPOSITORY / "docs/operator.md").read_text()


def commands(text: str) -> Iterator[str]:
    """Yield the project's commands in code blocks, with or without a prompt, and between backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    typed = [re.sub(r"^(?:\w*\$|#) ", "", line) for block in blocks for line in block.splitlines()]
    typed += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    for part in (part for line in typed for part in re.split(r"&&|;| \| | 2>", line)):
        words = part.split(" #")[0].strip().removeprefix("sudo ")
        if words.split(" ")[0] in COMMANDS and "…" not in words and " " in words:
            yield words


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_the_page_are_valid(page: str) -> None:
    found = set(commands((REPOSITORY / f"docs/{page}.md").read_text()))
    assert found or page == "firewall"
    for command in found:
        program, *arguments = shlex.split(command)
        parser = importlib.import_module(f"{program.replace('-', '_')}.cli")._parser()
        if len(arguments) == 1:  # the page names the command without its arguments
            with pytest.raises(SystemExit, match=r"^0$"):
                parser.parse_args([*arguments, "--help"])
        else:
            parser.parse_args(arguments)  # an unknown argument would end the process


@pytest.mark.parametrize("page", PAGES)
def test_units_on_the_page_exist(page: str) -> None:
    units = {each.stem for each in (REPOSITORY / "systemd").glob("*.service")}
    found = re.findall(r"systemctl [\w -]*?(mptcp-[\w-]+)", (REPOSITORY / f"docs/{page}.md").read_text())
    assert set(found) <= units


def test_policy_of_the_quick_start_is_the_shipped_example_with_other_networks() -> None:
    page = (REPOSITORY / "docs/quickstart.md").read_text()
    (shown,) = re.findall(r"^```\n(version: 1\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shipped = (REPOSITORY / "conf/policy.yaml").read_text()
    edited, count = re.subn(r"clients: \[10\.77\.(\d)\.0/24, [^]]*\]", r"clients: [192.168.\1.0/24]", shipped)
    assert count == 2
    assert parse_document(edited, "").data == parse_document(shown, "").data


def test_limits_on_the_page_match_the_configuration() -> None:
    squid = (REPOSITORY / "conf/squid.conf").read_text()
    (refused_above,) = re.findall(r"maxconn (\d+)$", squid, re.MULTILINE)
    (closed_above,) = re.findall(r"^client_ip_max_connections (\d+)", squid, re.MULTILINE)
    cell = f"more than {refused_above}: 429; more than {int(closed_above):,}: closed"
    row = f"| {cell} | `maxconn`, `client_ip_max_connections` in `squid.conf` |"
    assert row in OPERATOR
    limits = (REPOSITORY / "conf/nftables/limit-new-connections.nft").read_text()
    for count, burst in re.findall(r"@clients\d .* over (\d+)/second burst (\d+) packets", limits):
        assert f"| {burst} at once, {count} per second," in OPERATOR
    assert f"| {TrackerLimits().max_connections:,}; one client gets half" in OPERATOR
    assert f"; {TrackerLimits().max_subflows_per_connection} while a rule steers by order |" in OPERATOR


def test_exit_statuses_on_the_page_match_the_commands() -> None:
    rows = {int(each) for each in re.findall(r"^\| (\d+) \|", OPERATOR, re.MULTILINE)}
    assert rows == {exit_status.DONE, exit_status.FAILED, exit_status.USAGE, exit_status.CONFIGURATION}
