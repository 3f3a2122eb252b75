"""The daemon follows the windows of the policy that is in force, not of the one that was when it went to sleep."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mptcp_throttler import daemon
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.settings import load_settings

ALWAYS = "version: 1\npaths: {a: {backup: true}}\nrules: [{name: r, paths: [a], throttle: {rate: 5mbit}}]\n"
FROM_SIX = ALWAYS.replace("throttle:", 'when: {hours: ["18:00-20:00"]}, throttle:')
BEFORE_SIX = datetime(2026, 11, 20, 17, 59, 59, 800_000, tzinfo=UTC).timestamp()


def test_a_window_of_a_policy_just_loaded_opens_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings("interfaces: [wan0]\npolicy: policy.yaml\n", str(tmp_path / "throttler.yaml"))
    enforced: list[tuple[bool, ...]] = []

    class Recorder(daemon.Daemon):
        async def _enforce(self) -> None:
            self._open_rules = daemon.open_rules(self._policy, daemon.time.time())
            enforced.append(self._open_rules)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        monkeypatch.setattr(daemon.time, "time", lambda: BEFORE_SIX + loop.time() - start)
        subject = Recorder(settings, load_policy(ALWAYS, "p"), lambda: load_policy(FROM_SIX, "p"))
        await subject._enforce()
        follower = asyncio.create_task(subject._follow_the_clock())
        await asyncio.sleep(0)  # it is asleep now, with nothing to wait for
        await subject._reload()
        async with asyncio.timeout(5):
            while len(enforced) < 3:  # noqa: ASYNC110 - there is no event but the enforcement itself
                await asyncio.sleep(0.01)
        follower.cancel()

    asyncio.run(scenario())
    assert enforced == [(True,), (False,), (True,)]
