"""Trains the window encoder: ENC1 goes on learning to tell, from the words around a marker, what is cited there.

Each train query ranks its cited paper before some of HYBRID's first candidates and before random papers. Two losses: by
HYBRID's score, where the window's vector is added to the query's, so that it learns what words and whole texts do not
say; and by the cosine alone. Profiles stay those of ENC1, and leave the query paper's own citations out.

Only three of four contexts teach. The others are left to what reads the window's vectors (second phase, DAVINCI): on
contexts that the encoder has learned by heart, its vectors look better than they are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel

from citewell.inference.bert_graph import bert_encoder
from citewell.inference.quantization import with_int8_weights
from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.hybrid_examples import RANDOM_LEXICAL, make_examples
from citewell.lab.pretrained import freeze_word_embeddings
from citewell.lab.sampling import sampled
from citewell.lab.training import State, TrainingRun
from citewell.profiler.encoder import GraphEncoder
from citewell.profiler.encoder_files import read_encoder_files
from citewell.profiler.profiles import Vectors
from citewell.profiler.window_encoder import DESCRIPTION, LEARNED, checksums

Ints = NDArray[np.int64]
_POOL = 20
"""The number of batches sorted by length together."""
_LEFT = 4
"""One of so many contexts teaches nothing here: what reads the vectors learns from these."""
_COPIED = ("tokenizer.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json")


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How a window encoder is trained."""

    queries: int = 30_000
    """The most train contexts that are learned from."""
    depth: int = 50
    """How many of HYBRID's first candidates negatives are drawn from."""
    hard: int = 24
    """Negatives of a query from these candidates."""
    random: int = 1024
    """Random papers that are negatives of a whole batch."""
    batch: int = 64
    steps: int = 900
    learning_rate: float = 6e-5
    warmup: int = 25
    """Steps in which the rate rises."""
    falling: float = 0.6
    """Share of the steps, the last ones, in which the rate falls to zero."""
    temperature: float = 0.1
    """Of the loss by HYBRID's score."""
    cosine_share: float = 0.5
    """The weight of the loss by the cosine alone."""
    cosine_temperature: float = 0.05
    weight: float = 0.5
    """The weight of the window's vector beside the query's at the start; it is learned."""
    validation_queries: int = 300
    seed: int = 23
    start_from: str = ""
    """The run folder of an earlier training, whose weights this one starts from; empty = ENC1."""


