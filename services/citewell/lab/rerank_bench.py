"""Measures ways to make the reranker faster: the time saved and the loss in ranking.

    python -m citewell.lab.rerank_bench DATA RUN --mode inductive --cache CACHE --out deploy/docs/results/reranker.md

RUN is a training run; candidates of validation queries are retrieved by the lab's protocol. Rankings are computed
once for each text length. Systems are timed in turns on the same queries, one request at a time, so that other load on
the machine affects all of them equally.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from citewell.inference.sessions import Precision, Runtime
from citewell.lab import metrics
from citewell.lab.bench_report import environment, markdown_table
from citewell.lab.davinci.export import Storage, export_folder
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import asked_lists
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.texts import PairTexts
from citewell.lab.experiment import Encoding, prepare
from citewell.lab.protocol import Mode
from citewell.reranker.batching import PairQueue, QueueLimits
from citewell.reranker.in_process import InProcessScorer
from citewell.reranker.model_files import TOKENIZER, ModelFolder, read_model_folder
from citewell.reranker.pairs import SPECIAL_TOKENS, PairTokenizer, TokenBudget, pair_length
from citewell.reranker.rerank import Candidate, CandidateTokens, Pass, Reranker, shortened

Logits = NDArray[np.float32]
ROOM = 4 << 30
"""Size of the cache; enough for all candidates of the queries."""
PASSES = (0.5, 20), (0.3, 5)
"""Settings of two passes: the share of the token budget in the first, and how many candidates reach the second."""


@dataclass(frozen=True)
class Speed:
    """A system: the form of the model, the token budget, and one or two passes."""

    storage: Storage
    runtime: Runtime
    precision: Precision
    budget: TokenBudget
    first_share: float = 1.0
    keep: int = 0
    known: bool = False
    """Whether the first layers' outputs are cached from an earlier request."""


