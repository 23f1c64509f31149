"""General rerankers with open weights, by folder or Hugging Face id, asked as profiler-davinci's appendix A.3 says.

Three forms: a sequence classifier over a pair of texts (bge-reranker-v2-m3, MiniLM cross-encoders), Qwen3-Reranker
(a causal model that says yes or no), and bge-reranker-v2-gemma and -minicpm (a causal model that says Yes). The score
is the raw logit, as in the paper. How query and document strings are laid out is shown there as a picture only; the
layout here is an assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment
from citewell.lab.rivals.rival import Rival
from citewell.lab.training import State
from citewell.scholarly.contexts import normalise

INSTRUCTION = (
    "Given a citation context and citing paper information, determine if the candidate paper is relevant to be cited in"
    " this context"
)
BGE_PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
QWEN_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
QWEN_BEFORE = f"<|im_start|>system\n{QWEN_SYSTEM}<|im_end|>\n<|im_start|>user\n"
QWEN_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Form(StrEnum):
    """How a model is asked."""

    PAIR = "pair"
    QWEN3 = "qwen3"
    BGE_LLM = "bge-llm"


@dataclass(frozen=True, slots=True)
class GeneralSettings:
    """The settings of a general reranker; none is learned here."""

    model: str = ""
    """A folder, or a Hugging Face id in the local cache."""
    form: str = Form.PAIR
    allow_download: bool = False
    max_tokens: int = 1024
    """Of a pair; what is longer is cut."""
    batch: int = 8
    device: str = "cpu"
    remote_code: bool = False
    """Run the code that comes with the weights: MiniCPM needs it."""


def query_text(data: Dataset, query: int) -> str:
    """The citation context with the citing paper's title and abstract."""
    citing = int(data.contexts.citing[query])
    parts = (
        ("Citation context", data.contexts.texts[query]),
        ("Citing paper title", data.papers.titles[citing]),
        ("Citing paper abstract", data.papers.abstracts[citing]),
    )
    return "\n".join(f"{name}: {normalise(text)}" for name, text in parts if text.strip())


def document_text(data: Dataset, paper: int) -> str:
    """A candidate's title and abstract."""
    parts = (("Title", data.papers.titles[paper]), ("Abstract", data.papers.abstracts[paper]))
    return "\n".join(f"{name}: {normalise(text)}" for name, text in parts if text.strip())


class Prompts:
    """The token ids of a query and a document as a model's authors ask them."""

    def __init__(self, form: Form, tokenizer: Any, max_tokens: int) -> None:
        self._form, self._tokenizer, self._most = form, tokenizer, max_tokens
        if form is Form.QWEN3:
            self._before, self._after = self._ids(QWEN_BEFORE), self._ids(QWEN_AFTER)
        elif form is Form.BGE_LLM:
            self._separator, self._prompt = self._ids("\n"), self._ids(BGE_PROMPT)

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def pair(self, query: str, document: str) -> dict[str, list[int]]:
        """The input of a model. Query and document are cut so that the rest of the prompt is whole."""
        if self._form is Form.PAIR:
            found = self._tokenizer(query, document, truncation="longest_first", max_length=self._most)
            return {name: list(found[name]) for name in found}
        if self._form is Form.QWEN3:
            room = self._most - len(self._before) - len(self._after)
            text = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
            ids = [*self._before, *self._ids(text)[: self._enough(room)], *self._after]
        else:
            fixed = len(self._prompt) + 2 * len(self._separator) + 1
            room = self._enough(self._most - fixed)
            asked_ids = self._ids(f"A: {query}")[: max(1, 3 * room // 4)]
            told = self._ids(f"B: {document}")[: room - len(asked_ids)]
            first = self._tokenizer.bos_token_id
            start = [] if first is None else [first]
            ids = [*start, *asked_ids, *self._separator, *told, *self._separator, *self._prompt]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def _enough(self, room: int) -> int:
        if room < 2:
            raise ValueError(f"max_tokens is {self._most}: the prompt leaves no room for query and document")
        return room


class GeneralReranker:
    """A `ListReranker` that asks a model about each candidate."""

    def __init__(self, settings: GeneralSettings, data: Dataset) -> None:
        if settings.form not in list(Form):
            raise ValueError(f"form is {settings.form!r}, not one of {', '.join(Form)}")
        self.name = "general-reranker"
        self._settings, self._data = settings, data
        self._form = Form(settings.form)
        self._tokenizer, self._model = _loaded(settings)
        self.prompts = Prompts(self._form, self._tokenizer, settings.max_tokens)
        self._answers = _answers(self._form, self._tokenizer)

    def scores(self, lists: CandidateLists) -> NDArray[np.float32]:
        scores = np.full(lists.papers.shape, -np.inf, np.float32)
        for row, query in enumerate(lists.queries.tolist()):
            asked = query_text(self._data, query)
            inside = np.flatnonzero(lists.papers[row] >= 0)
            documents = [document_text(self._data, int(paper)) for paper in lists.papers[row, inside]]
            scores[row, inside] = self.logits(asked, documents)
        return scores

    def logits(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """The raw score of each document."""
        found = np.empty(len(documents), np.float32)
        inputs = [self.prompts.pair(query, document) for document in documents]
        order = sorted(range(len(inputs)), key=lambda at: len(inputs[at]["input_ids"]))
        for start in range(0, len(order), self._settings.batch):
            block = order[start : start + self._settings.batch]
            padded = self._tokenizer.pad([inputs[at] for at in block], return_tensors="pt").to(self._settings.device)
            with torch.inference_mode():
                found[block] = self._read(self._model(**padded).logits.float()).cpu().numpy()
        return found

    def _read(self, logits: torch.Tensor) -> torch.Tensor:
        if self._form is Form.PAIR:
            return logits[:, 0]
        last = logits[:, -1]  # padding is on the left
        wanted, *others = self._answers
        return last[:, wanted] - last[:, others[0]] if others else last[:, wanted]


def _loaded(settings: GeneralSettings) -> tuple[Any, Any]:
    import transformers

    if not settings.model:
        raise ValueError("model must name a folder or a Hugging Face id of a reranker")
    common = {"local_files_only": not settings.allow_download, "trust_remote_code": settings.remote_code}
    kind = (
        transformers.AutoModelForSequenceClassification
        if settings.form == Form.PAIR
        else transformers.AutoModelForCausalLM
    )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model, **common)
        model = kind.from_pretrained(settings.model, **common)
    except OSError as error:
        raise ValueError(f"model {settings.model!r} cannot be loaded: {str(error).splitlines()[0]}") from None
    if settings.form == Form.PAIR and model.config.num_labels != 1:
        raise ValueError(f"model {settings.model!r} has {model.config.num_labels} labels; a reranker has one")
    if settings.form != Form.PAIR:
        tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.to(settings.device).eval()


def _answers(form: Form, tokenizer: Any) -> list[int]:
    """The tokens whose logits are the answer: yes and no of Qwen3, Yes of bge."""
    wanted = {Form.PAIR: [], Form.QWEN3: ["yes", "no"], Form.BGE_LLM: ["Yes"]}[form]
    found = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in wanted]
    if any(not each for each in found):
        raise ValueError(f"the tokeniser does not know {', '.join(wanted)}: this is no {form} reranker")
    return [each[0] for each in found]


def load(settings: GeneralSettings, experiment: Experiment, weights: State) -> GeneralReranker:
    """The reranker as its authors trained it."""
    return GeneralReranker(settings, experiment.data)


GENERAL = Rival("general-reranker", "General reranker", GeneralSettings, None, load)
