# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that an interface whose root cannot be replaced does not prevent caps on the other interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from fakes import FakeNetfilter
from policy_values import a_policy, a_rule, a_throttle, replace
from test_reconcile import CAP, NOW, verdict

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.tc import egress, root_qdisc
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.kernel.tc.link import Link
from mptcp_throttler.policy.model import Share
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.runtime import reconcile
from mptcp_throttler.runtime.reconcile import Reconciler
from mptcp_throttler.shaping.model import ClassSpec, Ownership
from mptcp_throttler.shaping.plan import IDLE_SECONDS, Planner

LINKS = {"wan0": Link("wan0", 1, {"gso_max_size": 65_536}), "wan1": Link("wan1", 2, {"gso_max_size": 65_536})}
PATH = a_rule("path", None, a_throttle(9_000_000, 9_000_000, None, Share.PATH))
OWN_TREE, FOREIGN = "ours", "pfifo_head_drop"


class FakeTree:
    """The throttler's qdisc tree on each link, or a foreign root qdisc."""

    def __init__(self) -> None:
        self.roots = dict.fromkeys(LINKS, "")
        """Root qdisc by name of the link. An empty string is the kernel's default."""
        self.classes: dict[str, dict[int, ClassSpec]] = {name: {} for name in LINKS}
        self.refused = ""
        """The link on which the installation of a root qdisc fails."""

    def set_foreign_root(self, name: str, root: str) -> None:
        self.roots[name] = root
        self.classes[name].clear()

    def is_ours(self, link: Link) -> bool:
        return self.roots[link.name] == OWN_TREE

    async def install_root(self, link: Link) -> None:
        if link.name == self.refused:
            raise KernelError(f"install HTB at the root of {link.name}: Invalid argument")
        self.roots[link.name] = OWN_TREE

    async def read(self, link: Link) -> tuple[list[str], dict[int, ClassSpec]]:
        problems = [] if self.is_ours(link) else [f"our root qdisc is not on {link.name}"]
        return problems, dict(self.classes[link.name])

    async def upsert(self, links: Sequence[Link], specs: Iterable[ClassSpec]) -> None:
        refused = False
        for spec in specs:
            for link in links:
                if self.is_ours(link):
                    self.classes[link.name][spec.minor] = spec
                else:
                    refused = True
        if refused:
            raise KernelError("set class: refused")

    async def delete(self, links: Sequence[Link], minors: Iterable[int]) -> None:
        for minor in minors:
            for link in links:
                self.classes[link.name].pop(minor, None)