class Bench:
    """Queries, their candidates, and the model in all its forms."""

    def __init__(self, texts: PairTexts, run: RunFolder, lists: CandidateLists, work: Path, threads: int) -> None:
        self.texts, self.run, self.lists, self.threads, self._work = texts, run, lists, threads, work
        self.answerable = np.flatnonzero(lists.gold_position < lists.depth).tolist()
        self._folders: dict[Storage, ModelFolder] = {}
        self._scorers: dict[tuple[Storage, Runtime, Precision, bool], InProcessScorer] = {}
        self._logits: dict[Speed, Logits] = {}
        self._plain = plain(run)

    def folder(self, storage: Storage) -> ModelFolder:
        if storage not in self._folders:
            path = self._work / storage
            export_folder(self.run, path, storage, "davinci", (0, 0, 0), self.run.settings.budget)
            self._folders[storage] = read_model_folder(path)
        return self._folders[storage]

    def candidates(self, row: int) -> list[Candidate]:
        papers, ids = self.lists.papers[row], self.texts.data.papers.ids
        query = int(self.lists.queries[row])
        inside = [int(paper) for paper in papers if paper >= 0]
        return [Candidate(ids[p], rank, self.texts.candidate(query, p)) for rank, p in enumerate(inside, 1)]

    def scorer(self, speed: Speed) -> InProcessScorer:
        key = speed.storage, speed.runtime, speed.precision, speed.known
        if key not in self._scorers:
            room = ROOM if speed.known else 0
            self._scorers[key] = InProcessScorer(
                self.folder(speed.storage), speed.runtime, speed.precision, self.threads, kept_bytes=room
            )
        return self._scorers[key]

    async def close(self) -> None:
        for scorer in self._scorers.values():
            await scorer.close()

    async def logits(self, speed: Speed, label: str) -> Logits:
        """Logits of every pair; NaN where the cited paper was not retrieved, which no reranker can change."""
        if speed not in self._logits:
            rows = self.answerable
            logits = np.full((len(self.lists), self.lists.depth), np.nan, np.float32)
            logits[rows], _ = await self.rerank(speed, rows, lambda row: _progress(label, row, len(rows)))
            self._logits[speed] = logits
        return self._logits[speed]

    async def rerank(
        self, speed: Speed, rows: Sequence[int], on_row: Callable[[int], None]
    ) -> tuple[Logits, list[float]]:
        """Logits of every pair, NaN where there is none, and the seconds of each request."""
        model = self.folder(speed.storage)
        budgets = [(speed.budget, 1000)]
        if speed.keep:
            budgets = [(shortened(speed.budget, speed.first_share), 1000), (speed.budget, speed.keep)]
        passes = []
        for budget, keep in budgets:
            tokenizer = PairTokenizer.from_file(model.file(TOKENIZER), budget)
            # No cache, so every request tokenises its candidates.
            passes.append(Pass(tokenizer, CandidateTokens(tokenizer, 0), keep))
        queue = PairQueue(self.scorer(speed), passes[-1].tokenizer.pack, QueueLimits(2048, 1000, 1), time.monotonic)
        queue.start()
        reranker = Reranker(queue, passes, model.description.decay, time.monotonic)
        logits, seconds = np.full((len(rows), self.lists.depth), np.nan, np.float32), []
        try:
            for at, row in enumerate(rows):
                candidates = self.candidates(row)
                query = self.texts.query(int(self.lists.queries[row]))
                started = time.monotonic()
                done = await reranker.rerank(query, candidates, len(candidates), float("inf"), allow_partial=False)
                seconds.append(time.monotonic() - started)
                place = {one.paper_id: i for i, one in enumerate(candidates)}
                for paper in done.papers:
                    assert paper.score is not None
                    logits[at, place[paper.paper_id]] = np.log(paper.score) - np.log1p(-paper.score)
                on_row(at)
        finally:
            await queue.stop()
        return logits, seconds

    def torch_seconds(self, budget: TokenBudget, row: int) -> float:
        """One request of a naive implementation: every pair alone through all layers of the transformers encoder, in
        fp32, padded to the longest allowed length.
        """
        tokenizer = PairTokenizer.from_file(self.run.path / TOKENIZER, budget)
        candidates = self.candidates(row)
        priors = torch.pow(torch.tensor(self.run.settings.decay), torch.arange(1, len(candidates) + 1))
        started = time.monotonic()
        (query,) = tokenizer.queries([self.texts.query(int(self.lists.queries[row]))])
        pairs = [(query, tokens) for tokens in tokenizer.candidates([one.text for one in candidates])]
        # A title longer than its budget is kept whole.
        batch = tokenizer.pack(pairs, max(budget.longest, *(pair_length(*pair) for pair in pairs)))
        arrays = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        with torch.inference_mode():
            self._plain(*(torch.from_numpy(array) for array in arrays), priors[:, None].repeat(1, 3))
        return time.monotonic() - started


def _progress(label: str, row: int, rows: int) -> None:
    if (row + 1) % 10 == 0:
        typer.echo(f"{label}: {row + 1} of {rows} queries", err=True)


def plain(run: RunFolder) -> torch.nn.Module:
    """The run's model with the unmodified transformers encoder: every layer computes every token of the whole pair."""
    from transformers import AutoConfig, AutoModel

    model = run.model()
    encoder = AutoModel.from_config(AutoConfig.for_model(**run.encoder_config), add_pooling_layer=False)
    encoder.load_state_dict(model.encoder.state_dict())
    model.encoder = encoder
    return model.eval()


def widened(budget: TokenBudget, tokens: int) -> TokenBudget:
    """The budget, enlarged until a pair may have this many tokens."""
    share = (tokens - SPECIAL_TOKENS) / (budget.longest - SPECIAL_TOKENS)
    wide = shortened(budget, share)
    return replace(wide, candidate=wide.candidate + tokens - wide.longest)


