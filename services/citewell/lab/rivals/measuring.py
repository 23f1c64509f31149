"""Measures rivals and our systems on the same queries in one run; every row is kept, so a killed run continues."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from citewell.lab import chosen
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import candidate_lists
from citewell.lab.experiment import Encoding, Experiment, OnProgress
from citewell.lab.ilciter import SpanStore, evaluate
from citewell.lab.reference_lists import rank, reference_lists, sampled_lists
from citewell.lab.retrieval import search
from citewell.lab.rivals.davinci_heads import DavinciHeads
from citewell.lab.rivals.enricher import Enriched, EnricherSettings, Order, Relation
from citewell.lab.rivals.registry import RERANKERS, RETRIEVERS, RIVALS
from citewell.lab.rivals.rival import ListReranker, Rival, run_folder
from citewell.lab.rivals.rows import Measured, Row, RowStore
from citewell.lab.rivals.timing import EncoderTimes, encoder_times, retrieval_ms, whole_list_ms
from citewell.lab.sampling import sampled
from citewell.lab.systems import GlobalSystem, System
from citewell.lab.systems_by_name import SYSTEMS
from citewell.lab.training import TrainingRun
from citewell.reranker.settings import PACKAGED_MODEL

OURS = {
    "bm25": "BM25 (title, abstract)",
    "bm25-contexts": "BM25 (also train contexts)",
    "content": "α = β = 0 (content only)",
    "profiler": "Profiler (ours)",
    "lexical-profile": "lexical profile (ours)",
    "hybrid": "HYBRID (ours)",
    "second-phase": "HYBRID, second phase (ours)",
}
"""Systems of `SYSTEMS` by the names that tables give them."""
ENRICHED = {
    "hatten+references": ("hatten", EnricherSettings(Relation.REFERENCES, Order.APPEARANCE)),
    "hatten+cocited": ("hatten", EnricherSettings(Relation.COCITED, Order.VOTES)),
}
"""SymTax's enricher on a prefetcher, by relation."""
ENCODED = {
    "dense": ("context",),
    **dict.fromkeys(("content", "profiler", "hybrid", "second-phase"), ("context", "paper")),
    **dict.fromkeys(("global-no-references", "global"), ("paper",)),
}
"""The texts of a query that ENC1 encodes: its time is added, since the lab looks vectors up in a cache."""
DAVINCI = "davinci"
_DEPTHS = (10, 20, 50, 100, 200, 300, 500, 1000)
"""Numbers of candidates for which the ranks of a reranked list are kept."""


