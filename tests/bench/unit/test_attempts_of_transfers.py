# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for experiments that judge each transfer by its own paths, and repeat only that one if they were late."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_testbed import FakeTestbed
from mutants import constant, series
from mutants_of_middleboxes import sound
from mutants_of_steering import END
from rich.console import Console

from mptcp_bench.experiments import middleboxes, starvation
from mptcp_bench.experiments.findings import Findings
from mptcp_bench.experiments.middleboxes_judging import PLACES
from mptcp_bench.experiments.starvation_judging import Outcome as Carried
from mptcp_bench.experiments.steering_modes import WARM
from mptcp_lab.testbed import EmulationError, TestbedError

SAMPLES = tuple(series({"eth0": constant(60), "wlan0": constant(30)}, END))
RECORDER = SimpleNamespace(
    now=WARM, samples=SAMPLES, flags=[(0.0, {"ethernet": False, "wifi": False})], wait=lambda until: None
)
MADE_AGAIN = "repeated for the emulated paths: %s: late"


def faked(monkeypatch: pytest.MonkeyPatch, module: ModuleType, testbeds: Any, **more: object) -> None:
    """Let the experiment of *module* run over *testbeds*, with fakes for everything that takes time."""
    fakes = {
        "need": lambda *features: None,
        "Testbed": testbeds,
        "time": SimpleNamespace(sleep=lambda seconds: None),
        "wait_until": lambda *of, **how: None,
        "start_origin": lambda *of: SimpleNamespace(url=lambda name: "http://origin/", digests={"file": ""}),
        "start_proxy": lambda *of, **how: SimpleNamespace(url=lambda: "http://proxy/"),
        "start_throttler": lambda *of: SimpleNamespace(),
        "write_throttler_config": lambda *of: Path("config.yaml"),
        **more,
    }
    for name, fake in fakes.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fake)


def run_starvation(
    monkeypatch: pytest.MonkeyPatch, testbeds: Any, layout: str = "three", variant: str = "cap", runs: str = "3"
) -> Findings:
    def built(testbed: FakeTestbed, layout: Any, variant: str) -> Any:
        proxy: Any = SimpleNamespace()
        lab: Any = testbed
        return starvation._Site(lab, layout, variant, proxy, ["curl"], None)

    monkeypatch.setattr(starvation._Site, "built", built)
    monkeypatch.setattr(starvation._Site, "_subflows", lambda site: {load.address for load in site.layout.loads})
    faked(
        monkeypatch, starvation, testbeds,
        PacketCounters=lambda *of: nullcontext(RECORDER),
        judge=lambda samples, loads, begin, end: [Carried(load, 1.0) for load in loads],
    )  # fmt: skip
    return starvation.run(CONSOLE, 1, True, {"layout": layout, "variant": variant, "runs": runs})


def run_middleboxes(
    monkeypatch: pytest.MonkeyPatch, testbeds: Any, fails: Iterable[bool] = (), **more: object
) -> Findings:
    failing = iter(fails)

    def observed(lab: FakeTestbed, argv: object, *, timeout: float, watch: Callable[[float], None]) -> Any:
        if next(failing, False):
            raise TestbedError("the observer ended with 1")
        lab.transfer()
        watch(0.0)
        samples = [SimpleNamespace(octets=dict.fromkeys(PLACES["both"], octets)) for octets in (0, 4_000_000)]
        protocol = SimpleNamespace(fallbacks=0, joins=1)
        return SimpleNamespace(
            status=0, octets=middleboxes.SIZE, sha256="", samples=samples, protocol=protocol, ended=4.0
        )

    faked(
        monkeypatch, middleboxes, testbeds,
        QUICK=("nothing",),
        lab_of=lambda testbed: testbed,
        observe=observed,
        subflows=lambda lab: 2,
        active_and_capped=lambda throttler: (2, 1),
    )  # fmt: skip
    for name, fake in more.items():
        monkeypatch.setattr(middleboxes, name, fake)
    return middleboxes.run(CONSOLE, 1, True, {})


def setup_of(testbed: FakeTestbed, *of: object, **how: object) -> Any:
    return SimpleNamespace(
        testbed=testbed, client=testbed, proxy=testbed, download=["curl"], load_between=lambda *of: None
    )


