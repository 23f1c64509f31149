"""The demo world as publications, one at a time, and as files that `citewell load` and `citewell evaluate` read."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TextIO, cast

from citewell.demo import prose
from citewell.demo.world import Draws, World
from citewell.scholarly.contexts import mask
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Publication

LEAST_PAPERS: Final = 200
MOST_PAPERS: Final = 1_000_000

# The share of papers with full text, and so with references and contexts. Of the others only the record is known.
FULL_TEXT_SHARE: Final = 0.3

# The newest papers are held out, the last of them for the test split; the cap keeps evaluations short.
_HELD_OUT_SHARE: Final = 0.1
_MOST_HELD_OUT: Final = 5_000

_FULL_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class Written:
    """How much was written."""

    papers: int
    contexts: int
    queries: int


def generate(papers: int, seed: int) -> Iterator[Publication]:
    """`papers` invented publications in the order of their dates; each cites only those dated before it."""
    if not LEAST_PAPERS <= papers <= MOST_PAPERS:
        raise ValueError(f"papers is {papers}; a demo world has {LEAST_PAPERS:,} to {MOST_PAPERS:,}")
    world = World(papers, seed)
    for number in range(papers):
        traits = world.traits(number)
        read = Draws(_FULL_TEXT, seed, number).chance(FULL_TEXT_SHARE)
        published = world.published(number)
        yield Publication(
            paper_id=world.id(number),
            revision=1,
            title=prose.title(traits),
            abstract=prose.abstract(world, number, traits),
            authors=world.authors(number),
            venue=world.venue(number),
            published=PartialDate(published.year, published.month, published.day),
            reference_ids=tuple(map(world.id, world.references(number))) if read else (),
            passages=prose.passages(world, number) if read else (),
        )


def split_of(number: int, papers: int) -> str:
    """The split of the paper at this place: citations of `train` papers are known, others are asked for."""
    held_out = min(int(papers * _HELD_OUT_SHARE), _MOST_HELD_OUT)
    if number < papers - 2 * held_out:
        return "train"
    return "validation" if number < papers - held_out else "test"


def write(papers: int, seed: int, folder: Path, on_paper: Callable[[], None] = lambda: None) -> Written:
    """Writes papers.jsonl.gz, contexts.jsonl.gz, splits.json and queries.jsonl (test contexts and answers)."""
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    contexts = queries = 0
    with ExitStack() as files:
        paper_lines = _json_lines(files, folder / "papers.jsonl.gz")
        context_lines = _json_lines(files, folder / "contexts.jsonl.gz")
        query_lines = _json_lines(files, folder / "queries.jsonl")
        for number, publication in enumerate(generate(papers, seed)):
            paper_lines(_paper(publication))
            split = split_of(number, papers)
            if publication.passages:
                splits[split].append(publication.paper_id)
            for context in _contexts(publication):
                context_lines({"id": f"demo-{seed}-c{contexts:08}"} | context)
                contexts += 1
            for query in _queries(publication) if split == "test" else ():
                query_lines({"id": f"demo-{seed}-q{queries:06}"} | query)
                queries += 1
            on_paper()
    (folder / "splits.json").write_text(json.dumps(splits, indent=0), encoding="utf-8")
    return Written(papers, contexts, queries)


def _paper(publication: Publication) -> dict[str, Any]:
    return {
        "id": publication.paper_id,
        "title": publication.title,
        "abstract": publication.abstract,
        "year": publication.published.year,
        "published": str(publication.published),
        "venue": publication.venue,
        "authors": publication.authors,
    }


def _contexts(publication: Publication) -> Iterator[dict[str, Any]]:
    for passage in publication.passages:
        for context in mask(passage):
            yield {
                "citing_id": publication.paper_id,
                "cited_id": context.cited_id,
                "text": context.text,
                "year": publication.published.year,
                "group": context.group_size,
            }


def _queries(publication: Publication) -> Iterator[dict[str, Any]]:
    """Each masked place once, with all papers that its bracket cites as right answers."""
    answers: dict[str, list[str]] = {}
    for context in _contexts(publication):
        answers.setdefault(context["text"], []).append(context["cited_id"])
    for text, cited in answers.items():
        yield {
            "citing_id": publication.paper_id,
            "context": text,
            "title": publication.title,
            "abstract": publication.abstract,
            "published_before": str(publication.published),
            "answers": cited,
        }


def _json_lines(files: ExitStack, path: Path) -> Callable[[dict[str, Any]], None]:
    if path.suffix == ".gz":
        # Without a name and a time in the gzip header, the same world gives the same bytes.
        raw = files.enter_context(path.open("wb"))
        compressed = files.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0))
        stream: TextIO = files.enter_context(io.TextIOWrapper(cast(IO[bytes], compressed), encoding="utf-8"))
    else:
        stream = files.enter_context(path.open("w", encoding="utf-8"))

    def write_line(record: dict[str, Any]) -> None:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    return write_line
