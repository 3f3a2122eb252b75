# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for docs/recipes.md: each recipe works with the real commands, on a directory that simulates a host."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import pytest

import mptcp_proxy.cli
from mptcp_throttler.cli import main
from mptcp_throttler.policy.budget import Account, Usage, period
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.storage import Ledger

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs/recipes.md").read_text()
INTRODUCTION, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPES: Final = dict(each.split("\n", 1) for each in SECTIONS)
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT: Final = re.compile(r"(old|new|)\$ (.*)")
POLICY_HEAD, CLIENT = (block for _, block in BLOCK.findall(INTRODUCTION))
REQUIRED_PROGRAMS: Final = {"mptcp-proxy": "squid", "promtool": "promtool"}
"""For each command: the program that must be installed."""
PROGRAMS: Final = {
    "sudo": 'exec "$@"',
    "systemctl": 'echo "$@" >>HERE/systemctl',
    "sudoedit": "[ -f $1 ]",
    "apt": "",
    "scp": "",
    "nft": "",  # A separate test covers nft.
}
"""Scripts that replace commands. HERE is the root directory of the host."""
OUR_COMMAND: Final = re.compile(r"(?:sudo )?(mptcp-throttler|mptcp-proxy) ([^|&;<>$`*?]+?)(?: \| (.*))?")
"""Matches a command of this project, with or without a filter of its output."""


