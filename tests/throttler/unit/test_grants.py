# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for grants: an operator lifts a client's caps for some time, or adds volume to its budgets."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from test_daemon import CAPPED, PATHS, Scene, running, scenario, until

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.cli import main
from mptcp_throttler.policy.budget import Grant
from mptcp_throttler.shaping.initial_options import DEFAULT_OPTIONS
from mptcp_throttler.storage import GRANTS, Ledger, change_grants, read_grants

CLIENT = "10.1.0.1"
BUDGET = PATHS + (
    "rules: [{name: volume, paths: [a], budget: {period: day, steps: [{after: 1 GB, throttle: {rate: 1 Mbit/s}}]}}]\n"
)


def is_capped(scene: Scene) -> bool:
    return scene.engine.capped_count > 0


@scenario
async def test_grant_lifts_caps_until_its_end(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, CLIENT, "10.2.0.1")
    kernel.sockets.connect(8, "10.1.0.2", "10.2.0.2", port=40_001)
    path = tmp_path / GRANTS
    now = int(time.time())
    change_grants(path, lambda _: [Grant("10.1.0.0/31", now, now + 3600, "alice", "a party")])
    async with running(tmp_path, CAPPED, kernel) as scene:
        await until(lambda: scene.engine.capped_count == 1)
        options = kernel.pacing.initial_options
        assert options[ip_network("10.1.0.0/31")] == DEFAULT_OPTIONS, (
            "new connections of the granted clients begin with a cap"
        )
        assert options[ip_network("10.1.0.0/16")] != DEFAULT_OPTIONS
        explained = scene.request(query="explain", token="7")["connections"][0]["subflows"][0]
        assert [each["stage"] for each in explained["stages"]] == ["grants"]
        assert "alice" in explained["reason"]
        now = int(time.time())
        new_grants = Grant(CLIENT, now + 2, now + 4, "bob"), Grant("10.1.0.2", now, now + 7200)
        change_grants(path, lambda _: new_grants)
        await until(lambda: scene.engine.capped_count == 1)
        await until(lambda: scene.engine.capped_count == 0)
        await until(lambda: scene.engine.capped_count == 1)
        texts = [each["text"] for each in scene.request(query="events")["events"] if each["kind"] == "grant"]
        assert f"client {CLIENT}: caps apply again" in texts, "the grant that began later did not end in time"
        assert "client 10.1.0.2: caps apply again" not in texts, "the longer grant ended too early"
        assert any("bob" in each for each in texts)
        path.write_text("[")
        await asyncio.sleep(1.2)
        assert scene.engine.capped_count == 1, "a file that cannot be read changed the grants"


def write_settings(tmp_path: Path, policy: str) -> Path:
    (tmp_path / "p.yaml").write_text(policy)
    path = tmp_path / "throttler.yaml"
    path.write_text(f"interfaces: [w0]\npolicy: p.yaml\nledger: {tmp_path}/ledger.sqlite\n")
    return path


def test_grant_command_adds_lists_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["grant", "--config", str(write_settings(tmp_path, CAPPED))]
    assert main([*command, CLIENT, "2h", "--why", "a party"]) == DONE
    assert main([*command, "10.3.0.0/24", "30m"]) == DONE
    assert main([*command, CLIENT, "1h"]) == DONE, "a second grant for the same client was refused"
    capsys.readouterr()
    assert main(command) == DONE
    assert [each.partition(":")[0] for each in capsys.readouterr().out.splitlines()] == ["10.3.0.0/24", CLIENT]
    (grant,) = (each for each in read_grants(tmp_path / GRANTS) if each.client == CLIENT)
    assert grant.until - grant.since == 3600
    assert main([*command, CLIENT, "end"]) == DONE
    assert main([*command, CLIENT, "end"]) == FAILED
    assert len(read_grants(tmp_path / GRANTS)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["10.1.0.1.2", "2h"],
        [CLIENT],
        [CLIENT, "2 hours"],
        [CLIENT, "400d"],
        [CLIENT, "+5 gb"],
        [CLIENT, "+0 GB"],
        [CLIENT, "2h", "--budget", "volume"],
        [CLIENT, "2h", "--why", "two\nlines"],
        [CLIENT, "+5 GB", "--budget", "volum"],
        ["10.1.0.0/24", "+5 GB"],
        ["all", "2h"],
        ["all", "+5 GB"],
    ],
)
def test_invalid_grant_prints_one_line_and_grants_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    settings = write_settings(tmp_path, BUDGET)
    Ledger(tmp_path / "ledger.sqlite").close()
    assert main(["grant", "--config", str(settings), *words]) == FAILED
    assert capsys.readouterr().err.count("\n") == 1
    assert read_grants(tmp_path / GRANTS) == ()


def test_added_volume_applies_to_the_current_period(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @scenario
    async def test(path: Path) -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, CLIENT, "10.2.0.1")
        settings = write_settings(path, BUDGET)
        async with running(path, BUDGET, kernel) as scene:
            ledger = Ledger(path / "ledger.sqlite")
            begin = int(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp())
            ledger._database.execute("INSERT INTO used VALUES ('volume', ?, ?, 1500000000)", (CLIENT, begin))
            ledger._database.commit()
            ledger.close()
            await until(lambda: is_capped(scene))
            assert await asyncio.to_thread(main, ["grant", "--config", str(settings), CLIENT, "+2", "GB"]) == DONE
            await until(lambda: not is_capped(scene))
            (row,) = (each for each in scene.request(query="budgets", client=CLIENT)["budgets"] if each["client"])
            assert row["used"] == 0
            await until(lambda: [each for each in scene.request(query="events")["events"] if each["kind"] == "grant"])
        capsys.readouterr()
        assert main(["quota", "show", "--config", str(settings), "--json"]) == DONE
        assert [each["used"] for each in json.loads(capsys.readouterr().out)] == [0]

    test(tmp_path)


def test_grants_file_writable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / GRANTS
    change_grants(path, lambda _: [Grant(CLIENT, 0, 1)])
    path.chmod(0o666)
    with pytest.raises(KernelError):
        read_grants(path)
