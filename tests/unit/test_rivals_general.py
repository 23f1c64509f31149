"""General rerankers and dense encoders, on tiny random models of the architectures that are published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder, search
from citewell.lab.rivals.dense import DENSE, DenseSettings
from citewell.lab.rivals.general_rerankers import (
    BGE_PROMPT,
    GENERAL,
    INSTRUCTION,
    Form,
    GeneralReranker,
    GeneralSettings,
    document_text,
    query_text,
)
from tests.lab_sets import invented, vectors_of, write_lines
from tests.tiny_models import write_tiny_encoder

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 1100,
    "initializer_range": 0.5,
}
DECODER = SMALL | {"num_key_value_heads": 1, "head_dim": 8}
ARCHITECTURES = {
    Form.PAIR: (transformers.XLMRobertaConfig, transformers.XLMRobertaForSequenceClassification, SMALL),
    Form.QWEN3: (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, DECODER),
    Form.BGE_LLM: (transformers.GemmaConfig, transformers.GemmaForCausalLM, DECODER),
}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
WORDS = ["yes", "no", "Yes"]


def _tokenizer(form: Form) -> transformers.PreTrainedTokenizerFast:
    """A byte-level tokeniser that also knows the answers as words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(WORDS)
    if form is Form.PAIR:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    extra = {"additional_special_tokens": SPECIAL[4:]}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named, **extra)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Form, Path]:
    made = {}
    for form, (config, model, sizes) in ARCHITECTURES.items():
        made[form] = tmp_path_factory.mktemp(form)
        tokenizer = _tokenizer(form)
        torch.manual_seed(3)
        labels = {"num_labels": 1} if form is Form.PAIR else {}
        common = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        model(config(**sizes, **common, **labels)).save_pretrained(made[form])
        tokenizer.save_pretrained(made[form])
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return read_dataset(write_lines(tmp_path_factory.mktemp("set"), *invented()))


@pytest.fixture(scope="module")
def experiment(data: Dataset) -> Experiment:
    task, vectors = make_task(data, "test", Mode.INDUCTIVE), vectors_of(data)
    known = citations(data, task.knowledge)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def _lists(experiment: Experiment) -> CandidateLists:
    queries = experiment.task.queries[:3].astype(np.int32)
    papers = np.array([[0, 3, 7, 5], [2, 9, -1, -1], [11, 1, 4, -1]], np.int32)
    gold = experiment.data.contexts.cited[queries]
    return CandidateLists(queries, papers, np.zeros(papers.shape, np.float32), gold, np.zeros(3, np.float32))


def _reranker(folders: dict[Form, Path], form: Form, experiment: Experiment, **more: Any) -> GeneralReranker:
    settings = GENERAL.read_settings({"model": str(folders[form]), "form": form.value, **more})
    made = GENERAL.load(settings, experiment, {})
    assert isinstance(made, GeneralReranker)
    return made


@pytest.mark.parametrize("form", list(Form))
def test_a_list_has_the_scores_that_the_model_gives_each_pair_alone(
    folders: dict[Form, Path], experiment: Experiment, form: Form
) -> None:
    lists = _lists(experiment)
    reranker = _reranker(folders, form, experiment, batch=3)
    scores = reranker.scores(lists)
    np.testing.assert_array_equal(np.isneginf(scores), lists.papers < 0)
    alone = np.full_like(scores, -np.inf)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[form])
    _, kind, _ = ARCHITECTURES[form]
    model = kind.from_pretrained(folders[form]).eval()
    for row, query in enumerate(lists.queries.tolist()):
        for column in np.flatnonzero(lists.papers[row] >= 0):
            asked = query_text(experiment.data, query)
            told = document_text(experiment.data, int(lists.papers[row, column]))
            ids = torch.tensor([reranker.prompts.pair(asked, told)["input_ids"]])
            with torch.inference_mode():
                logits = model(ids).logits[0]
            if form is Form.PAIR:
                alone[row, column] = logits[0]
            else:
                last = dict(zip(WORDS, logits[-1, [tokenizer.convert_tokens_to_ids(w) for w in WORDS]], strict=True))
                alone[row, column] = last["yes"] - last["no"] if form is Form.QWEN3 else last["Yes"]
    inside = lists.papers >= 0
    np.testing.assert_allclose(scores[inside], alone[inside], atol=1e-4)
    assert len(np.unique(alone[inside].round(4))) > 3