class Host:
    """A directory with the files of an installed package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "etc/mptcp-throttler", "etc/mptcp-console", "etc/prometheus", "var/lib/mptcp-throttler"):
            (root / name).mkdir(parents=True)
        (root / "etc/mptcp-console/token").write_text("0123456789abcdef" * 4)
        (root / "etc/mptcp-throttler/throttler.yaml").write_text("interfaces: [wan0]\n")
        (root / "etc/mptcp-throttler/policy.yaml").write_text(f"{POLICY_HEAD}  - {{name: all, throttle: none}}\n")
        Ledger(root / "var/lib/mptcp-throttler/ledger.sqlite").close()
        (root / "etc/mptcp-proxy").mkdir()
        shutil.copy(ROOT / "conf/squid.conf", root / "etc/mptcp-proxy")
        (root / "throttler.yaml").write_text(
            f"interfaces: [wan0]\npolicy: {root}/etc/mptcp-throttler/policy.yaml\n"
            f"ledger: {root}/var/lib/mptcp-throttler/ledger.sqlite\n"
        )
        for name, text in PROGRAMS.items():
            program = root / "bin" / name
            program.write_text(f"#!/bin/sh\n{self.below_root(text.replace('HERE', str(root)))}\n")
            program.chmod(0o755)

    def below_root(self, text: str) -> str:
        """Return *text* with absolute paths replaced by paths below the host's root."""
        text = text.replace("/usr/share/doc/mptcp-steering-proxy/examples", str(ROOT / "conf"))
        return re.sub(r"(?<=[\s\[])/etc/", f"{self.root}/etc/", text).replace("-C / ", f"-C {self.root} ")

    def write(self, language: str, text: str) -> None:
        """Write a file as the page shows it. Its first line contains its name."""
        file_name = re.match(r"# (\S+)\n", text)
        etc = self.root / "etc"
        if language == "yaml" and text.startswith("  - "):
            (etc / "mptcp-throttler/policy.yaml").write_text(POLICY_HEAD + text)
        elif file_name is None:
            assert language == "nft", text
        elif file_name[1] == "policy.yaml":
            (etc / "mptcp-throttler/policy.yaml").write_text(text)
        elif file_name[1] == "squid.conf":
            (etc / "mptcp-proxy/squid.conf").open("a").write(text)
        else:
            (self.root / file_name[1].lstrip("/")).write_text(self.below_root(text))

    def run(self, command: str, directory: Path) -> str:
        for program, needed in REQUIRED_PROGRAMS.items():
            if program in command and shutil.which(needed) is None:
                pytest.skip(f"NOT TESTED: {needed} is not installed")
        command_output = None
        if our_command := OUR_COMMAND.fullmatch(command):
            command_output = self.run_here(our_command[1], shlex.split(self.below_root(our_command[2])), directory)
            if our_command[3] is None:
                return command_output.rstrip("\n")
            command = our_command[3]
        # This group exists only if Prometheus is installed.
        text = f"set -eo pipefail\n{self.below_root(command.replace('-g prometheus ', ''))}"
        path = f"{self.root}/bin:{os.environ['PATH']}"
        completed = subprocess.run(
            ["bash", "-c", text], cwd=directory, env={**os.environ, "PATH": path}, input=command_output,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert completed.returncode == 0, f"{command}: {completed.stdout}"
        return completed.stdout.rstrip("\n")

    def run_here(self, name: str, arguments: list[str], directory: Path) -> str:
        """Run *name* on this host, in this process, because a new interpreter needs a second for its imports."""
        output = io.StringIO()
        with chdir(directory), redirect_stdout(output), redirect_stderr(output):
            if name == "mptcp-proxy":
                status = mptcp_proxy.cli.main([*arguments, "--config", str(self.root / "etc/mptcp-proxy/squid.conf")])
            else:
                policy = self.root / "etc/mptcp-throttler/policy.yaml"
                policy_option = ["--policy", str(policy)] if arguments[0] == "check" else []
                config = str(self.root / "throttler.yaml")
                status = main([arguments[0], "--config", config, *(policy_option or arguments[1:])])
        assert status == 0, f"{name} {arguments}: {output.getvalue()}"
        return output.getvalue()


@pytest.mark.parametrize("recipe", RECIPES)
def test_commands_print_the_output_on_the_page(recipe: str, tmp_path: Path) -> None:
    hosts = {name: Host(tmp_path / (name or "here")) for name in ("", "old", "new")}
    (tmp_path / "client.yaml").write_text(CLIENT)
    command_count = 0
    for language, block in BLOCK.findall(RECIPES[recipe]):
        if not PROMPT.match(block):
            hosts[""].write(language, block)
            continue
        for part in re.split(r"^(?=(?:old|new|)\$ )", block, flags=re.MULTILINE)[1:]:
            line, _, expected = part.rstrip("\n").partition("\n")
            prompt = PROMPT.fullmatch(line)
            assert prompt
            output = hosts[prompt[1]].run(prompt[2], tmp_path)
            pattern = ".*".join(map(re.escape, expected.split("…")))
            assert re.fullmatch(pattern, output, re.DOTALL) or not expected, f"{line}: {output}"
            assert expected or not output, f"{line}: the page does not show {output}"
            command_count += 1
    assert command_count
    squid = (hosts[""].root / "etc/mptcp-proxy/squid.conf").read_text()
    assert ("maxconn 4000" in squid and "client_ip_max_connections 5000" in squid) is ("sed -i" in RECIPES[recipe])
    units = {each.stem for each in (ROOT / "systemd").glob("*.service")} | {"prometheus"}
    for host in hosts.values():
        systemctl_words = (host.root / "systemctl").read_text().split() if (host.root / "systemctl").exists() else []
        assert {each for each in systemctl_words if not each.startswith("-")} <= units | {
            "start",
            "stop",
            "reload",
            "enable",
            "disable",
        }


def policies() -> dict[str, str]:
    found = {
        name: block if block.startswith("#") else POLICY_HEAD + block
        for name, text in RECIPES.items()
        for language, block in BLOCK.findall(text)
        if language == "yaml" and "rules:" in (block if block.startswith("#") else POLICY_HEAD)
    }
    return found


@pytest.mark.parametrize("recipe", policies())
def test_policies_load_without_a_warning(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(policies()[recipe])
    assert main(["check", "--policy", str(policy)]) == 0
    output = capsys.readouterr()
    assert (output.out.endswith("no errors\n"), output.err) == (True, "")


def test_rules_of_all_recipes_may_be_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [block for text in RECIPES.values() for _, block in BLOCK.findall(text) if block.startswith("  - ")]
    assert len(rules) == 4
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY_HEAD + "".join(rules))
    assert main(["check", "--policy", str(policy)]) == 0
    assert "error" not in capsys.readouterr().err


def test_move_to_another_host_keeps_the_usage(tmp_path: Path) -> None:
    old, new = Host(tmp_path / "old"), Host(tmp_path / "new")
    text = RECIPES["Move to another host"]
    old.write("yaml", next(block for _, block in BLOCK.findall(PAGE) if "20 GB" in block))
    policy = load_policy((old.root / "etc/mptcp-throttler/policy.yaml").read_text(), "policy.yaml")
    (budget,) = policy.budgets.values()
    begin, _ = period(budget, policy.time_zone, int(time.time()))
    ledger = Ledger(old.root / "var/lib/mptcp-throttler/ledger.sqlite")
    ledger.write("boot", Usage({Account(budget.name, "", begin): 7_000_000_000}, {}, frozenset()))
    ledger.close()
    assert "7.00 GB" in old.run("mptcp-throttler quota show", tmp_path)
    for name, command in re.findall(r"^(old|new)\$ (.*tar .*)$", text, re.MULTILINE):
        {"old": old, "new": new}[name].run(command, tmp_path)
    assert "7.00 GB" in new.run("mptcp-throttler quota show", tmp_path)


def test_firewall_rules_load(tmp_path: Path) -> None:
    new_namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("nft") is None or subprocess.run([*new_namespace, "nft", "list", "tables"], check=False).returncode:
        pytest.skip("NOT TESTED: no nft, or no namespaces for this user")
    (forward,) = (block for language, block in BLOCK.findall(PAGE) if language == "nft")
    (firewall_rules,) = (
        block for language, block in BLOCK.findall((ROOT / "docs/firewall.md").read_text()) if language == "nft"
    )
    (insert,) = re.findall(r"^\$ sudo nft (.*)$", PAGE, re.MULTILINE)
    (tmp_path / "rules.nft").write_text(f"{firewall_rules}{forward}{insert}\n")
    completed = subprocess.run(
        [*new_namespace, "nft", "-f", tmp_path / "rules.nft"], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")


def test_recipe_names_existing_files_and_the_alerts_job() -> None:
    text = RECIPES["Grafana"]
    for name in re.findall(r"/usr/share/doc/mptcp-steering-proxy/examples/([\w./-]+)", text):
        assert (ROOT / "conf" / name).is_file()
    job = re.search(r"job_name: (\S+)", text)
    assert job
    assert f'up{{job="{job[1]}"}}' in (ROOT / "conf/prometheus/alerts.yml").read_text()


def test_page_has_ten_recipes_of_limited_length() -> None:
    assert len(RECIPES) == 10
    lines = {name: sum(map(bool, text.splitlines())) for name, text in RECIPES.items()}
    assert {name: count for name, count in lines.items() if count > 25} == {}
