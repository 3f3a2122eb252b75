"""An experiment of the paper that ends early: what was done is kept, and a line says where, if anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.paper import session
from mptcp_bench.paper.results import Run, load
from mptcp_bench.result_file import FILE
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.host import Lab

LAB = session.CheckedLab(Lab.__new__(Lab))


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """Have each experiment of the paper end by *error*, after so many runs that are no data points."""
    prepare = session.prepare

    def prepared(name: str, order: session.Order) -> session.Rerun:
        rerun = prepare(name, order)

        def runs(*_: object) -> Iterator[Run]:
            for number in range(after):
                yield Run(rerun.result.cases[0].key, number + 1, valid=False, reason="too late")
            raise error

        return replace(rerun, runs=runs)

    @contextmanager
    def lab(order: session.Order) -> Iterator[session.CheckedLab]:
        yield LAB

    monkeypatch.setattr(session, "prepare", prepared)
    monkeypatch.setattr(session, "checked_lab", lab)


@pytest.mark.parametrize("after", [0, 7])
def test_an_interrupt_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    ends(monkeypatch, KeyboardInterrupt(), after)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == INTERRUPTED
    target = tmp_path / "fig2" / FILE
    said = f"{target} has what was done, marked as interrupted" if after else "nothing was measured"
    assert capsys.readouterr().err == f"mptcp-bench: interrupted\nmptcp-bench: {said}\n"
    assert target.exists() == bool(after)
    if after:
        assert (load(target).complete, len(load(target).runs)) == (False, after)


def test_an_error_in_the_middle_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(monkeypatch, TestbedError("the proxy is gone"), 7)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == 1
    kept = f"{tmp_path}/fig2/{FILE} has what was done, marked as interrupted"
    assert capsys.readouterr().err == f"mptcp-bench run fig2: the proxy is gone; {kept}\n"