def two_passes(short: Logits, full: Logits, keep: int) -> Logits:
    """The ranking by two passes: the best `keep` by the short texts get the scores of the whole texts."""
    order = np.argsort(-np.nan_to_num(short, nan=-np.inf), axis=1, kind="stable")[:, :keep]
    merged = short.copy()
    np.put_along_axis(merged, order, np.take_along_axis(full, order, axis=1), axis=1)
    return merged


def mrr(lists: CandidateLists, logits: Logits | None, depth: int | None = None) -> float:
    """MRR with the first `depth` candidates reranked, in %; without logits, that of the retrieval order."""
    cut = lists.cut(depth or lists.depth)
    order = None if logits is None else np.nan_to_num(logits[:, : cut.depth], nan=-np.inf)
    return metrics.means(cut.ranks(order), ["MRR"])["MRR"]


def main(
    data: Annotated[Path, typer.Argument(help="A data set's folder, e.g. $CITEWELL_DATA/neurips25.")],
    run: Annotated[Path, typer.Argument(help="The run folder that training wrote.")],
    mode: Annotated[Mode, typer.Option(help="Which protocol the figures follow.")],
    cache: Annotated[Path, typer.Option(help="Where text vectors are kept.", envvar="CITEWELL_LAB_CACHE")],
    paper_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a paper; 0 is its limit.")] = 0,
    context_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a context; 0 is its limit.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
    queries: Annotated[int, typer.Option(help="Queries whose ranking is judged.")] = 150,
    timed: Annotated[int, typer.Option(help="Queries on which systems are timed, in turns.")] = 4,
    budget: Annotated[str, typer.Option(help="How pairs are cut in serving, such as context=24,candidate=20.")] = "",
    tokens: Annotated[list[int], typer.Option(help="Longer pairs to measure, beside those served.")] = [192, 256],  # noqa: B006
    threads: int = 2,
) -> None:
    """Prints the speed of each setting and what it costs in ranking."""
    folder = RunFolder(run)
    encoding = Encoding(paper_tokens=paper_tokens, context_tokens=context_tokens)
    experiment = prepare(data, "validation", mode, encoding, cache, lambda what, done, total: None)
    lists, texts = asked_lists(folder.settings, experiment, queries, lambda what, done, total: None)
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(texts, folder, lists, Path(work), threads)
        report = asyncio.run(_measure(bench, data.name, timed, folder.settings.budget.changed(budget), tokens))
    print(report)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report, "utf-8")


async def _measure(bench: Bench, name: str, timed: int, own: TokenBudget, tokens: Sequence[int]) -> str:
    try:
        return await measure(bench, name, timed, own, tokens)
    finally:
        await bench.close()


