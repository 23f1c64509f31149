"""Tables of reranked lists, on lists small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citewell.lab.davinci.evaluation import (
    RETRIEVAL,
    KeptRanks,
    Reranked,
    against,
    depths,
    differences,
    example_row,
    figures,
    gates,
    report,
    worked_example,
)
from citewell.lab.davinci.scoring import HeadScores
from tests.unit.davinci_world import lists_of, write_dataset


@pytest.fixture(scope="module")
def reranked(tmp_path_factory: pytest.TempPathFactory) -> Reranked:
    """One head that ranks the cited paper first, and one that reverses every list."""
    data = write_dataset(Path(tmp_path_factory.mktemp("evaluation")))
    lists = lists_of(data, "test")
    knows = (lists.papers == lists.gold[:, None]).astype(np.float32)
    turns = np.broadcast_to(np.arange(lists.depth, dtype=np.float32), lists.papers.shape)
    halves = np.full_like(knows, 0.25), np.full_like(knows, 0.75)
    return Reranked(data, lists, {"knows": HeadScores(knows, *halves), "turns": HeadScores(turns, *halves)})


def row_of(markdown: str, label: str) -> list[str]:
    (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_a_head_that_knows_reaches_the_ceiling_of_the_lists(reranked: Reranked) -> None:
    inside = 100 * np.mean(reranked.lists.gold_position < reranked.lists.depth)
    text = figures(reranked, [RETRIEVAL, "knows", "turns"])
    assert all(cell.startswith(f"{inside:.2f} [") for cell in row_of(text, "knows")[1:])
    before = float(row_of(text, RETRIEVAL)[1].split()[0])
    assert before < inside


def test_turning_a_list_around_turns_the_ranks(reranked: Reranked) -> None:
    ranks, turned = reranked.ranks(RETRIEVAL), reranked.ranks("turns")
    np.testing.assert_array_equal(turned[ranks > 0], reranked.lists.depth + 1 - ranks[ranks > 0])


def test_differences_name_the_other_system(reranked: Reranked) -> None:
    text = differences(reranked, "knows", [RETRIEVAL, "turns"])
    assert row_of(text, "turns")[1].startswith("+")
    assert 0 < float(row_of(text, RETRIEVAL)[2]) <= 1


def test_ranks_are_kept_and_another_run_is_compared_with_them(reranked: Reranked, tmp_path: Path) -> None:
    KeptRanks.of(reranked, "turns").save(tmp_path / "turns.ranks")
    other = KeptRanks.load(tmp_path / "turns.ranks")
    text = against(reranked, "knows", other, "turns")
    base, reached = (
        100 * np.mean(1 / np.where(ranks > 0, ranks, np.inf)) for ranks in (other.ranks, reranked.ranks("knows"))
    )
    assert row_of(text, "MRR")[1] == f"{base:.2f}"
    assert row_of(text, "MRR")[3] == f"{100 * (reached - base) / base:+.1f} %"
    shuffled = replace(reranked, lists=reranked.lists.take(np.arange(len(reranked.lists))[::-1]))
    with pytest.raises(ValueError, match="turns ranked other queries"):
        against(shuffled, "knows", other, "turns")


def test_a_shallower_list_can_only_lose_for_a_head_that_knows(reranked: Reranked) -> None:
    values = [float(cell) for cell in row_of(depths(reranked, ["knows"], (1, 3, 12)), "knows")[1:]]
    assert values == sorted(values)
    assert values[0] == pytest.approx(100 * np.mean(reranked.lists.gold_position == 0), abs=0.01)


def test_gates_are_means_over_pairs(reranked: Reranked) -> None:
    assert row_of(gates(reranked, "knows", (4, 12)), "rank 5–12")[1:] == ["0.250", "0.750"]


def test_the_example_marks_the_cited_paper_and_shows_ids_only(reranked: Reranked) -> None:
    row = int(np.flatnonzero(reranked.lists.gold_position < reranked.lists.depth)[0])
    text = worked_example(reranked, row, [RETRIEVAL, "knows", "turns"])
    cited = reranked.data.papers.ids[int(reranked.lists.gold[row])]
    assert row_of(text, "1")[2].startswith(f"**{cited}**")
    assert not any(title in text for title in reranked.data.papers.titles)


def test_the_report_holds_every_table(reranked: Reranked) -> None:
    text = report(reranked, ["knows", "turns"])
    assert text.startswith(f"{len(reranked.lists)} queries of 3 citing papers, k = 12")
    assert "| MRR at k = | 10 |" in text
    compared = next(part for part in text.split("\n\n") if "Δ MRR" in part)
    assert row_of(compared, "turns")[1].startswith("+")


def test_the_example_is_a_query_the_model_helped(reranked: Reranked) -> None:
    row = example_row(reranked, "knows", top=1)
    assert row is not None
    assert reranked.ranks(RETRIEVAL)[row] > 1 == reranked.ranks("knows")[row]
    assert example_row(reranked, RETRIEVAL) is None
