"""Turning data set folders into publications: grouping, splits, omitted entries, resuming after a kill."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from citewell.corpora.spilling import Corpus, Loadable, input_hash
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.limits import MAX_PASSAGE
from citewell.scholarly.publications import Publication


def lines(path: Path, *entries: Any) -> None:
    text = "".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def paper(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"p{number}", "title": f"Title {number}", "abstract": "Words.", "year": 2001, "venue": "V", **more}


def context(number: int, citing: int, cited: int, **more: Any) -> dict[str, Any]:
    text = f"As TARGETCIT says, {number}."
    return {"id": f"c{number}", "citing_id": f"p{citing}", "cited_id": f"p{cited}", "text": text, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set in which the contexts of a paper are not adjacent, as in public sets."""
    lines(tmp_path / "papers.jsonl.gz", *(paper(number) for number in range(5)))
    lines(
        tmp_path / "contexts.jsonl",
        context(0, 4, 0, group=2),
        context(1, 3, 0),
        context(2, 4, 1),
        context(3, 4, 0),
        context(4, 2, 9),
    )
    (tmp_path / "splits.json").write_text(json.dumps({"train": ["p4"], "validation": ["p3"], "test": ["p2"]}))
    return tmp_path


def opened(folder: Path, split: str = "", name: str = "state") -> Corpus:
    corpus = Corpus(folder, folder / "state" / f"{name}.sqlite", split)
    if not corpus.ready:
        corpus.spill(lambda: None)
    return corpus


def told(loadable: Loadable) -> Publication:
    assert isinstance(loadable.event.body, Publication)
    return loadable.event.body


def rejects(corpus: Corpus, folder: Path) -> list[tuple[str, int, str]]:
    path = folder / "rejects.jsonl"
    if not corpus.write_rejects(path):
        return []
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


def test_contexts_are_gathered_by_their_citing_paper(folder: Path) -> None:
    corpus = opened(folder)
    publications = [told(loadable) for loadable in corpus.publications()]
    assert [publication.paper_id for publication in publications] == [f"p{number}" for number in range(5)]
    assert publications[4] == Publication(
        paper_id="p4",
        revision=1,
        title="Title 4",
        abstract="Words.",
        venue="V",
        published=PartialDate(2001),
        masked_contexts=(
            MaskedContext("As TARGETCIT says, 0.", "p0", 2),
            MaskedContext("As TARGETCIT says, 2.", "p1"),
            MaskedContext("As TARGETCIT says, 3.", "p0"),
        ),
    )
    assert [context.cited_id for context in publications[2].masked_contexts] == ["p9"]  # not loaded yet
    assert corpus.counts() == (5, 5, 0)
    assert rejects(corpus, folder) == []


def test_a_split_keeps_the_other_papers_but_not_their_contexts(folder: Path) -> None:
    publications = [told(loadable) for loadable in opened(folder, "train").publications()]
    assert [len(publication.masked_contexts) for publication in publications] == [0, 0, 0, 0, 3]


def test_the_public_benchmark_format(tmp_path: Path) -> None:
    papers = {f"p{number}": {"title": f"Title {number}", "abstract": ""} for number in range(3)}
    contexts = {
        "c0": {"masked_text": "Per TARGETCIT.", "citing_id": "p2", "refid": "p0"},
        "c1": {"masked_text": "Per TARGETCIT too.", "citing_id": "p2", "refid": "p1"},
    }
    (tmp_path / "papers.json").write_text(json.dumps(papers))
    (tmp_path / "contexts.json").write_text(json.dumps(contexts))
    for name, ids in (("train", ["c0"]), ("val", []), ("test", ["c1"])):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"context_id": each, "positive_ids": []} for each in ids]))
    publications = [told(loadable) for loadable in opened(tmp_path).publications()]
    assert [len(publication.masked_contexts) for publication in publications] == [0, 0, 2]
    [only] = [told(loadable) for loadable in opened(tmp_path, "train", "t").publications()][2].masked_contexts
    assert only == MaskedContext("Per TARGETCIT.", "p0")


def test_what_cannot_be_used_is_left_out_with_its_place(tmp_path: Path) -> None:
    lines(
        tmp_path / "papers.jsonl",
        paper(0),
        "{broken",
        paper(1, title=""),
        paper(2),
        paper(0, title="Again"),
        paper(3, revision=0),
        paper(4, title="T" * 3000),
        paper(5, revision=7),
    )
    lines(
        tmp_path / "contexts.jsonl",
        context(0, 2, 0),
        context(1, 77, 0),
        context(2, 2, 0, text="no marker"),
        context(3, 2, 0, text="TARGETCIT " + "x" * MAX_PASSAGE),
        context(4, 2, 0, cited_id=" p0"),
    )
    corpus = opened(tmp_path)
    publications = {told(loadable).paper_id: told(loadable) for loadable in corpus.publications()}
    assert {name: publication.revision for name, publication in publications.items()} == {"p0": 1, "p2": 1, "p5": 7}
    assert publications["p0"].title == "Title 0"
    assert len(publications["p2"].masked_contexts) == 1
    places = rejects(corpus, tmp_path)
    assert [place[:2] for place in places] == [
        *(("contexts.jsonl", line) for line in (2, 3, 4, 5)),
        *(("papers.jsonl", line) for line in (2, 3, 5, 6, 7)),
    ]
    reasons = [place[2] for place in places]
    for reason, words in zip(
        reasons,
        ("p77", "TARGETCIT", "characters", "cited_id", "not JSON", "title", "before", "revision", "title"),
        strict=True,
    ):
        assert words in reason


def test_a_killed_load_goes_on_where_it_was(folder: Path) -> None:
    first = opened(folder)
    loadables = list(first.publications())
    first.loaded(loadables[1].number, [loadables[0].source])
    first.close(forget=False)
    again = Corpus(folder, folder / "state" / "state.sqlite")
    assert again.ready
    assert again.counts() == (5, 5, 2)
    assert list(again.publications()) == loadables[2:]
    assert rejects(again, folder) == [("papers.jsonl.gz", 1, "")]
    again.close(forget=True)
    assert not (folder / "state" / "state.sqlite").exists()


def test_a_load_killed_while_reading_begins_again(folder: Path) -> None:
    class Killed(Exception):
        pass

    def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    left = 7
    corpus = Corpus(folder, folder / "state" / "state.sqlite")
    with pytest.raises(Killed):
        corpus.spill(die)
    corpus.close(forget=False)
    again = opened(folder)
    assert again.counts() == (5, 5, 0)
    again.close(forget=True)


def test_another_input_or_option_is_another_load(folder: Path) -> None:
    before = input_hash(folder, "train")
    assert before == input_hash(folder, "train") != input_hash(folder, "")
    lines(folder / "contexts.jsonl", context(0, 4, 0))
    assert input_hash(folder, "train") != before
