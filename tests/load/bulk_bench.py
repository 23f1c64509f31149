"""What a bulk build costs: processor seconds of each step a record, bytes of each record, and the Spark job as a whole.

    python -m tests.load.bulk_bench steps --papers 2000        # the functions alone, by processor time: any machine
    python -m tests.load.bulk_bench job OUT --papers 100000    # the Spark job on vectors that are supplied

Each paper has ten citations, each with a context; cited papers are drawn with a preference for few of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from citewell.bulk.embedding import Embedding
from citewell.bulk.summing import summed
from citewell.bulk.telling import tell, with_vectors

DIMENSION, CITATIONS, AT_ONCE = 384, 10, 5_000
VOCABULARY = 30_000


class GivenEncoder:
    """Names the vectors that are supplied; it encodes nothing."""

    model_id, model_hash, dimension, runtime = "supplied", "supplied-384", DIMENSION, "none"
    former_hashes = frozenset[str]()

    def paper_text(self, title: str, abstract: str) -> str:
        return f"{title}\n{abstract}"

    def encode(self, texts: object) -> np.ndarray:
        raise NotImplementedError("vectors are supplied")


def make(name: str) -> GivenEncoder:
    return GivenEncoder()


def papers(count: int, seed: int = 3) -> Iterator[dict[str, Any]]:
    """Invented papers, oldest first; a paper cites older ones."""
    rng = np.random.default_rng(seed)

    def words(number: int) -> str:
        return " ".join(f"w{word}" for word in (VOCABULARY * rng.random(number) ** 3).astype(int))

    for number in range(count):
        cited = np.unique((number * rng.random(CITATIONS) ** 3).astype(int)).tolist() if number else []
        yield {
            "id": f"paper-{number:09}",
            "title": words(10),
            "abstract": words(120),
            "published": str(1990 + 35 * number // count),
            "contexts": [
                {"cited_id": f"paper-{other:09}", "text": f"{words(25)} TARGETCIT {words(25)}", "group_size": 1}
                for other in cited
            ],
            "citations": [],
        }


def vector(key: bytes) -> list[float]:
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    drawn = np.random.default_rng(seed).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32).tolist()  # type: ignore[no-any-return]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    made = work()
    return made, time.process_time() - began


def steps(count: int) -> None:
    """Prints processor time and bytes a record of each step."""
    inputs = list(papers(count))
    told, telling = _timed(lambda: [tell(paper) for paper in inputs])
    texts = {text["key"]: text for row in told for text in row["texts"]}
    given = [{**text, "given": vector(key)} for key, text in texts.items()]
    made, counting = _timed(lambda: with_vectors(given, DIMENSION))
    by_key = {row["key"]: row for row in made}
    rows = [
        {
            "cited": edge["cited"],
            "year": edge["year"],
            "citing": row["id"],
            "content": not at,
            "vector": by_key[key]["vector"],
            "terms": by_key[key]["terms"] if at else None,
            "body_counts": by_key[key]["body_counts"] if at else None,
        }
        for row in told
        for edge in row["edges"]
        for at, key in enumerate((row["text_key"], *edge["contexts"]))
    ]
    rows.sort(key=lambda row: (row["cited"], row["year"], row["citing"]))
    sums, summing = _timed(lambda: list(summed(rows, DIMENSION)))
    citations = sum(len(row["edges"]) for row in told)
    print(f"{count:,} papers, {citations:,} citations, {len(texts):,} texts, {len(sums):,} rows of sums")
    for name, seconds, number in (
        ("tell, a paper", telling, count),
        ("count words and round a vector, a text", counting, len(made)),
        ("add up, a text of a citation", summing, len(rows)),
    ):
        print(f"  {name}: {1e6 * seconds / number:.0f} µs of processor")
    sizes = {
        "publication": [len(row["publication"]) for row in told],
        "vector and terms of a text": [sum(len(value) for value in row.values()) for row in made],
        "text of a citation, as shuffled": [
            len(row["vector"]) + len(row["terms"] or b"") + len(row["body_counts"] or b"") + 40 for row in rows
        ],
        "sums of a (cited, year)": [
            sum(len(value) for value in row.values() if isinstance(value, bytes)) for row in sums
        ],
    }
    for name, found in sizes.items():
        print(f"  {name}: {np.mean(found):,.0f} bytes")


def write_inputs(count: int, folder: Path) -> None:
    """The inputs of the job as Parquet, vectors too."""
    for name in ("papers", "contexts", "vectors"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    stream, part = papers(count), 0
    while some := [paper for _, paper in zip(range(AT_ONCE), stream, strict=False)]:
        columns = ("id", "title", "abstract", "published")
        own = pa.Table.from_pylist([{name: paper[name] for name in columns} for paper in some])
        said = [
            {"citing_id": paper["id"], "cited_id": each["cited_id"], "text": each["text"], "group": 1}
            for paper in some
            for each in paper["contexts"]
        ]
        keys = {text["key"] for paper in some for text in tell(paper)["texts"]}
        vectors = pa.table(
            {"key": list(keys), "given": [vector(key) for key in keys]},
            schema=pa.schema([("key", pa.binary()), ("given", pa.list_(pa.float32()))]),
        )
        for name, table in (("papers", own), ("contexts", pa.Table.from_pylist(said)), ("vectors", vectors)):
            pq.write_table(table, folder / name / f"part-{part:05}.parquet")
        part += 1


def job(out: Path, count: int, master: str, partitions: int) -> None:
    """Runs the Spark job and prints its stages, processor time and output."""
    from citewell.bulk.job import Resources, build, session

    if not (out / "in" / "papers").exists():
        write_inputs(count, out / "in")
    log = out / "events"
    log.mkdir(exist_ok=True)
    # The page of the job is off; its event log has the same figures.
    settings = (("enabled", "true"), ("dir", log.as_uri()), ("compress", "false"))
    spark = session(Resources(master, partitions, settings=tuple((f"spark.eventLog.{k}", v) for k, v in settings)))
    began = time.monotonic()
    try:
        manifest = build(spark, out / "in", out / "out", Embedding("supplied", maker="tests.load.bulk_bench:make"))
        wall, used = time.monotonic() - began, processor_seconds()
    finally:
        spark.stop()
    print(f"{manifest.papers:,} papers, {manifest.citations:,} citations, {manifest.texts:,} texts in {wall:,.0f} s")
    print(f"processor of Spark and its workers: {used:,.0f} s")
    for name, stage in stages(max(log.iterdir(), key=lambda file: file.stat().st_mtime)).items():
        print(
            f"  {name or 'counting':8} {manifest.seconds.get(name, 0):7.1f} s, tasks {stage.seconds:7.1f} s, "
            f"shuffled {stage.shuffled / 1e6:,.1f} MB, spilled {stage.spilled / 1e6:,.1f} MB"
        )
    for part in ("told", "papers", "edges", "texts", "sums"):
        size = sum(file.stat().st_size for file in (out / "out" / part).glob("*.parquet"))
        print(f"  {part}: {size / 1e6:,.1f} MB, {size / manifest.papers:,.0f} bytes a paper")


def processor_seconds() -> float:
    """Of all processes that this one started and that run, and of their children that have ended."""
    spent = (process.cpu_times() for process in psutil.Process().children(recursive=True))
    return sum(each.user + each.system + each.children_user + each.children_system for each in spent)


@dataclass
class StageCost:
    """What the tasks of a stage of the job took."""

    seconds: float = 0.0
    shuffled: int = 0
    """Bytes written for a shuffle, compressed."""
    spilled: int = 0


def stages(log: Path) -> dict[str, StageCost]:
    """The stages of a job by name, from Spark's event log (a file, or a folder of files)."""
    names: dict[int, str] = {}
    costs: dict[str, StageCost] = defaultdict(StageCost)
    for file in sorted(log.glob("events_*")) if log.is_dir() else [log]:
        for line in file.read_text("utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                name = event["Properties"].get("spark.job.description", "")
                names |= dict.fromkeys(event["Stage IDs"], name)
            elif event["Event"] == "SparkListenerTaskEnd" and (measured := event.get("Task Metrics")):
                cost = costs[names.get(event["Stage ID"], "")]
                cost.seconds += measured["Executor Run Time"] / 1000
                cost.shuffled += measured["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                cost.spilled += measured["Disk Bytes Spilled"]
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "job"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--papers", type=int, default=2000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=16)
    asked = parser.parse_args()
    if asked.what == "steps":
        steps(asked.papers)
    elif asked.out is None:
        sys.exit("job needs a folder OUT")
    else:
        job(asked.out.resolve(), asked.papers, asked.master, asked.partitions)


if __name__ == "__main__":
    main()
