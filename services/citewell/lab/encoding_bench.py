"""Measures encoding: documents per second, ranking quality, and whether a vector depends on its batch.

    python -m citewell.lab.encoding_bench DATA_FOLDER --out deploy/docs/results/encoding.md

Compare ratios, not absolute times: the systems take turns within one run, so that other load on the machine affects
all of them equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from citewell.inference.sessions import Precision, Runtime
from citewell.lab.bench_report import environment, markdown_table
from citewell.lab.dataset import Dataset, Rows, read_dataset
from citewell.profiler.encoder import GraphEncoder, load_encoder
from citewell.profiler.encoder_files import DEFAULT_ENCODER, read_encoder_files

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]
GAMMA = 0.6
BATCH = 8
SYSTEMS = [
    (Runtime.ONNXRUNTIME, Precision.FP32),
    (Runtime.ONNXRUNTIME, Precision.INT8),
    (Runtime.OPENVINO, Precision.FP32),
    (Runtime.OPENVINO, Precision.INT8),
    (Runtime.OPENVINO, Precision.BF16),
]


@dataclass(frozen=True)
class Sample:
    """Validation queries, and a part of the corpus that contains their answers."""

    contexts: list[str]
    citing: list[int]
    """Row of each query's own paper in `query_papers`."""
    query_papers: list[str]
    candidates: list[str]
    gold: NDArray[np.int64]


def draw_sample(data: Dataset, paper_text: Callable[[str, str], str], queries: int, candidates: int) -> Sample:
    """A fixed sample: the answers, and papers drawn at random among those older than the queries."""
    rng = np.random.default_rng(0)
    contexts, papers = data.contexts, data.papers
    rows = contexts.of_split("validation")
    rows = rows[papers.last_day[contexts.cited[rows]] < contexts.first_day[rows]]
    rows = np.sort(rng.choice(rows, min(queries, len(rows)), replace=False))
    gold = np.unique(contexts.cited[rows])
    older = np.flatnonzero(papers.last_day < contexts.first_day[rows].min())
    others = rng.choice(np.setdiff1d(older, gold), max(0, candidates - len(gold)), replace=False)
    corpus: Rows = np.concatenate([gold, others]).astype(np.int64)
    citing, positions = np.unique(contexts.citing[rows], return_inverse=True)

    def texts(of: Rows) -> list[str]:
        return [paper_text(papers.titles[int(row)], papers.abstracts[int(row)]) for row in of]

    return Sample(
        contexts=[contexts.texts[int(row)] for row in rows],
        citing=positions.tolist(),
        query_papers=texts(citing.astype(np.int64)),
        candidates=texts(corpus),
        gold=np.searchsorted(gold, contexts.cited[rows]),
    )


def reciprocal_ranks(encode: Encode, sample: Sample) -> NDArray[np.float64]:
    """Reciprocal ranks by content only: γ·ENC1(S) + (1 − γ)·ENC1(T ⊕ A) against v_i."""
    documents, contexts, papers = (encode(t) for t in (sample.candidates, sample.contexts, sample.query_papers))
    query = GAMMA * contexts + (1 - GAMMA) * papers[sample.citing]
    scores = query @ (documents / np.linalg.norm(documents, axis=1, keepdims=True)).T
    own = scores[np.arange(len(scores)), sample.gold][:, None]
    ranks: NDArray[np.float64] = 1.0 / (1 + (scores > own).sum(axis=1))
    return ranks


def torch_encode(name: str, threads: int) -> Encode:
    """The reference: transformers in fp32, mean pooling and normalisation, texts not sorted by length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    files = read_encoder_files(name)
    tokenizer, model = AutoTokenizer.from_pretrained(files.folder), AutoModel.from_pretrained(files.folder).eval()

    def encode(texts: Sequence[str]) -> Vectors:
        inputs = tokenizer(list(texts), max_length=files.max_tokens, truncation=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][:, :, None].float()
            pooled: Any = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
        return np.asarray(pooled.numpy(), np.float32)

    return encode


def documents_per_second(systems: dict[str, Encode], texts: Sequence[str], rounds: int) -> dict[str, float]:
    """The median over the rounds; in every round each system encodes the same batch."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for round_ in range(rounds + 1):
        batch = [texts[(round_ * BATCH + i) % len(texts)] for i in range(BATCH)]
        for name, encode in systems.items():
            start = time.perf_counter()
            encode(batch)
            if round_:  # the first round is the warm-up
                times[name].append(time.perf_counter() - start)
    return {name: BATCH / float(np.median(seconds)) for name, seconds in times.items()}


def alone_or_in_a_batch(encode: Encode, texts: Sequence[str]) -> float:
    """The lowest cosine between a text's vector computed alone and computed in a batch of all texts."""
    together = encode(texts)
    return min(float(encode([text])[0] @ vector) for text, vector in zip(texts, together, strict=True))


def main(
    data: Annotated[Path, typer.Argument(help="A data set's folder, e.g. $CITEWELL_DATA/neurips25.")],
    out: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
    encoder: Annotated[str, typer.Option(help="Folder or Hugging Face id.")] = DEFAULT_ENCODER,
    queries: int = 500,
    candidates: int = 2000,
    rounds: int = 12,
    threads: int = 2,
) -> None:
    """Measures every runtime and precision and prints the table."""

    def load(runtime: Runtime, precision: Precision) -> GraphEncoder:
        return load_encoder(encoder, runtime=runtime, precision=precision, threads=threads)

    loaded = {f"{runtime} {precision}": load(runtime, precision) for runtime, precision in SYSTEMS}
    reference = next(iter(loaded.values()))
    systems: dict[str, Encode] = {"torch fp32": torch_encode(encoder, threads)}
    systems |= {name: one.encode for name, one in loaded.items()}
    sample = draw_sample(read_dataset(data), reference.paper_text, queries, candidates)
    whole = [text for text in sample.candidates if len(reference.tokenize([text])[0]) == reference.max_tokens]
    speed = documents_per_second(systems, whole, rounds)
    parity = float(np.abs(systems["torch fp32"](whole[:BATCH]) - reference.encode(whole[:BATCH])).max())
    base = reciprocal_ranks(reference.encode, sample)
    rows = []
    for name, encode in systems.items():
        ranks = base if encode == reference.encode else reciprocal_ranks(encode, sample)
        same = alone_or_in_a_batch(encode, sample.candidates[:64])
        rows.append(
            [
                name,
                f"{speed[name]:.1f}",
                f"{speed[name] / speed['torch fp32']:.2f}×",
                f"{100 * ranks.mean():.2f}",
                f"{100 * (ranks - base).mean():+.2f}",
                f"{same:.6f}",
            ]
        )
    header = ["system", "documents/s", "against torch", "MRR", "change", "cosine alone / in a batch of 64 (least)"]
    command = f"citewell.lab.encoding_bench $CITEWELL_DATA/{data.name} --queries {queries} --candidates {candidates}"
    report = f"""# Encoding

{len(sample.contexts)} validation queries of {data.name} over {len(sample.candidates):,} papers that hold their answers
(a part of the corpus: only the differences between the rows mean something), content-only ranking, γ = {GAMMA}.
Documents/s: median of {rounds} rounds of {BATCH} documents of {reference.max_tokens} tokens, {threads} threads, the
systems taking turns. Torch and ONNX Runtime fp32 differ by at most {parity:.1e} in a component of a vector.

{markdown_table(header, rows)}

{environment(["torch", "transformers", "onnxruntime", "openvino", "tokenizers"])}

Command: `python -m {command}`
"""
    print(report)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report, "utf-8")


if __name__ == "__main__":
    typer.run(main)
