"""Invented data sets for the lab's tests, small enough to check by hand, in both formats the lab reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset
from citewell.lab.vectors import TextVectors

TOPICS = ("parsing", "translation", "summarisation", "tagging", "dialogue", "speech")
DIMENSION = 24


Records = list[dict[str, Any]]


def invented(papers: int = 48, seed: int = 7) -> tuple[Records, Records, dict[str, list[str]]]:
    """Papers of 2000 to 2011, one topic each; those of 2008 and before cite as train, 2009 as validation, then test."""
    rng = np.random.default_rng(seed)
    records: Records = [
        {
            "id": f"p{number:03}",
            "title": f"{TOPICS[number % len(TOPICS)].title()} with method{number}",
            "abstract": "" if number % 5 == 0 else f"About {TOPICS[number % len(TOPICS)]}, by method{number}.",
            "year": 2000 + number * 12 // papers,
            "venue": "invented",
        }
        for number in range(papers)
    ]
    contexts: Records = []
    for number, record in enumerate(records):
        older = [other for other in range(number) if records[other]["year"] < record["year"]]
        for cited in rng.permutation(older)[:4]:
            topic = TOPICS[cited % len(TOPICS)]
            for repeat in range(1 + number % 2):  # some pairs have two contexts
                contexts.append(
                    {
                        "id": f"c{len(contexts):04}",
                        "citing_id": record["id"],
                        "cited_id": records[cited]["id"],
                        "text": f"In part {repeat} we use alias{cited} for {topic} TARGETCIT and others OTHERCIT.",
                        "year": record["year"],
                        "group": 1 + repeat,
                        "source": "fulltext" if repeat else "citance",
                    }
                )
    years = {"train": range(2000, 2009), "validation": range(2009, 2010), "test": range(2010, 2012)}
    citing = {context["citing_id"] for context in contexts}
    splits = {
        split: [record["id"] for record in records if record["year"] in span and record["id"] in citing]
        for split, span in years.items()
    }
    return records, contexts, splits


def write_lines(folder: Path, papers: Records, contexts: Records, splits: dict[str, list[str]]) -> Path:
    """The set as gzipped JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("papers", papers), ("contexts", contexts)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in records)
    (folder / "splits.json").write_text(json.dumps(splits))
    return folder


def write_public(
    folder: Path, papers: Records, contexts: Records, splits: dict[str, list[str]], indent: int | None = None
) -> Path:
    """The same set in the public benchmark format."""
    folder.mkdir(parents=True, exist_ok=True)
    keyed = {paper["id"]: {k: v for k, v in paper.items() if k != "id"} for paper in papers}
    masked = {
        context["id"]: {
            "masked_text": context["text"],
            "citing_id": context["citing_id"],
            "refid": context["cited_id"],
        }
        for context in contexts
    }
    (folder / "papers.json").write_text(json.dumps(keyed, indent=indent))
    (folder / "contexts.json").write_text(json.dumps(masked, indent=indent))
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        members = [c for c in contexts if c["citing_id"] in splits[split]]
        entries = [{"context_id": c["id"], "positive_ids": [c["cited_id"]]} for c in members]
        (folder / f"{name}.json").write_text(json.dumps(entries, indent=indent))
    return folder


def word_vectors(texts: list[str]) -> np.ndarray:
    """Bag-of-words vectors: every word has a fixed random direction. Not unit length, so that norms matter."""
    out = np.zeros((len(texts), DIMENSION), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            seed = int.from_bytes(word.encode()[:8].ljust(8, b"."), "little")
            out[row] += np.random.default_rng(seed).normal(size=DIMENSION) / 10
    return out


def vectors_of(data: Dataset) -> TextVectors:
    """Vectors for every text of a set."""
    pairs = zip(data.papers.titles, data.papers.abstracts, strict=True)
    papers = word_vectors([f"{title} {abstract}" for title, abstract in pairs])
    return TextVectors(papers, word_vectors(list(data.contexts.texts)), "bag of words")


class FixedDraws:
    """In place of a random generator: draws the first hard negatives, and always these papers as the random ones."""

    def __init__(self, *papers: int) -> None:
        self._papers = np.array(papers, np.int64)

    def integers(self, low: int, high: int, size: int | tuple[int, int]) -> NDArray[np.int64]:
        return self._papers if isinstance(size, int) else np.zeros(size, np.int64)