def test_the_prompts_are_those_of_the_appendix(folders: dict[Form, Path], experiment: Experiment) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[Form.QWEN3])
    made = _reranker(folders, Form.QWEN3, experiment).prompts.pair("the query", "the document")
    text = tokenizer.decode(made["input_ids"])
    assert f"<Instruct>: {INSTRUCTION}\n<Query>: the query\n<Document>: the document<|im_end|>" in text
    assert text.startswith("<|im_start|>system\nJudge whether the Document")
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    asked = _reranker(folders, Form.BGE_LLM, experiment).prompts.pair("the query", "the document")
    told = transformers.AutoTokenizer.from_pretrained(folders[Form.BGE_LLM]).decode(asked["input_ids"])
    assert told == f"<s>A: the query\nB: the document\n{BGE_PROMPT}"


@pytest.mark.parametrize("form", list(Form))
def test_long_texts_are_cut_and_the_prompt_stays_whole(
    folders: dict[Form, Path], experiment: Experiment, form: Form
) -> None:
    prompts = _reranker(folders, form, experiment, max_tokens=600).prompts
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[form])
    ids = prompts.pair("q" * 5000, "d" * 5000)["input_ids"]
    assert len(ids) <= 600
    text = tokenizer.decode(ids)
    ends = {Form.PAIR: "</s>", Form.QWEN3: "</think>\n\n", Form.BGE_LLM: BGE_PROMPT}
    assert text.endswith(ends[form])
    if form is not Form.QWEN3:  # that one cuts the end of the document, as its authors do
        assert "d" * 20 in text


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": ""}, "model must name a folder"),
        ({"form": "oracle"}, "form is 'oracle', not one of pair, qwen3, bge-llm"),
        ({"model": "nobody/nothing"}, "model 'nobody/nothing' cannot be loaded"),
        ({"max_tokens": 20}, "max_tokens is 20: the prompt leaves no room"),
    ],
)
def test_wrong_settings_are_named(
    folders: dict[Form, Path], experiment: Experiment, changed: dict[str, Any], told: str
) -> None:
    settings = replace(GeneralSettings(str(folders[Form.QWEN3]), Form.QWEN3), **changed)
    with pytest.raises(ValueError, match=told):
        GENERAL.load(settings, experiment, {}).scores(_lists(experiment))


def test_a_dense_encoder_is_the_cosine_of_the_context(experiment: Experiment) -> None:
    system = DENSE.load(DenseSettings(), experiment, {})
    query = experiment.task.queries[:1]
    asked, paper = experiment.vectors.contexts[query[0]], experiment.vectors.papers[5]
    expected = asked @ paper / np.linalg.norm(asked) / np.linalg.norm(paper)
    assert system.scores(query)[0, 5] == pytest.approx(expected, abs=1e-5)
    assert search(system, experiment.data, experiment.task, 10, experiment.order).gold.max() > 0


def test_another_encoder_by_folder_reads_title_sep_abstract(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citewell.profiler.encoder import GraphEncoder

    read: list[str] = []
    encode = GraphEncoder.encode
    monkeypatch.setattr(GraphEncoder, "encode", lambda self, texts: (read.extend(texts), encode(self, texts))[1])
    folder = write_tiny_encoder(tmp_path / "specter", pooling=None, normalise=False)
    settings = DenseSettings(encoder=str(folder), cache=str(tmp_path / "vectors"))
    system = DENSE.load(settings, experiment, {})
    papers = experiment.data.papers
    assert f"{papers.titles[1]}[SEP]{papers.abstracts[1]}" in read
    assert np.isfinite(system.scores(experiment.task.queries[:4])).all()
    with pytest.raises(ValueError, match="cache must name a folder"):
        DENSE.load(DenseSettings(encoder=str(folder)), experiment, {})