class Scene:
    """Planner, reconciler and traffic control on two interfaces, with a fake below them instead of netlink."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
        self.tree = FakeTree()
        self.gso: dict[str, dict[str, int]] = {}
        """The GSO limits that were set, by name of the link."""
        self.missing: set[str] = set()
        self.tc = HtbTrafficControl(list(LINKS), Ownership(), state)
        self.tc._tree = self.tree  # type: ignore[assignment]
        self.netfilter = FakeNetfilter()
        self.planner = Planner(Ownership())
        self.planner.set_policy(a_policy((), (CAP, PATH), ZoneInfo("UTC")))
        self.reconciler = Reconciler(self.planner, self.tc, self.netfilter)
        monkeypatch.setattr(egress, "find_link", self._find)
        monkeypatch.setattr(egress, "set_gso", lambda link, sizes: self.gso.update({link.name: sizes}))
        monkeypatch.setattr(root_qdisc, "save", self._save)
        monkeypatch.setattr(root_qdisc, "restore", lambda link, _tree: self._restore(link.name, ""))

    def _restore(self, name: str, root: str) -> None:
        self.tree.set_foreign_root(name, root)

    def _find(self, selected: str | int) -> Link | None:
        name = next(name for name, link in LINKS.items() if selected in (name, link.index))
        if name in self.missing:
            return None
        return replace(LINKS[name], gso=self.gso.get(name, LINKS[name].gso))

    def _save(self, link: Link) -> list[root_qdisc.Saved]:
        if self.tree.roots[link.name] == FOREIGN:
            raise KernelError(
                f"interface {link.name} has a qdisc of kind {FOREIGN}, which could not be restored exactly"
            )
        return []

    def capped_ports(self) -> set[int]:
        return {each.remote_port for each in self.netfilter.entries}

    def minors(self, name: str) -> set[int]:
        return set(self.tree.classes[name])


def verdict_of_path(port: int) -> Verdict:
    return replace(verdict(port), rule=PATH, scope=ScopeKey(PATH.name, Share.PATH), throttle=PATH.throttle)


async def run_loop() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    """Run a scenario with a reconciler that shapes both interfaces and does not retry after a refusal."""
    monkeypatch.setattr(reconcile, "_MIN_PAUSE", 3600.0)

    async def run_scenario(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        scene = Scene(monkeypatch, tmp_path / "state")
        await scene.reconciler.prepare()
        scene.planner.set_verdicts(1, [verdict(1000)], NOW)
        scene.planner.set_verdicts(2, [verdict_of_path(port) for port in range(2000, 2004)], NOW)
        running = asyncio.create_task(scene.reconciler.run())
        scene.reconciler.wake()
        await run_loop()
        assert scene.capped_ports() == {1000, *range(2000, 2004)}
        await scenario(scene)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    return lambda scenario: asyncio.run(run_scenario(scenario))


Run = Callable[[Callable[[Scene], Awaitable[None]]], None]


async def compare_after_notice(scene: Scene) -> None:
    """Run the comparison that follows a notice of a foreign change."""
    with contextlib.suppress(KernelError):
        await scene.reconciler.verify()
    await run_loop()


@pytest.mark.parametrize("reason", ["cannot be restored", "the kernel refuses HTB"])
def test_new_caps_are_created_on_the_other_interface(run: Run, reason: str) -> None:
    """Defect: a class missing on one interface counted as missing on all, and its entries were never added."""

    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN if reason == "cannot be restored" else "pfifo")
        scene.tree.refused = "wan1"
        await compare_after_notice(scene)
        scene.planner.set_verdicts(3, [verdict(3000, token=3)], NOW)
        scene.planner.set_verdicts(2, [verdict_of_path(port) for port in range(2000, 2005)], NOW)
        scene.reconciler.wake()
        await run_loop()
        assert {2004, 3000} <= scene.capped_ports()
        assert len(scene.minors("wan0")) == 3
        assert not scene.minors("wan1")
        assert scene.tree.roots["wan0"] == OWN_TREE

    run(scenario)


def test_class_refused_before_a_comparison_is_created_at_the_next_attempt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the class counted as missing on all interfaces, because each retry was refused, too."""
    monkeypatch.setattr(reconcile, "_MIN_PAUSE", 0.0)

    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        scene.planner.set_verdicts(3, [verdict(3000, token=3)], NOW)
        scene.reconciler.wake()
        await run_loop()
        assert 3000 in scene.capped_ports()
        assert scene.minors("wan0") == set(scene.planner.classes.desired)

    run(scenario)