@dataclass(frozen=True, eq=False)
class Bench:
    """What the rows of one data set share."""

    experiment: Experiment
    encoding: Encoding
    store: RowStore
    models: Path | None
    queries: int
    seed: int
    on_progress: OnProgress
    loaded: dict[str, System] = field(default_factory=dict)
    """Retrievers that were made or loaded."""

    @property
    def about(self) -> dict[str, Any]:
        """What every row depends on."""
        task = self.experiment.task
        return {
            "set": self.experiment.data.name,
            "mode": task.mode.value,
            "split": task.split,
            "queries": self.queries,
            "seed": self.seed,
            "encoding": asdict(self.encoding),
            "timed": "one query alone, median",
        }

    @cached_property
    def asked(self) -> np.ndarray:
        """The sampled queries."""
        rows: np.ndarray = sampled(self.experiment.task.queries, self.queries, self.seed)
        return rows

    @property
    def clusters(self) -> np.ndarray:
        """The citing paper of each asked query."""
        papers: np.ndarray = self.experiment.data.contexts.citing[self.asked]
        return papers

    def retrievers(self) -> list[str]:
        """Every system that can be measured here: ours, and rivals that are trained or need no training."""
        rivals = [name for name, rival in RETRIEVERS.items() if rival.learner is None or self.run(name)]
        return [*OURS, *rivals, *(name for name, (base, _) in ENRICHED.items() if base in rivals)]

    def run(self, name: str) -> TrainingRun | None:
        """The run of a trained rival, if there is one."""
        run = TrainingRun(run_folder(self.models, self.experiment.data.name, name)) if self.models else None
        return run if run and run.kept.exists() else None

    def untrained(self, names: Iterable[str]) -> list[str]:
        """The rivals among these systems and pipelines that have no trained model, each once."""
        parts = [ENRICHED[part][0] if part in ENRICHED else part for name in names for part in name.split(">")]
        return [name for name in dict.fromkeys(parts) if name in RIVALS and RIVALS[name].learner and not self.run(name)]

    def title(self, name: str) -> str:
        """What tables call a system."""
        if name in ENRICHED:
            base, settings = ENRICHED[name]
            return f"{RETRIEVERS[base].title} + enricher ({settings.relation.value})"
        return OURS.get(name) or RETRIEVERS[name].title

    def system(self, name: str) -> System:
        """A retriever, made or loaded once."""
        if name not in self.loaded:
            self.loaded[name] = self._system(name)
        return self.loaded[name]

    def _system(self, name: str) -> System:
        if name in SYSTEMS:
            return SYSTEMS[name](self.experiment)
        if name in ENRICHED:
            base, settings = ENRICHED[name]
            return Enriched(name, self.system(base), self.experiment, settings)
        found: System = self._loaded(RETRIEVERS[name])
        return found

    def _loaded(self, rival: Rival[Any, Any]) -> Any:
        run = self.run(rival.name)
        if run:
            return rival.load(rival.read_settings(run.settings()), self.experiment, run.weights())
        return rival.load(rival.settings(), self.experiment, {})

    def depends(self, name: str) -> tuple[dict[str, Any], float]:
        """What a system's figures depend on besides the queries, and the CPU minutes of its training."""
        if name in ENRICHED:
            base, settings = ENRICHED[name]
            about, minutes = self.depends(base)
            return {**about, "enricher": asdict(settings)}, minutes
        run = self.run(name)
        if not run:
            return {"system": name} | self._learned(name), 0.0
        chosen_settings, minutes = run.settings(), run.cpu_minutes()
        if select := chosen_settings.get("select"):  # Citeomatic's ranker needs a trained NNSelect
            minutes += TrainingRun(Path(select)).cpu_minutes()
        return {"system": name, "settings": chosen_settings, "weights": _digest(run)}, minutes

    def _learned(self, name: str) -> dict[str, str]:
        """Hashes of what our own system has learned: with other weights it is another row."""
        experiment, found = self.experiment, dict[str, str]()
        if name in ("lexical-profile", "hybrid", "second-phase") and experiment.term_weights:
            found["term weights"] = experiment.term_weights.digest
        if name in ("hybrid", "second-phase") and experiment.query_map:
            found["query map"] = experiment.query_map.digest
        if name == "second-phase" and experiment.second_phase:
            found["second phase"] = experiment.second_phase.hash
            if experiment.window_encoder:
                found["window encoder"] = experiment.window_encoder.hash
        return found

    def retrieval(self, name: str) -> Row:
        """The row of a retriever."""
        depends, minutes = self.depends(name)
        return self.store.row(
            f"retrieval-{name}", self.title(name), {**self.about, **depends}, minutes, lambda: self._retrieve(name)
        )

    def _retrieve(self, name: str) -> Measured:
        began = time.process_time()
        system = self.system(name)
        prepared = (time.process_time() - began) / 60
        task = replace(self.experiment.task, queries=self.asked)
        ranking = search(system, self.experiment.data, task, 10, self.experiment.order, partial(self.on_progress, name))
        ms = retrieval_ms(system, self.experiment, self.asked) + self.encoding_ms(name)
        return Measured.of_ranks(ranking.gold, ms, prepare_minutes=prepared)

    def encoding_ms(self, name: str) -> float:
        """CPU milliseconds of ENC1 for a query of this system, 0 where it needs none."""
        return self.encoder_times.of(ENCODED[name]) if name in ENCODED else 0.0

    @cached_property
    def encoder_times(self) -> EncoderTimes:
        """The time of ENC1 for this set's texts."""

        def measure() -> Measured:
            times = encoder_times(self.experiment, self.encoding, self.asked)
            return Measured({name: np.array([ms]) for name, ms in asdict(times).items()}, times.context + times.paper)

        values = self.store.row("encoding", "ENC1", self.about, 0.0, measure).measured.values
        return EncoderTimes(**{name: float(each[0]) for name, each in values.items()})

    def whole_list(self, name: str, title: str, papers: int, make: Callable[[], GlobalSystem]) -> Row:
        """The row of a system that is asked for whole reference lists of drafts: P@20, R@20 and MRR."""

        def measure() -> Measured:
            began = time.process_time()
            system = make()
            prepared = (time.process_time() - began) / 60
            every = reference_lists(self.experiment.data, self.experiment.task)
            ranking = rank(system, self.experiment, sampled_lists(every, papers, self.seed))
            ms = whole_list_ms(system, self.experiment, ranking.lists) + self.encoding_ms(name)
            return Measured(ranking.values(), ms, prepare_minutes=prepared)

        on, minutes = self.depends(name)
        return self.store.row(f"global-{name}", title, {**self.about, **on, "papers": papers}, minutes, measure)

    def evidence(self, queries: int) -> Row:
        """ILCiteR's methods on the first queries whose cited paper has a span: ranks under "rank:METHOD"."""

        def measure() -> Measured:
            began = time.process_time()
            store, asked = SpanStore(self.experiment), self.asked[:queries]
            prepared = (time.process_time() - began) / 60
            asked = asked[store.papers[self.experiment.data.contexts.cited[asked]]]
            began = time.process_time()
            ranks = evaluate(self.experiment, store, asked, self.on_progress)
            ms = 1000 * (time.process_time() - began) / max(1, len(asked))
            values = {f"rank:{method}": found.astype(np.float64) for method, found in ranks.items()}
            return Measured(values, ms, prepare_minutes=prepared)

        about = {**self.about, "evidence queries": queries}
        return self.store.row("evidence", "ILCiteR", about, 0.0, measure)

    def reranked(self, retriever: str, reranker: str, queries: int, depth: int) -> Row:
        """The row of a reranker on a retriever's candidates, with the ranks at several depths: "rank@100" and so on."""
        depends, minutes = self.depends(retriever)
        about = {**self.about, **depends, "queries": queries, "depth": depth, "reranker": reranker}
        title = f"{self.title(retriever)} → {'DAVINCI (ours)' if reranker == DAVINCI else RERANKERS[reranker].title}"
        if retriever == "second-phase" and reranker == DAVINCI:
            about |= {"joined": chosen.JOINED}
        if reranker == DAVINCI:
            about |= {"reranker weights": folder_digest(PACKAGED_MODEL)}
        elif run := self.run(reranker):
            about |= {"reranker settings": run.settings(), "reranker weights": _digest(run)}
            minutes += run.cpu_minutes()
        return self.store.row(
            f"reranked-{retriever}-{reranker}",
            title,
            about,
            minutes,
            lambda: self._rerank(retriever, reranker, queries, depth),
        )

    def _rerank(self, retriever: str, reranker: str, queries: int, depth: int) -> Measured:
        lists = self.lists(retriever, queries, depth)
        scorer = DavinciHeads(PACKAGED_MODEL, self.experiment) if reranker == DAVINCI else self._reranker(reranker)
        inside = np.flatnonzero(lists.gold_position < depth)  # no reranker can place an absent paper
        order = np.zeros(lists.papers.shape, np.float32)
        began = time.process_time()
        if len(inside):
            order[inside] = scorer.scores(lists.take(inside))
        ms = 1000 * (time.process_time() - began) / max(1, len(inside))
        if retriever == "second-phase" and reranker == DAVINCI:  # as the services rank
            order = order + np.float32(chosen.JOINED) * lists.scores
        values = {
            f"rank@{cut}": lists.cut(cut).ranks(order[:, :cut]).astype(np.float64)
            for cut in sorted({*_DEPTHS, depth})
            if cut <= depth
        }
        first = self.retrieval(retriever).measured.retrieval_ms
        return Measured({**values, "rank": values[f"rank@{depth}"]}, first, ms)

    def _reranker(self, name: str) -> ListReranker:
        found: ListReranker = self._loaded(RERANKERS[name])
        return found

    def lists(self, retriever: str, queries: int, depth: int) -> CandidateLists:
        """A retriever's candidates for the first queries."""
        return candidate_lists(self.system(retriever), self.experiment, self.asked[:queries], depth, self.on_progress)

    def heads(self, run: Path, retriever: str, queries: int, depth: int) -> Row:
        """Every head of a DAVINCI run on the same candidates: ranks under "rank:HEAD"."""

        def measure() -> Measured:
            lists = self.lists(retriever, queries, depth)
            model = DavinciHeads(run, self.experiment)
            began = time.process_time()
            order = model.heads(lists)
            ms = 1000 * (time.process_time() - began) / len(lists)
            values = {f"rank:{name}": lists.ranks(each).astype(np.float64) for name, each in order.items()}
            return Measured(values, self.retrieval(retriever).measured.retrieval_ms, ms)

        on, _ = self.depends(retriever)
        about = {**self.about, **on, "queries": queries, "depth": depth, "run": folder_digest(run)}
        return self.store.row(f"heads-{retriever}", f"{self.title(retriever)} → heads", about, 0.0, measure)


def _digest(run: TrainingRun) -> str:
    return hashlib.blake2b(run.kept.read_bytes(), digest_size=8).hexdigest()


def folder_digest(model: Path) -> str:
    """Names a reranker's weights, settings and tokeniser by their contents."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(model.iterdir()):
        if file.suffix in (".onnx", ".safetensors", ".json"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