async def measure(bench: Bench, name: str, timed: int, own: TokenBudget, tokens: Sequence[int]) -> str:
    """The report; `own` is the budget that is served."""
    lists, rows = bench.lists, bench.answerable[:timed]
    best = Speed(Storage.INT8, Runtime.OPENVINO, Precision.BF16, own)
    forms = {
        "onnxruntime fp32": replace(best, storage=Storage.FP32, runtime=Runtime.ONNXRUNTIME, precision=Precision.FP32),
        "openvino bf16": replace(best, storage=Storage.FP32),
        "openvino, int8 weights": replace(best, precision=Precision.FP32),
        "openvino bf16, int8 weights": best,
    }
    races = await _in_turns({label: _timer(bench, speed) for label, speed in forms.items()}, rows)
    by_form = {label: await bench.logits(speed, label) for label, speed in forms.items()}
    reference, full = (by_form[label] for label in ("onnxruntime fp32", "openvino bf16, int8 weights"))
    form_rows = [
        [
            label,
            f"{mrr(lists, logits):.2f}",
            f"{mrr(lists, logits) - mrr(lists, reference):+.2f}",
            f"{np.nanmax(np.abs(logits - reference)):.3f}",
            f"{1000 * races[label]:.0f}",
            f"{lists.depth / races[label]:.0f}",
        ]
        for label, logits in by_form.items()
    ]
    length_rows = []
    for budget in [own, *(widened(own, wanted) for wanted in tokens)]:
        length = budget.longest
        fast = replace(best, budget=budget)
        known = replace(fast, known=True)
        whole = await bench.logits(fast, f"{length} tokens")
        again = await bench.logits(known, f"{length} tokens, known")
        systems = {"(a)": _careless(bench, budget), "(b)": _timer(bench, fast), "(b), known": _timer(bench, known)}
        cost = {"(b)": whole, "(b), known": again}
        for share, keep in PASSES:
            if round(min(budget.context, budget.candidate) * share) < 8:
                continue
            label = f"(c) {share:.0%}, then {keep}"
            first = replace(known, budget=shortened(budget, share))
            cost[label] = two_passes(await bench.logits(first, f"{length} tokens, {share:.0%} of them"), again, keep)
            systems[label] = _timer(bench, replace(fast, first_share=share, keep=keep))
            systems[f"{label}, known"] = _timer(bench, replace(known, first_share=share, keep=keep))
            cost[f"{label}, known"] = cost[label]
        seconds = await _in_turns(systems, rows)
        base = mrr(lists, whole)
        for label, each in seconds.items():
            judged = f"{mrr(lists, cost[label]):.2f}" if label in cost else f"{base:.2f}"
            change = f"{mrr(lists, cost[label]) - base:+.2f}" if label in cost else ""
            figures = [f"{1000 * each:.0f}", f"{lists.depth / each:.0f}", f"{seconds['(a)'] / each:.1f}×"]
            length_rows.append([f"{length}", label, *figures, judged, change])
    depths = [depth for depth in (10, 20, 50, 100) if depth <= lists.depth]
    depth_rows = [
        ["reranked", *(f"{mrr(lists, full, depth):.2f}" for depth in depths)],
        ["retrieval order", *(f"{mrr(lists, None, depth):.2f}" for depth in depths)],
    ]
    header = ["tokens", "system", "ms a request", "pairs/s", "against (a)", "MRR", "change"]
    return f"""# Reranking on a CPU

{len(lists)} validation queries of {name}, {lists.depth} candidates each, {bench.threads} threads. Times: medians of
{timed} requests, one at a time, the systems taking turns; only ratios hold on a shared machine.

## Forms of the model ({own.longest} tokens)

{markdown_table(["form", "MRR", "change", "largest change of a logit", "ms a request", "pairs/s"], form_rows)}

## Against a request done without care, and with less work

(a) torch in fp32, the encoder as transformers has it, every pair by itself and padded to the longest allowed (it ranks
like the fp32 form); (b) the in-process adapter; (c) the same in two passes: texts cut to a share of their budgets for
all candidates, whole ones for the best so many. Known: an earlier request had the same candidates, and what the first
layers make of them was kept.

{markdown_table(header, length_rows)}

## Depth

MRR when only the first so many are reranked, and answers beyond count as 0.

{markdown_table(["", *map(str, depths)], depth_rows)}

{environment(["torch", "onnxruntime", "openvino", "tokenizers"])}

Command: `python -m citewell.lab.rerank_bench $CITEWELL_DATA/{name} RUN --queries {len(lists)} --timed {timed}`
"""


def _careless(bench: Bench, budget: TokenBudget) -> Callable[[int], Awaitable[float]]:
    async def request(row: int) -> float:
        return bench.torch_seconds(budget, row)

    return request


def _timer(bench: Bench, speed: Speed) -> Callable[[int], Awaitable[float]]:
    async def request(row: int) -> float:
        # The first request with new shapes is slower, so it is not timed.
        _, seconds = await bench.rerank(speed, [row, row], lambda at: None)
        return seconds[1]

    return request


async def _in_turns(systems: dict[str, Callable[[int], Awaitable[float]]], rows: Sequence[int]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {label: [] for label in systems}
    for row in rows:
        for label, request in systems.items():
            seconds[label].append(await request(row))
    return {label: float(np.median(each)) for label, each in seconds.items()}


if __name__ == "__main__":
    typer.run(main)