class WindowLearner:
    """A `training.Learner`."""

    def __init__(
        self,
        settings: WindowSettings,
        experiment: Experiment,
        encoder: GraphEncoder,
        folder: Path,
        on_progress: OnProgress,
        lists_file: Path,
    ) -> None:
        """`encoder` is ENC1 with windows for texts, `folder` its files. `experiment` asks validation queries.

        The candidate lists, the costly part, are kept in `lists_file`.
        """
        self._settings, self._encoder = settings, encoder
        torch.manual_seed(settings.seed)
        self.model = AutoModel.from_pretrained(str(folder), dtype=torch.float32, add_pooling_layer=False)
        if settings.start_from:
            self.model.load_state_dict(TrainingRun(Path(settings.start_from)).weights())
        freeze_word_embeddings(self.model)
        self._weight = nn.Parameter(torch.tensor(float(np.log(settings.weight))))
        trained = [each for each in self.model.parameters() if each.requires_grad]
        groups = [
            {"params": trained, "lr": settings.learning_rate, "peak": settings.learning_rate},
            {"params": [self._weight], "lr": 5e-3, "peak": 5e-3},
        ]
        self._optimiser = torch.optim.AdamW(groups, weight_decay=0.01)
        train = experiment.of_split("train")
        # By the text, so that the works of one bracket stay together.
        texts = [train.data.contexts.texts[int(query)] for query in train.task.queries]
        teaches = checksums(texts) % _LEFT != 0
        self.teaching = [text for text, one in zip(texts, teaches, strict=True) if one]
        """The contexts that may teach: also those that only an earlier run learned from, which this one starts from."""
        teaching = train.task.queries[teaches]
        asked = replace(train, query_map=None, task=replace(train.task, queries=teaching))
        self._examples = make_examples(asked, settings.queries, settings.depth, settings.seed, on_progress, lists_file)
        rows = CandidateLists.load(lists_file).queries
        self._tokens = encoder.tokenize([train.data.contexts.texts[int(row)] for row in rows])
        self._lengths = np.array([len(each) for each in self._tokens])
        if len(rows) < settings.batch:
            raise ValueError(f"a batch needs {settings.batch} train contexts, there are {len(rows)}")
        self._validation = experiment
        self._watched = sampled(experiment.task.queries, settings.validation_queries, settings.seed)

    def step(self, number: int) -> float:
        settings = self._settings
        torch.manual_seed(settings.seed * 1_000_003 + number)
        rate = min(1.0, (number + 1) / settings.warmup, (settings.steps - number) / (settings.falling * settings.steps))
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * rate
        self.model.train()
        loss = self.loss(self.batch(number), np.random.default_rng((settings.seed, 1, number)))
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        return float(loss.detach())

    def batch(self, number: int) -> Ints:
        """Train queries with windows of similar length; each once an epoch."""
        size = self._settings.batch
        count = len(self._lengths) // size
        epoch, at = divmod(number, count)
        rng = np.random.default_rng((self._settings.seed, 0, epoch))
        order = rng.permutation(len(self._lengths))[: count * size]
        pools = np.array_split(order, max(1, count // _POOL))
        sorted_pools = [pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools]
        batches = np.concatenate(sorted_pools).reshape(count, size)
        rows: Ints = batches[rng.permutation(count)[at]]
        return rows

    def loss(self, rows: Ints, rng: np.random.Generator) -> Tensor:
        """Both losses of some train queries."""
        settings, examples = self._settings, self._examples
        columns = rng.integers(0, examples.candidates.shape[1], (len(rows), settings.hard))
        papers = examples.candidates[rows[:, None], columns]
        hard = torch.from_numpy(examples.profiles[np.maximum(papers, 0)])
        random, is_cited = examples.random_papers(rows, settings.random, rng)
        drawn = torch.from_numpy(examples.profiles[random])
        cited = torch.from_numpy(examples.profiles[examples.cited[rows]])
        asked = self._asked(rows)
        cosines = (
            (asked * cited).sum(1)[:, None],
            torch.einsum("qd,qnd->qn", asked, hard).masked_fill(torch.from_numpy(papers < 0), -torch.inf),
            (asked @ drawn.T).masked_fill(torch.from_numpy(is_cited), -torch.inf),
        )
        lexical = (
            torch.from_numpy(examples.cited_lexical[rows])[:, None],
            torch.from_numpy(examples.lexical[rows[:, None], columns]),
            torch.tensor(RANDOM_LEXICAL),
        )
        first = torch.zeros(len(rows), dtype=torch.long)
        alone = torch.cat(cosines, 1)
        hybrid = torch.cat([one + chosen.LEXICAL * other for one, other in zip(cosines, lexical, strict=True)], 1)
        by_score = nn.functional.cross_entropy(hybrid / settings.temperature, first)
        by_cosine = nn.functional.cross_entropy(alone / settings.cosine_temperature, first)
        return by_score + settings.cosine_share * by_cosine

    def _asked(self, rows: Ints) -> Tensor:
        """eq. 4 with the window's vector added, at unit length."""
        examples, weights = self._examples, chosen.QUERY
        plain = torch.from_numpy(weights.gamma * examples.contexts[rows] + weights.delta * examples.drafts[rows])
        windows = self._vectors([self._tokens[row].ids for row in rows])
        return nn.functional.normalize(plain.float() + torch.exp(self._weight) * windows, dim=1)

    def _vectors(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """The mean of the tokens' last states, at unit length, as ENC1 has it."""
        longest = max(map(len, tokens))
        ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in tokens])
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in tokens])
        with torch.autocast("cpu", torch.bfloat16):
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)

    def validate(self) -> float:
        """MRR of the cited paper among all papers, by the cosine of the window's vector and the profile."""
        contexts = self._validation.data.contexts
        tokens = self._encoder.tokenize([contexts.texts[int(row)] for row in self._watched])
        self.model.eval()
        with torch.inference_mode():
            found = np.concatenate([self._vectors([each.ids]).numpy() for each in tokens])
        return mrr_of(self._validation, self._watched, found)

    def weights(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def state(self) -> State:
        return {"optimiser": self._optimiser.state_dict(), "weight": self._weight.detach().clone()}

    def restore(self, weights: State, state: State) -> None:
        self.model.load_state_dict(weights)
        self._optimiser.load_state_dict(state["optimiser"])
        with torch.no_grad():
            self._weight.copy_(state["weight"])


def export_window_encoder(
    weights: State, encoder: str, made_for: str, tokens: int, contexts: Sequence[str], out: Path
) -> None:
    """Writes the folder that a profiler loads: the graph with int8 weights, the files of ENC1, its start, and the
    checksums of the contexts that it learned from."""
    files = read_encoder_files(encoder)
    arrays = {name: tensor.float().numpy() for name, tensor in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    onnx.save(with_int8_weights(bert_encoder(files.config, arrays)), out / "model.onnx")
    for name in _COPIED:
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(files.folder / name, out / name)
    config = {name: value for name, value in files.config.items() if name != "_name_or_path"}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    told = {"made for": made_for, "tokens": tokens}
    np.save(out / LEARNED, np.unique(checksums(contexts)))
    (out / DESCRIPTION).write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def cosine_mrr(experiment: Experiment, queries: Rows) -> float:
    """The MRR of the experiment's window encoder alone; 0 without one."""
    return mrr_of(experiment, queries, experiment.windows(queries)) if experiment.window_encoder else 0.0


def mrr_of(experiment: Experiment, queries: Rows, windows: Vectors) -> float:
    """MRR in % of the cited papers among all papers, by the cosine of the windows' vectors with the profiles."""
    scores = windows @ experiment.profiler.profiles.T
    cited = experiment.data.contexts.cited[queries]
    total = 0.0
    for row, eligible in enumerate(experiment.task.eligible(experiment.data, queries)):
        total += 1 / max(1, int(np.count_nonzero(eligible & (scores[row] >= scores[row, cited[row]]))))
    return 100 * total / max(1, len(queries))
