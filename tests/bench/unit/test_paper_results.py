# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a paper result's file: it is read as written, a mistake takes one line, and nothing is half written."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from paper_examples import EXAMPLES, fig2, fig3, incomplete

from mptcp_bench import result_file
from mptcp_bench.paper import results
from mptcp_bench.paper.results import PaperResult, Series, metric, share
from mptcp_bench.result_file import ResultError, from_json


@pytest.mark.parametrize("make", [*EXAMPLES, incomplete])
def test_what_is_written_is_what_is_read(make: Callable[[], PaperResult], tmp_path: Path) -> None:
    target = tmp_path / "new" / result_file.FILE
    result_file.write(make(), target)
    assert results.load(target) == make()
    assert list(result_file.find(tmp_path)) == [target]


def test_everybody_may_read_a_result(tmp_path: Path) -> None:
    result_file.write(fig2(), tmp_path / "r.json")
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o644


def test_a_number_that_is_none_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    good = fig2()
    result_file.write(good, tmp_path / "r.json")
    bad = replace(good, runs=(replace(good.runs[0], values={"goodput": float("nan")}),))
    with pytest.raises(ResultError, match="fig2: a number that is not finite"):
        result_file.write(bad, tmp_path / "r.json")
    assert results.load(tmp_path / "r.json") == good
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "r.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        result_file.write(fig2(), tmp_path / "r.json")
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"r\.json: No such file or directory$"):
        results.load(tmp_path / "r.json")


def changed(*path: str | int, to: object) -> str:
    """Return the text of a result with one value replaced."""
    whole = json.loads(result_file.to_json(fig3()))
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: Invalid JSON"),
        ("[1]", "f: Input should be an object"),
        ("{}", "f: provenance: Field required (and 9 more)"),
        (changed("seed", to=7.5), "f: seed 7.5: Input should be a valid integer"),
        (changed("complete", to="yes"), "f: complete 'yes': Input should be a valid boolean"),
        (changed("runs", 0, "valid", to=1), "f: runs.0.valid 1: Input should be a valid boolean"),
        (changed("claims", 0, "verdict", to="perhaps"), "f: claims.0.verdict 'perhaps': Input should be 'holds', "),
        (changed("runs", 1, "case", to="fig"), "f: run of case 'fig'; there are mptcp, tcp-ethernet, tcp-wifi"),
        (changed("cases", 1, "key", to="mptcp"), "f: two cases have the same key"),
        (changed("runs", 0, "series", "times", to=[1.0]), "f: runs.0.series: series 'ethernet' has "),
    ],
)
def test_what_is_no_result_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ResultError) as error:
        from_json(text, "f", PaperResult)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_key_of_a_later_version_is_no_error() -> None:
    assert from_json(changed("later", to=1), "f", PaperResult) == fig3()


def test_a_failed_run_is_no_data_point() -> None:
    drawn = fig3()
    assert [run.reason for run in drawn.failed()] == ["fell back to plain TCP"]
    assert len(drawn.valid("mptcp")) == len(drawn.values("mptcp", "goodput")) == 5
    assert drawn.values("tcp-wifi", share("ethernet")) == ()


def test_series_have_a_value_for_each_time() -> None:
    with pytest.raises(ValueError, match="series 'held' has 1 values for 2 times"):
        Series((1.0, 2.0), {"wifi": (1.0, 2.0)}, {"held": (1.0,)})


def test_an_unknown_metric_keeps_its_name() -> None:
    assert metric("some_thing").title == "some thing"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_finite_is_refused(constant: str) -> None:
    text = re.sub(r'"mean": [\d.]+', f'"mean": {constant}', result_file.to_json(fig3()), count=1)
    assert constant in text
    with pytest.raises(ResultError, match=f"some.json: {constant} is no number"):
        from_json(text, "some.json", PaperResult)
