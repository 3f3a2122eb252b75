# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a paper experiment that ends early: finished runs are kept, and a line says where."""

from __future__ import annotations

import errno
import os
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


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int, *, valid: bool = False) -> None:
    """Let each experiment of the paper raise *error* after *after* runs, which are data points if *valid*."""
    prepare = session.prepare

    def prepared(name: str, order: session.Order) -> session.Rerun:
        rerun = prepare(name, order)

        def runs(*_: object) -> Iterator[Run]:
            for number in range(after):
                yield Run(rerun.result.cases[0].key, number + 1, valid=valid, reason="" if valid else "too late")
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


def test_a_figure_that_cannot_be_drawn_hides_neither_an_interrupt_nor_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends(monkeypatch, KeyboardInterrupt(), 1, valid=True)
    monkeypatch.setattr(session, "draw", full)
    assert main(["run", "fig2", "--output", str(tmp_path)]) == INTERRUPTED
    said = (
        "interrupted",
        f"{tmp_path}/fig2/{FILE} has what was done, marked as interrupted",
        "its figure cannot be drawn: No space left on device",
    )
    assert capsys.readouterr().err == "".join(f"mptcp-bench: {line}\n" for line in said)
