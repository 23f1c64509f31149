"""`citewell train all`: retrains everything that ships on a user's own corpus, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from citewell.index.second_phase_model import packaged_model, read_model
from citewell.inference.sessions import Precision, cpu_has_bf16
from citewell.lab import chosen
from citewell.lab.commands.calibrate import calibration
from citewell.lab.commands.options import DEFAULT_CACHE, SEED, Cache, Data, TheMode, failing_clearly, progress
from citewell.lab.commands.query_map import query_map
from citewell.lab.commands.second_phase import second_phase
from citewell.lab.commands.term_weights import term_weights
from citewell.lab.commands.window_encoder import window_encoder
from citewell.lab.dataset import read_dataset
from citewell.lab.davinci.averaging import write_mean
from citewell.lab.davinci.batches import PairBatches
from citewell.lab.davinci.card import write_card
from citewell.lab.davinci.export import Storage, export_folder
from citewell.lab.davinci.exported import ExportedModel
from citewell.lab.davinci.retrieve import asked_lists, candidate_lists, training_data
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.scoring import exported_encode, joined, score_cached
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.davinci.train import train
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, OnProgress, prepare
from citewell.lab.metrics import Difference, compare, means
from citewell.lab.origins import origin_of, same_origin
from citewell.lab.sampling import sampled
from citewell.lab.second_phase.system import SecondPhaseSystem
from citewell.lab.term_weights import TRAINED
from citewell.lab.whole_files import written_whole
from citewell.profiler.query_map import OFF
from citewell.reranker.pairs import TokenBudget
from citewell.reranker.settings import PACKAGED_MODEL

DAVINCI = TrainSettings(
    heads=("davinci",),
    start_from=str(PACKAGED_MODEL),
    candidates="second-phase",
    depth=20,
    joined=chosen.JOINED,
    train_queries=13_000,
    validation_queries=20,
    apart_layers=1,
    side_positions=(52, 96),
    budget=TokenBudget(context=43, query_title=10, candidate=40, mentions=40, abstract_fills=True),
    shares=(1.0, 0.7),
    steps=260,
    cooldown=70,
    learning_rate=1.5e-4,
    head_learning_rate=5e-4,
    warmup=0.0385,
    validate_every=1000,
    keep="last",
)
"""As the run whose mean with an earlier model ships, with the candidates and scores of today's services."""
SHIPPED, MEAN = "shipped", "mean"
RERANKERS = {TRAINED: "reranker", MEAN: "reranker-mean"}
"""The folders of the rerankers that are compared with the one that ships."""
DEPTH = 20
"""Candidates that the services rerank by default."""


