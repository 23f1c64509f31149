"""Measures rivals and our systems on the same queries in one run; every row is kept, so a killed run continues."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from citewell.lab import chosen
from citewell.lab.davinci.batches import PairBatches
from citewell.lab.davinci.exported import ExportedModel
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import candidate_lists, pair_texts
from citewell.lab.davinci.scoring import exported_encode, score_lists
from citewell.lab.experiment import Encoding, Experiment, OnProgress
from citewell.lab.ilciter import SpanStore, evaluate
from citewell.lab.reference_lists import rank, reference_lists, sampled_lists
from citewell.lab.retrieval import search
from citewell.lab.rivals.enricher import Enriched, EnricherSettings, Order, Relation
from citewell.lab.rivals.registry import RERANKERS, RETRIEVERS
from citewell.lab.rivals.rival import GlobalSystem, ListReranker, Rival, run_folder
from citewell.lab.rivals.rows import Measured, Row, RowStore
from citewell.lab.rivals.training import RivalRun
from citewell.lab.sampling import sampled
from citewell.lab.systems import System
from citewell.lab.systems_by_name import SYSTEMS
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
ENCODES = ("dense", "content", "profiler", "hybrid", "second-phase")
"""Systems whose queries ENC1 encodes: its time is added, since the lab looks vectors up in a cache."""
DAVINCI = "davinci"
DEPTH = 300
"""How long a retrieved list is; a cited paper further down counts as found up to rank 2000."""
_TIMED = 12
"""Queries encoded to measure the time of ENC1."""


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
    """Rivals that were loaded."""

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

    def run(self, name: str) -> RivalRun | None:
        """The run of a trained rival, if there is one."""
        run = RivalRun(run_folder(self.models, self.experiment.data.name, name)) if self.models else None
        return run if run and run.kept.exists() else None

    def title(self, name: str) -> str:
        """What tables call a system."""
        if name in ENRICHED:
            base, settings = ENRICHED[name]
            return f"{RETRIEVERS[base].title} + enricher ({settings.relation.value})"
        return OURS.get(name) or RETRIEVERS[name].title

    def system(self, name: str) -> System:
        """A retriever, made or loaded."""
        if name in SYSTEMS:
            return SYSTEMS[name](self.experiment)
        if name in ENRICHED:
            base, settings = ENRICHED[name]
            return Enriched(name, self.system(base), self.experiment, settings)
        if name not in self.loaded:  # an enriched list needs the same papers' vectors again
            self.loaded[name] = self._loaded(RETRIEVERS[name])
        return self.loaded[name]

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
            return {"system": name}, 0.0
        digest = hashlib.blake2b(run.kept.read_bytes(), digest_size=8).hexdigest()
        return {"system": name, "settings": run.settings(), "weights": digest}, run.cpu_minutes()

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
        ms = 1000 * ranking.cpu_seconds / len(self.asked)
        if name in ENCODES:
            ms += self.encoding_ms
        return Measured.of_ranks(ranking.gold, ms, prepare_minutes=prepared)

    @cached_property
    def encoding_ms(self) -> float:
        """CPU milliseconds of ENC1 for a context, and for a title with abstract, one query at a time."""

        def measure() -> Measured:
            papers, contexts = self.encoding.load()
            data, cpu = self.experiment.data, []
            for row in self.asked[: _TIMED + 1].tolist():
                citing, began = int(data.contexts.citing[row]), time.process_time()
                contexts.encode([data.contexts.texts[row]])
                papers.encode([papers.paper_text(data.papers.titles[citing], data.papers.abstracts[citing])])
                cpu.append(time.process_time() - began)
            return Measured({}, 1000 * float(np.median(cpu[1:])))

        return self.store.row("encoding", "ENC1", self.about, 0.0, measure).measured.retrieval_ms

    def whole_list(self, name: str, title: str, papers: int, make: Callable[[], GlobalSystem]) -> Row:
        """The row of a system that is asked for whole reference lists of drafts: P@20, R@20 and MRR."""

        def measure() -> Measured:
            began = time.process_time()
            system = make()
            prepared = (time.process_time() - began) / 60
            every = reference_lists(self.experiment.data, self.experiment.task)
            ranking = rank(system, self.experiment, sampled_lists(every, papers, self.seed))
            ms = 1000 * ranking.cpu_seconds / len(ranking.lists)
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
        if run := self.run(reranker):
            about |= {"reranker settings": run.settings()}
            about["reranker weights"] = hashlib.blake2b(run.kept.read_bytes(), digest_size=8).hexdigest()
            minutes += run.cpu_minutes()
        return self.store.row(
            f"reranked-{retriever}-{reranker}",
            title,
            about,
            minutes,
            lambda: self._rerank(retriever, reranker, queries, depth),
        )

    def _rerank(self, retriever: str, reranker: str, queries: int, depth: int) -> Measured:
        began = time.process_time()
        asked = self.asked[:queries]
        lists = candidate_lists(self.system(retriever), self.experiment, asked, depth, self.on_progress)
        retrieved = time.process_time()
        order = self.scorer(reranker)(lists)
        if retriever == "second-phase" and reranker == DAVINCI:  # as the services rank
            order = order + np.float32(chosen.JOINED) * lists.scores
        # Lists without the cited paper are not scored where the reranker's own loop leaves them out.
        scored = int((lists.gold_position < depth).sum()) if reranker == DAVINCI else len(asked)
        ms = 1000 * (time.process_time() - retrieved) / max(1, scored)
        values = {
            f"rank@{cut}": lists.cut(cut).ranks(order[:, :cut]).astype(np.float64)
            for cut in sorted({10, 20, 50, 100, 200, 300, 500, 1000, depth})
            if cut <= depth
        }
        first = 1000 * (retrieved - began) / len(asked) + (self.encoding_ms if retriever in ENCODES else 0.0)
        return Measured({**values, "rank": values[f"rank@{depth}"]}, first, ms)

    def scorer(self, reranker: str) -> Callable[[CandidateLists], np.ndarray]:
        """DAVINCI as it ships, or a rival, as a function from lists to scores."""
        if reranker != DAVINCI:
            loaded: ListReranker = self._loaded(RERANKERS[reranker])
            return loaded.scores
        return self._davinci

    def _davinci(self, lists: CandidateLists) -> np.ndarray:
        from citewell.inference.sessions import Precision, cpu_has_bf16

        folder = ExportedModel(PACKAGED_MODEL)
        pairs = PairBatches(lists, pair_texts(self.experiment, folder.settings.mentions), folder.tokenizer())
        encode = exported_encode(folder.path, Precision.BF16 if cpu_has_bf16() else Precision.FP32, 1)
        found: np.ndarray = score_lists(folder.model(), pairs, encode)["davinci"].logit
        return found
