"""Every row that the papers' tables need, the tables, and a line for each system that is still to be trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from citewell.lab.global_systems import made_system
from citewell.lab.rivals.measuring import DAVINCI, ENRICHED, Bench
from citewell.lab.rivals.registry import GLOBALS, RERANKERS, RIVALS
from citewell.lab.rivals.rows import Row
from citewell.lab.rivals.tables import (
    ABLATIONS,
    DEPTHS_PUBLISHED,
    END_TO_END,
    PIPELINES_PUBLISHED,
    RERANKING_TABLES,
    RETRIEVAL_TABLES,
    WHOLE_LISTS,
    WHOLE_LISTS_RIVALS,
    Head,
    Lines,
    ablations_table,
    by_depth,
    evidence_tables,
    lay_out,
    published_set,
    whole_lists_table,
)

_PIPELINE_DEPTHS = (100, 200, 500, 1000)
_DEPTHS = (10, 50, 100, 300, 1000)
_ABLATED = "hybrid"
"""Whose candidates the heads of a DAVINCI run are compared on."""
_WHOLE_LISTS_OURS = {"bm25": "BM25", "global-no-references": "GLOBAL without references", "global": "GLOBAL (ours)"}
_HEADS = "--heads davinci --heads a1 --heads a2 --heads a3 --heads a4"


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure."""

    retrievers: Sequence[str]
    pipelines: Sequence[str]
    """RETRIEVER>RERANKER each."""
    rerank_queries: int
    depth: int
    evidence_queries: int
    drafts: int
    ablations: Path | None
    """A DAVINCI run with several heads."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What was measured."""

    retrieved: Mapping[str, Row]
    reranked: Mapping[str, Row]
    lists: Mapping[str, Row]
    evidence: Row | None
    heads: Row | None


def pipelines(bench: Bench, retrievers: Sequence[str], depth: int) -> list[str]:
    """The pipelines of the tables whose models are there.

    A list that is enriched behind the candidates that are reranked gives the same figures, so it is left out.
    """
    found = []
    for name in dict.fromkeys(name for table in RERANKING_TABLES for name in table.rows if ">" in name):
        retriever, _, reranker = name.partition(">")
        same = retriever in ENRICHED and depth <= ENRICHED[retriever][1].depth
        if retriever in retrievers and not same and (reranker == DAVINCI or bench.run(reranker)):
            found.append(name)
    return found


def measure(bench: Bench, asked: Asked) -> Rows:
    """Every row; those that are kept are not measured again."""
    retrieved = {name: bench.retrieval(name) for name in asked.retrievers}
    lists = whole_lists(bench, asked.drafts) if asked.drafts else {}
    reranked = {}
    for name in asked.pipelines if asked.rerank_queries else ():
        retriever, separator, reranker = name.partition(">")
        if not separator or reranker not in (DAVINCI, *RERANKERS):
            known = ", ".join((DAVINCI, *RERANKERS))
            raise ValueError(f"--rerank takes RETRIEVER>RERANKER with a reranker of {known}, got {name!r}")
        reranked[name] = bench.reranked(retriever, reranker, asked.rerank_queries, asked.depth)
    heads = None
    if asked.ablations and asked.rerank_queries:
        heads = bench.heads(asked.ablations, _ABLATED, asked.rerank_queries, asked.depth)
    evidence = bench.evidence(asked.evidence_queries) if asked.evidence_queries else None
    return Rows(retrieved, reranked, lists, evidence, heads)


def whole_lists(bench: Bench, papers: int) -> dict[str, Row]:
    """Our systems and the trained rivals of the global task."""
    trained = {name: rival.title for name, rival in GLOBALS.items() if bench.run(name)}
    named = {**_WHOLE_LISTS_OURS, **trained}
    make = {name: partial(made_system, name, bench.experiment, bench.models) for name in named}
    return {name: bench.whole_list(name, title, papers, make[name]) for name, title in named.items()}


def laid(rows: Rows, data_name: str) -> dict[str, tuple[Head, Lines]]:
    """Every table; one of which nothing was measured has no lines."""
    beside = published_set(data_name)
    tables = {table.title: lay_out(table, rows.retrieved, data_name) for table in RETRIEVAL_TABLES}
    if rows.reranked:
        asked = len(next(iter(rows.reranked.values())).measured.values["rank"])
        everything = {**{name: row.first(asked) for name, row in rows.retrieved.items()}, **rows.reranked}
        tables |= {table.title: lay_out(table, everything, data_name) for table in RERANKING_TABLES}
        tables["profiler-davinci, Table 6: MRR by k"] = by_depth(
            rows.reranked,
            "MRR",
            lambda name: DEPTHS_PUBLISHED[beside] if name == f"profiler>{DAVINCI}" else {},
            _DEPTHS,
        )
        tables["hatten-scibert, Table 4: the whole pipeline by k"] = by_depth(
            rows.reranked,
            "R@10",
            lambda name: dict(
                zip(_PIPELINE_DEPTHS, PIPELINES_PUBLISHED[beside].get(name.partition(">")[0], ()), strict=False)
            ),
            _PIPELINE_DEPTHS,
        )
    if rows.heads:
        tables[ABLATIONS] = ablations_table(rows.heads, data_name)
    if rows.lists:
        tables[WHOLE_LISTS] = whole_lists_table(rows.lists)
    if rows.evidence:
        tables |= evidence_tables(rows.evidence)
    return tables


def missing(bench: Bench, asked: Asked) -> dict[str, list[str]]:
    """For each table, one line for each system in it that needs a model first."""
    found = {}
    for table in (*RETRIEVAL_TABLES, *(RERANKING_TABLES if asked.rerank_queries else ())):
        found[table.title] = [_train(bench, name) for name in bench.untrained(table.rows)]
    enriched = [name for name in END_TO_END.rows if name.partition(">")[0] in ENRICHED]
    if asked.rerank_queries and enriched and asked.depth <= ENRICHED[enriched[0].partition(">")[0]][1].depth:
        found[END_TO_END.title].append(
            f"The enricher changes nothing before rank {asked.depth + 1}: with k = {asked.depth} its row is HAtten's."
        )
    if asked.drafts:
        found[WHOLE_LISTS] = [_train(bench, name) for name in bench.untrained(WHOLE_LISTS_RIVALS)]
    if asked.rerank_queries and not asked.ablations:
        found[ABLATIONS] = [
            f"Needs one run of all heads, then --ablations RUN: citewell train davinci DATA RUN {_HEADS} "
            f"--mode {bench.experiment.task.mode.value}"
        ]
    return found


def _train(bench: Bench, name: str) -> str:
    select = " --set select=MODELS/SET/nnselect" if name.startswith("citeomatic") else ""
    mode = bench.experiment.task.mode.value
    return f"{RIVALS[name].title} is not trained: citewell train {name} DATA MODELS --mode {mode}{select}"
