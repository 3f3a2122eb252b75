"""What docs/results keeps is judged as it would be today, or its page says that it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_of_the_paper import claims_today, of_the_paper, samples
from paper_mutants import PAPER, TODAY, World, experiment

from mptcp_bench.doc_tables import read_kept, summary
from mptcp_bench.paper.chapter import cell_of
from mptcp_bench.paper.scenarios import SCENARIOS
from mptcp_bench.paper.summary import summed_up
from mptcp_bench.statistics import mean_interval

KEPT = read_kept()
PAPERS = sorted(name for name, kept in KEPT.items() if of_the_paper(kept))


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_claims_are_those_of_today_and_have_the_verdicts_of_today(name: str) -> None:
    """Where this fails a claim was changed: run the experiment again, for the kept result is not what it says."""
    kept = next(table for table in KEPT[name].tables if table.key == "claims")
    today = [(claim.paper, claim.verdict) for claim in claims_today(KEPT[name])]
    assert [(paper, verdict) for paper, _, verdict in kept.rows] == today


@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("world", [PAPER, TODAY], ids=["paper", "today"])
def test_a_summary_is_judged_as_what_it_sums_up(world: World, key: str) -> None:
    measured = experiment(world, key)
    assert [claim.verdict for claim in claims_today(summary(measured))] == [claim.verdict for claim in measured.claims]


@given(st.lists(st.floats(1e6, 1e9), min_size=1, max_size=12))
def test_samples_have_the_mean_and_the_interval_of_their_cell(values: list[float]) -> None:
    found = mean_interval(samples(cell_of(summed_up("case", "goodput", values))))
    whole = mean_interval(values)
    digits = 0.02 * max(whole.mean, whole.half or 0.0)
    assert found.n == whole.n
    assert found.mean == pytest.approx(whole.mean, abs=digits)
    assert found.half == (None if whole.half is None else pytest.approx(whole.half, rel=0.5, abs=digits))