def everything(
    data: Data,
    out: Annotated[Path, typer.Argument(help="Folder of the results; a stopped run in it is continued.")],
    mode: TheMode,
    settings: Annotated[
        Path | None,
        typer.Option(help="Settings of DAVINCI's training, JSON; by default the model that ships is trained further."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="The most train contexts for the query map.")] = 30_000,
    word_queries: Annotated[int, typer.Option(min=1, help="The most train contexts for the term weights.")] = 8_000,
    window_steps: Annotated[int, typer.Option(min=1, help="Steps of the window encoder's training.")] = 900,
    second_queries: Annotated[
        int, typer.Option(min=1, help="The most train contexts for the second phase, and as many of a poorer corpus.")
    ] = 6_000,
    validation_queries: Annotated[int, typer.Option(min=10, help="Validation queries of every comparison.")] = 400,
    test_queries: Annotated[int, typer.Option(min=10, help="Test queries to show the confidence's figures of.")] = 400,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Retrains what a HYBRID answer has learned, and its confidence; leaves out what is no better on validation.

    Every step writes its result last, a file in OUT. A step whose result is there is not repeated, unless an earlier
    step was. At the end OUT/settings.env holds the services' settings, OUT/report.json the figures.
    """
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    with failing_clearly():
        same_origin(out, origin_of(read_dataset(data), mode))
    step = _Steps(console)
    chosen: dict[str, str] = {}
    report: dict[str, Any] = {}

    mapped, map_figures = out / "query-map.npz", out / "query-map.json"
    step("query map", map_figures, lambda: query_map(data, mapped, mode, queries, validation_queries, cache=cache))
    report["query map"] = json.loads(map_figures.read_text("utf-8"))
    map_setting = str(mapped.resolve()) if report["query map"]["better"] else OFF
    chosen["CITEWELL_PROFILER__QUERY_MAP"] = map_setting

    words, words_figures = out / "term-weights.json", out / "term-weights-figures.json"
    step(
        "term weights",
        words_figures,
        lambda: term_weights(data, words, mode, word_queries, validation_queries, cache=cache, query_map=map_setting),
    )
    report["term weights"] = json.loads(words_figures.read_text("utf-8"))
    best = report["term weights"]["best"]
    words_setting = str(words.resolve()) if best == TRAINED else best
    chosen["CITEWELL_PROFILER__TERM_WEIGHTS"] = words_setting

    window, window_figures = out / "window-encoder", out / "window-encoder-figures.json"
    step(
        "window encoder",
        window_figures,
        lambda: window_encoder(
            data,
            window,
            mode,
            queries,
            window_steps,
            validation_queries,
            cache=cache,
            query_map=map_setting,
            term_weights=words_setting,
        ),
    )
    report["window encoder"] = json.loads(window_figures.read_text("utf-8"))
    best = report["window encoder"]["best"]
    window_setting = str(window.resolve()) if best == TRAINED else best
    chosen["CITEWELL_PROFILER__WINDOW_ENCODER"] = window_setting

    second, second_figures = out / "second-phase.json", out / "second-phase-figures.json"
    step(
        "second phase",
        second,
        lambda: second_phase(
            data,
            second,
            mode,
            second_queries,
            second_queries,
            validation_queries,
            cache=cache,
            query_map=map_setting,
            term_weights=words_setting,
            window_encoder=window_setting,
        ),
    )

    def compare_orders() -> None:
        with failing_clearly(), progress(console) as on_progress:
            experiment = prepare(
                data,
                "validation",
                mode,
                Encoding(),
                cache,
                on_progress,
                learned=LearnedParts(map_setting, words_setting, window_setting),
            )
            found = _compare_second_phases(second, experiment, validation_queries, on_progress)
        written_whole(second_figures, json.dumps(found, indent=1) + "\n")

    step("second phase against the packaged one", second_figures, compare_orders)
    report["second phase"] = json.loads(second_figures.read_text("utf-8"))
    second_setting = str(second.resolve()) if report["second phase"]["better"] else "packaged"
    chosen["CITEWELL_INDEX__SECOND_PHASE"] = second_setting

    verdict = out / "reranker.json"

    def rerank() -> None:
        asked = TrainSettings.read(settings) if settings else DAVINCI
        with failing_clearly(), progress(console) as on_progress:
            experiment = prepare(
                data,
                "validation",
                mode,
                Encoding(),
                cache,
                on_progress,
                learned=LearnedParts(map_setting, words_setting, window_setting, second_setting),
            )
            models = _train_reranker(asked, experiment, out, on_progress)
            found = _compare_rerankers(models, experiment, validation_queries, cache, on_progress)
        written_whole(verdict, json.dumps(found, indent=1) + "\n")

    step("reranker", verdict, rerank)
    report["reranker"] = json.loads(verdict.read_text("utf-8"))
    used = PACKAGED_MODEL
    if report["reranker"]["better"]:
        used = (out / RERANKERS[report["reranker"]["best"]]).resolve()
        chosen["CITEWELL_RERANKER__MODEL"] = str(used)

    confidence = out / "calibration.json"
    step(
        "confidence",
        confidence,
        lambda: calibration(
            data,
            mode,
            confidence,
            used,
            DEPTH,
            validation_queries,
            test_queries,
            second_phase=second_setting,
            cache=cache,
            query_map=map_setting,
            term_weights=words_setting,
            window_encoder=window_setting,
        ),
    )
    chosen["CITEWELL_RECOMMENDER__CONFIDENCE_FILE"] = str(confidence.resolve())

    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = "".join(f"{name}={value}\n" for name, value in chosen.items())
    (out / "settings.env").write_text(lines, encoding="utf-8")
    console.print(f"the settings for the services, in {out / 'settings.env'}:\n{lines}")


class _Steps:
    """Runs the steps that have no result yet, or one that is older than an earlier step's."""

    def __init__(self, console: Console) -> None:
        self._console, self._latest = console, 0

    def __call__(self, name: str, result: Path, work: Callable[[], None]) -> None:
        if result.exists() and result.stat().st_mtime_ns >= self._latest:
            self._console.print(f"{name}: done before, {result}")
        else:
            self._console.print(f"{name} …")
            work()
        self._latest = max(self._latest, result.stat().st_mtime_ns)


def _train_reranker(
    settings: TrainSettings, experiment: Experiment, out: Path, on_progress: OnProgress
) -> dict[str, Path]:
    """Trains, and exports the model and its mean with the model that it started from, if there is one."""
    run = RunFolder(out / "davinci")

    def on_step(entry: dict[str, Any]) -> None:
        on_progress("DAVINCI, steps", entry["step"], settings.steps)

    finished = train(settings, training_data(settings, experiment, on_progress, run), run.path, on_step)
    write_card(finished, data_name=experiment.data.name, vectors=experiment.vectors.provenance)
    latest = experiment.data.contexts.first_day[experiment.task.knowledge].max()
    day = np.datetime64("0001-01-01") + (int(latest) - 1)
    year, month, of_month = (int(part) for part in str(day).split("-"))
    runs = {TRAINED: finished}
    if settings.start_from:
        runs[MEAN] = write_mean(finished, Path(settings.start_from), finished.path / MEAN)
    models = {name: out / RERANKERS[name] for name in runs}
    for name, each in runs.items():
        export_folder(each, models[name], Storage.INT8, "davinci-own", (year, month, of_month), settings.budget)
    return models


def _tell(on_progress: OnProgress, what: str, total: int, done: int) -> None:
    on_progress(what, done, total)


def _compare_rerankers(
    models: dict[str, Path], experiment: Experiment, count: int, cache: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """The packaged and the trained models, joined with the second phase, on the same validation queries."""
    ranks: dict[str, NDArray[np.int64]] = {}
    for name, folder in {SHIPPED: PACKAGED_MODEL, **models}.items():
        exported = ExportedModel(folder)
        lists, texts = asked_lists(
            exported.settings, experiment, count, on_progress, depth=DEPTH, candidates="second-phase"
        )
        pairs = PairBatches(lists, texts, exported.tokenizer(), exported.settings.decay)
        precision = Precision.BF16 if cpu_has_bf16() else Precision.FP32
        scores = score_cached(
            exported.model(),
            pairs,
            exported_encode(folder, precision, 0),
            cache / "scores",
            partial(_tell, on_progress, f"queries reranked, {name}", len(lists)),
        )["davinci"]
        ranks[name] = lists.ranks(joined(scores, lists, chosen.JOINED).logit)
    return _verdict(experiment, lists.queries, {"retrieval order": lists.ranks(), **ranks}, models)


def _compare_second_phases(second: Path, experiment: Experiment, count: int, on_progress: OnProgress) -> dict[str, Any]:
    """The trained and the packaged model on the same validation queries."""
    queries = sampled(experiment.task.queries, count, SEED)
    models = {SHIPPED: packaged_model(), TRAINED: read_model(second.read_text("utf-8"))}
    ranks = {
        name: candidate_lists(SecondPhaseSystem(experiment, model), experiment, queries, 300, on_progress).ranks()
        for name, model in models.items()
    }
    first = candidate_lists(experiment.hybrid, experiment, queries, 300, on_progress).ranks()
    return _verdict(experiment, queries, {"HYBRID": first, **ranks}, [TRAINED])


def _verdict(
    experiment: Experiment,
    queries: NDArray[np.integer[Any]],
    ranks: dict[str, NDArray[np.int64]],
    trained: Iterable[str],
) -> dict[str, Any]:
    """The figures of all, and whether the best of the trained ones is better than the one that ships, by MRR."""
    clusters = experiment.data.contexts.citing[queries]
    figures = {name: means(each, ["MRR", "R@10"]) for name, each in ranks.items()}
    best = max(trained, key=lambda name: figures[name]["MRR"])
    difference: Difference = compare("MRR", ranks[best], ranks[SHIPPED], np.random.default_rng(SEED), clusters)
    return {
        "queries": len(queries),
        **figures,
        "best": best,
        "difference": {"mean": difference.mean, "low": difference.low, "high": difference.high, "p": difference.p},
        "better": difference.mean > 0,
    }