CONSOLE = Console(file=io.StringIO())
EACH: Mapping[str, tuple[Callable[..., Findings], str, str]] = {
    "starvation": (run_starvation, "runs", "three, cap, 2 of 3"),
    "middleboxes": (run_middleboxes, "downloads", "nothing on wifi"),
}
"""For each experiment: a function that runs three transfers, the key of its data, and the name of the second one."""


@pytest.mark.parametrize("name", EACH)
def test_a_transfer_over_late_paths_is_made_again_and_no_other_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: transfers were judged over the whole life of the testbed, so that one late transfer hardly counted."""
    run, key, second = EACH[name]
    testbed = FakeTestbed([False, True])
    findings = run(monkeypatch, lambda *topology, seed: nullcontext(testbed))
    assert findings.notes == (MADE_AGAIN % second,)
    assert findings.failures == ()
    assert findings.aims[-1].value == 0, "the product is not at fault"
    measured = len(findings.data[key]) + len(findings.data.get("controls", ()))
    assert (measured, testbed.transfers) == (3, 4)


def test_a_download_through_a_box_that_stays_void_loses_its_behaviour_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: one download that failed repeatedly discarded all others, some twenty minutes of work."""
    testbed = FakeTestbed()

    def download(lab: object, throttler: object, proxy: object, origin: object, behaviour: str, place: str) -> Any:
        if (behaviour, place) == ("nat", "wifi"):
            raise TestbedError("the last connection is gone: not within 90 s")
        return sound(behaviour, place)

    faked(monkeypatch, middleboxes, lambda *of, seed: nullcontext(testbed), download=download)
    findings = middleboxes.run(CONSOLE, 1, False, {"behaviour": "nothing,nat"})
    assert findings.failures == ("nat on wifi: the last connection is gone: not within 90 s",)
    judged = {aim.what.partition(":")[0] for aim in findings.aims[:-1]}
    assert judged == {"nothing"}
    assert len(findings.data["downloads"]) == 5
    assert findings.aims[-1].value == 2
    [of_nat] = [cells for cells in zip(*(c.cells for c in findings.tables[0].columns), strict=True) if "void" in cells]
    assert list(of_nat).count("void") == 1


def test_a_layout_of_starvation_that_cannot_be_built_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a failure in one layout discarded the results of earlier ones."""

    def testbeds(*built: bool) -> Callable[..., Any]:
        each = iter(built)

        def testbed(*topology: object, seed: int) -> Any:
            if not next(each):
                raise TestbedError("build three: exit code 2")
            return nullcontext(FakeTestbed())

        return testbed

    layouts = {"layout": "three,families", "runs": "1"}
    findings = run_starvation(monkeypatch, testbeds(True, False, True, True), **layouts, variant="cap,link")
    assert findings.failures == ("three, link: build three: exit code 2",)
    measured = [(each["layout"], each["variant"]) for each in findings.data["runs"]]
    assert measured == [("three", "cap"), ("families", "cap"), ("families", "link")]
    # If nothing was measured, an earlier result file is kept.
    with pytest.raises(TestbedError, match="exit code 2"):
        run_starvation(monkeypatch, testbeds(False), **layouts)


def test_the_end_of_a_testbed_that_was_late_loses_no_download_through_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the paths were judged only at the end, which discarded all downloads."""

    class LateAtTheEnd(FakeTestbed):
        def __enter__(self) -> FakeTestbed:
            return self

        def __exit__(self, *of: object) -> None:
            raise EmulationError("late")

    findings = run_middleboxes(monkeypatch, lambda *topology, seed: LateAtTheEnd())
    assert len(findings.data["downloads"]) == 3
    assert findings.failures == ("middleboxes: late",)


def test_what_waits_for_a_download_that_failed_waits_without_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed, waited = FakeTestbed(), []
    findings = run_middleboxes(
        monkeypatch,
        lambda *topology, seed: nullcontext(testbed),
        [True],
        QUICK=("nat",),
        wait_until=lambda *of, **how: waited.append(dict(testbed.boxes)),
    )
    assert findings.notes == ("repeated for another reason: nat on ethernet: the observer ended with 1",)
    assert waited == [{}, *[dict.fromkeys(PLACES["both"], "nothing")] * 3]