def test_interface_that_can_be_shaped_again_gets_all_current_classes(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mptcp_throttler")

    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        for _ in range(3):
            await compare_after_notice(scene)
        assert list(scene.tc.left_out) == ["wan1"]
        assert caplog.text.count("until its root can be replaced, wan1 is not shaped; others are shaped") == 1
        assert scene.reconciler.counters.failures == 3, "not each failed attempt was counted"
        assert scene.reconciler.counters.repairs == 1, "the foreign root was not counted as one repair"
        # These changes happen while wan1 is not shaped.
        scene.planner.set_verdicts(3, [verdict(3000, token=3)], NOW)
        scene.planner.set_verdicts(1, (), NOW)
        scene.planner.expire(NOW + IDLE_SECONDS)
        scene.reconciler.wake()
        await run_loop()
        scene.tree.set_foreign_root("wan1", "")
        await compare_after_notice(scene)
        assert caplog.text.count("the root of wan1 can be replaced again: wan1 is shaped") == 1
        assert not scene.tc.left_out
        assert scene.minors("wan1") == scene.minors("wan0") == set(scene.planner.classes.desired)
        failures, repairs = scene.reconciler.counters.failures, scene.reconciler.counters.repairs
        await compare_after_notice(scene)
        assert (scene.reconciler.counters.failures, scene.reconciler.counters.repairs) == (failures, repairs)

    run(scenario)


def test_damage_to_the_remaining_interface_is_repaired(run: Run) -> None:
    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        await compare_after_notice(scene)
        before = scene.minors("wan0")
        scene.tree.set_foreign_root("wan0", "")
        await compare_after_notice(scene)
        assert scene.tree.roots == {"wan0": OWN_TREE, "wan1": FOREIGN}
        assert scene.minors("wan0") == before

    run(scenario)


def test_gso_limit_of_a_left_out_interface_is_not_changed(run: Run) -> None:
    """The interface's original limit is not recorded, so it could not be restored."""

    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        await compare_after_notice(scene)
        scene.tc.set_gso_limit(lambda before: 3028)
        scene.reconciler.wake()
        await run_loop()
        assert scene.gso == {"wan0": {"gso_max_size": 3028}}
        scene.tree.set_foreign_root("wan1", "")
        await compare_after_notice(scene)
        assert scene.gso == {name: {"gso_max_size": 3028} for name in LINKS}

    run(scenario)


def test_removed_interface_no_longer_counts_as_left_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mptcp_throttler")

    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        await compare_after_notice(scene)
        scene.missing.add("wan1")
        await compare_after_notice(scene)
        assert not scene.tc.left_out
        assert "can be replaced again" not in caplog.text
        scene.missing.clear()
        scene.tree.set_foreign_root("wan1", "")
        await compare_after_notice(scene)
        assert scene.minors("wan1") == scene.minors("wan0")

    run(scenario)


def test_no_class_counts_as_created_if_no_interface_is_usable(run: Run) -> None:
    async def scenario(scene: Scene) -> None:
        for name in LINKS:
            scene.tree.set_foreign_root(name, FOREIGN)
        with pytest.raises(KernelError, match=r"interface wan0 has .*; interface wan1 has "):
            await scene.reconciler.verify()
        scene.planner.set_verdicts(3, [verdict(3000, token=3)], NOW)
        scene.reconciler.wake()
        await run_loop()
        assert 3000 not in scene.capped_ports()

    run(scenario)


def test_start_shapes_all_interfaces_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(monkeypatch, tmp_path / "state")
        scene.tree.set_foreign_root("wan1", FOREIGN)
        with pytest.raises(KernelError, match="interface wan1 has"):
            await scene.reconciler.prepare()
        assert scene.tree.roots == {"wan0": "", "wan1": FOREIGN}
        assert not scene.tc.prepared

    asyncio.run(scenario())


def test_stop_keeps_a_foreign_root_qdisc(run: Run) -> None:
    async def scenario(scene: Scene) -> None:
        scene.tree.set_foreign_root("wan1", FOREIGN)
        await compare_after_notice(scene)
        await scene.reconciler.close()
        assert scene.tree.roots == {"wan0": "", "wan1": FOREIGN}

    run(scenario)


def test_one_refusal_does_not_leave_out_an_interface_with_our_root(run: Run) -> None:
    """Defect: the interface kept its caps but got no new ones, and there was no retry before the next comparison."""

    async def scenario(scene: Scene) -> None:
        scene.tree.refused = "wan1"
        with pytest.raises(KernelError, match="root of wan1"):
            await scene.tc.prepare()
        assert not scene.tc.left_out
        scene.tree.refused = ""
        await scene.tc.prepare()
        assert scene.minors("wan1") == scene.minors("wan0")

    run(scenario)
