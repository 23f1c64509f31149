"""The demo world is reproducible, ordered by time, heavy-tailed, and has an answer for every query."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from citewell.commands.demo_corpus import demo_corpus
from citewell.corpora.readers import read_contexts, read_papers, read_splits
from citewell.demo.corpus import generate, split_of, write
from citewell.scholarly.contexts import TARGET, count_targets, mask
from citewell.scholarly.dates import is_before
from citewell.scholarly.publications import Publication, validate


@given(seed=st.integers(0, 2**63), papers=st.integers(200, 400))
@settings(max_examples=8, deadline=None)
def test_every_world_is_valid_and_cites_only_the_past(seed: int, papers: int) -> None:
    seen: dict[str, Publication] = {}
    for publication in generate(papers, seed):
        validate(publication)
        assert publication.paper_id not in seen
        for cited in publication.reference_ids:
            assert is_before(seen[cited].published, publication.published)
        contexts = [context for passage in publication.passages for context in mask(passage)]
        assert all(count_targets(context.text) == 1 for context in contexts)
        assert {context.cited_id for context in contexts} == set(publication.reference_ids)
        seen[publication.paper_id] = publication
    assert len(seen) == papers


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(200, seed, tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["contexts.jsonl.gz", "papers.jsonl.gz", "queries.jsonl", "splits.json"]
    for name in names:
        content = (tmp_path / "a" / name).read_bytes()
        assert content == (tmp_path / "b" / name).read_bytes()
        assert content != (tmp_path / "c" / name).read_bytes()


def test_in_degrees_have_a_heavy_tail() -> None:
    cited = Counter(cited for publication in generate(6000, 3) for cited in publication.reference_ids)
    degrees = sorted(cited.values(), reverse=True)
    mean = sum(degrees) / 6000
    assert degrees[0] > 25 * mean, "some papers are cited by very many"
    assert len(degrees) < 0.75 * 6000, "many are cited by nobody"
    top_percent = sum(degrees[: 6000 // 100])
    assert top_percent > 0.1 * sum(degrees), "the most cited 1 % hold far more than 1 % of the citations"


def test_what_others_say_of_a_paper_is_not_in_its_abstract() -> None:
    publications = {publication.paper_id: publication for publication in generate(400, 5)}
    told = Counter[str]()
    for publication in publications.values():
        for passage in publication.passages:
            for context in mask(passage):
                own = f"{publications[context.cited_id].title} {publications[context.cited_id].abstract}"
                before = context.text[: context.text.index(TARGET)].split()[-2:]
                told["nickname" if all(word.isalpha() and word not in own for word in before) else "other"] += 1
    assert told["nickname"] > 0.2 * told.total()


def test_a_large_world_streams() -> None:
    def peak_of(count: int) -> int:
        tracemalloc.start()
        for _ in itertools.islice(generate(1_000_000, 1), count):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_of(100)  # so that imports and caches of the first use are not measured
    assert peak_of(4000) < 2**19  # together they are megabytes; threads of earlier tests may allocate a little, too


def test_the_files_are_what_the_readers_read(tmp_path: Path) -> None:
    written = write(500, 11, tmp_path)
    rejects: list[object] = []
    papers = {paper.id: paper for paper in read_papers(tmp_path, rejects.append)}
    contexts = list(read_contexts(tmp_path, rejects.append))
    assert rejects == []
    assert (len(papers), len(contexts)) == (written.papers, written.contexts)
    assert len({context.id for context in contexts}) == len(contexts)
    splits = {record.key: record.split for record in read_splits(tmp_path, rejects.append)}
    assert {context.citing_id for context in contexts} == set(splits)
    order = {"train": 0, "validation": 1, "test": 2}
    by_date = [order[splits[paper]] for paper in papers if paper in splits]
    assert by_date == sorted(by_date), "what is asked is newer than what is known"
    with gzip.open(tmp_path / "papers.jsonl.gz", "rt") as stream:
        first = json.loads(next(stream))
    assert first["published"].startswith(str(first["year"]))
    assert first["authors"]


def test_every_held_out_query_has_answers_that_are_older(tmp_path: Path) -> None:
    written = write(500, 11, tmp_path)
    papers = {paper.id: paper for paper in read_papers(tmp_path, lambda _: None)}
    queries = [json.loads(line) for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    assert len(queries) == written.queries > 20
    for query in queries:
        assert count_targets(query["context"]) == 1
        assert query["answers"]
        assert all(str(papers[answer].published) < query["published_before"] for answer in query["answers"])


@pytest.mark.parametrize("papers", [200, 1000, 1_000_000])
def test_splits_come_in_the_order_of_time(papers: int) -> None:
    names = [split_of(number, papers) for number in range(0, papers, max(1, papers // 1000))]
    assert [name for name, _ in itertools.groupby(names)] == ["train", "validation", "test"]


@pytest.mark.parametrize("papers", [0, 199, 1_000_001])
def test_a_world_out_of_range_is_refused_with_the_range(papers: int) -> None:
    with pytest.raises(ValueError, match=r"has 200 to 1,000,000"):
        next(generate(papers, 1))


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(demo_corpus)
    result = CliRunner().invoke(app, ["--papers", "200", "--seed", "3", "--out", str(tmp_path / "world")])
    assert result.exit_code == 0, result.output
    assert "200 papers" in result.output
    assert (tmp_path / "world" / "queries.jsonl").exists()
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = CliRunner().invoke(app, ["--papers", "200", "--out", str(blocked / "world")])
    assert result.exit_code == 2
    assert "--out" in result.output
