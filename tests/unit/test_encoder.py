"""ENC1: reading a model's files, cutting texts, and vectors that depend only on their text."""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from citewell.inference.batches import token_batches
from citewell.inference.sessions import Inputs, Precision, Runtime, Session, open_session
from citewell.profiler.encoder import BATCH_TOKENS, GraphEncoder, centred, load_encoder
from citewell.profiler.encoder_files import CONTEXTS, EncoderUnusable, read_encoder_files
from citewell.profiler.ledger.encoding import is_model
from tests.servers.processes import wait_until
from tests.tiny_models import CONFIG, write_tiny_encoder


class Held:
    """A session whose first run waits to be let go; what shapes it was given."""

    def __init__(self, session: Session) -> None:
        self._session, self.inputs, self.outputs = session, session.inputs, session.outputs
        self.streams = session.streams
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Inputs) -> list[NDArray[np.float32]]:
        self.shapes.append(inputs["input_ids"].shape)
        self.begun.set()
        assert self.let_go.wait(30)
        return self._session.run(inputs)


TEXTS = [
    "a small net.",
    "",
    "one two three " * 6,
    "é ü 漢字 \u200b",
    "\ud800 half a pair",
    "z",
    "long words " * 40,
    "b?",
]
RUNTIMES = [("openvino", "fp32"), ("openvino", "int8"), ("onnxruntime", "fp32")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> GraphEncoder:
    folder = write_tiny_encoder(tmp_path_factory.mktemp("tiny"))
    return load_encoder(str(folder), precision="fp32", threads=1, cache=cache)


@pytest.mark.parametrize(("runtime", "precision"), RUNTIMES)
def test_a_vector_depends_neither_on_its_batch_nor_on_the_order(
    tmp_path: Path, cache: Path, runtime: str, precision: str
) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    encoder = load_encoder(str(folder), runtime=runtime, precision=precision, threads=1, cache=cache, batch_tokens=64)
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    backwards = encoder.encode(TEXTS[::-1])[::-1]
    assert together.dtype == np.float32
    assert together.shape == (len(TEXTS), encoder.dimension)
    assert np.sum(together * alone, axis=1).min() > 0.9999
    np.testing.assert_allclose(together, backwards, atol=1e-3)
    # Different texts have different vectors: a constant encoder would pass all checks above.
    assert together[0] @ together[2] < 0.999


def test_runtimes_agree(tmp_path: Path, cache: Path) -> None:
    folder = str(write_tiny_encoder(tmp_path / "tiny"))
    first, *others = [
        load_encoder(folder, runtime=runtime, precision=precision, threads=1, cache=cache).encode(TEXTS)
        for runtime, precision in [
            ("onnxruntime", "fp32"),
            ("openvino", "fp32"),
            ("onnxruntime", "int8"),
            ("openvino", "int8"),
        ]
    ]
    np.testing.assert_allclose(others[0], first, atol=1e-5)
    assert min(float(np.sum(first * int8, axis=1).min()) for int8 in others[1:]) > 0.99


def test_a_publication_alone_is_encoded_with_little_padding() -> None:
    """An abstract and twenty contexts: padded to the abstract's length they would cost half as much again."""
    lengths = [155] + 20 * [72]
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in token_batches(lengths, BATCH_TOKENS))
    assert padded < 1.15 * sum(lengths)


def test_a_query_waits_for_one_batch_of_a_publication_not_for_all(tmp_path: Path, cache: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    encoder = load_encoder(str(folder), precision="fp32", threads=1, cache=cache, batch_tokens=64)
    expected = encoder.encode(["a query"])
    session = encoder._session = Held(encoder._session)
    with ThreadPoolExecutor(2) as pool:
        publication = pool.submit(encoder.encode, ["long words " * 40] * 3)
        assert session.begun.wait(30)
        query = pool.submit(encoder.encode, ["a query"])
        while not encoder.turns.waiting:
            assert not query.done()
        session.let_go.set()
        np.testing.assert_array_equal(query.result(30), expected)
        assert publication.result(30).shape == (3, encoder.dimension)
    assert [rows for rows, _ in session.shapes] == [2, 1, 1]
    assert [length < 32 for _, length in session.shapes] == [False, True, False]


def test_cores_compute_side_by_side_and_give_the_same(tmp_path: Path, cache: Path, encoder: GraphEncoder) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    both = load_encoder(str(folder), precision="fp32", threads=2, cache=cache)
    texts = ["one two three " * 6, "a small net."] * 4
    expected = encoder.encode(texts)
    session = both._session = Held(both._session)
    assert session.streams == 2
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(both.encode, texts)
        wait_until(lambda: len(session.shapes) == 2, "a second run beside the one that is held")
        session.let_go.set()
        np.testing.assert_allclose(waiting.result(30), expected, atol=1e-5)


def test_no_texts_give_no_rows(encoder: GraphEncoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.dimension)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalise", [True, False])
def test_pooling_and_normalisation_come_from_the_files(
    tmp_path: Path, cache: Path, pooling: str, normalise: bool
) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny", pooling=pooling, normalise=normalise, max_tokens=20)
    files = read_encoder_files(str(folder))
    assert (files.pooling, files.normalise, files.max_tokens) == (pooling, normalise, 20)
    vector = load_encoder(str(folder), precision="fp32", threads=1, cache=cache).encode(["some text"])[0]
    assert (abs(np.linalg.norm(vector) - 1) < 1e-5) == normalise


def test_cls_pooling_is_the_first_state_of_the_whole_graph(tmp_path: Path, cache: Path) -> None:
    """The graph for CLS pooling computes the last layer for one token only; that must change nothing."""
    import onnx
    from safetensors.numpy import load_file

    from citewell.inference.bert_graph import bert_encoder

    folder = write_tiny_encoder(tmp_path / "tiny", pooling="cls", normalise=False)
    short = load_encoder(str(folder), precision="fp32", threads=1, cache=cache).encode(TEXTS)
    (folder / "onnx").mkdir()
    onnx.save(bert_encoder(CONFIG, load_file(folder / "model.safetensors")), folder / "onnx/model.onnx")
    whole = load_encoder(str(folder), precision="fp32", threads=1, cache=cache).encode(TEXTS)
    np.testing.assert_allclose(short, whole, atol=1e-5)


def test_a_newer_pooling_file_names_the_way_in_one_field(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "cls", "embedding_dimension": 16}')
    assert read_encoder_files(str(folder)).pooling == "cls"


def test_a_plain_transformers_folder_is_read_as_scientific_encoders_are_used(tmp_path: Path, cache: Path) -> None:
    encoder = load_encoder(str(write_tiny_encoder(tmp_path / "tiny", pooling=None)), threads=1, cache=cache)
    assert encoder.max_tokens == CONFIG["max_position_embeddings"]
    assert encoder.paper_text(" A  title ", "Its abstract.") == "A title[SEP]Its abstract."
    assert encoder.tokenize([encoder.paper_text("ab", "c")])[0].tokens == ["[CLS]", "a", "##b", "[SEP]", "c", "[SEP]"]


def test_paper_text(encoder: GraphEncoder) -> None:
    assert encoder.paper_text("Title", "Abstract\n of it") == "Title. Abstract of it"
    assert encoder.paper_text("Title", " ") == "Title"
    assert encoder.paper_text("e\u0301", "") == "é"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"max_tokens": 16}, False),
        ({"strip_markers": True}, False),
        ({"precision": "int8"}, False),
        ({"precision": "int8", "runtime": "onnxruntime"}, False),
        ({"threads": 2}, True),
        ({"runtime": "onnxruntime"}, True),
    ],
)
def test_the_hash_changes_with_what_changes_a_vector(
    tmp_path: Path, cache: Path, change: dict[str, object], same: bool
) -> None:
    folder = str(write_tiny_encoder(tmp_path / "tiny"))
    plain: dict[str, object] = {"precision": "fp32", "threads": 1, "cache": cache}
    one, other = load_encoder(folder, **plain), load_encoder(folder, **{**plain, **change})  # type: ignore[arg-type]
    assert (one.model_hash == other.model_hash) == same


def test_fp32_and_bf16_are_one_model_and_old_ledgers_name_either(tmp_path: Path, cache: Path) -> None:
    files = read_encoder_files(str(write_tiny_encoder(tmp_path / "tiny")))
    session = open_session(files.build_graph(cache), Runtime.OPENVINO, Precision.FP32, 1)

    def made(precision: str) -> GraphEncoder:
        return GraphEncoder(
            files,
            session,
            max_tokens=files.max_tokens,
            strip_markers=False,
            batch_tokens=BATCH_TOKENS,
            precision=precision,
            runtime=f"openvino {precision}",
        )

    def old_hash(precision: str) -> str:
        """The hash of earlier versions, in which every precision had its own."""
        rules = {
            "weights": files.weights_hash,
            "pooling": "mean",
            "normalise": True,
            "max_tokens": files.max_tokens,
            "separator": ". ",
            "strip_markers": False,
            "text_rules": 1,
            "precision": precision,
        }
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]

    full, half, quantised = made("fp32"), made("bf16"), made("int8-openvino")
    assert full.model_hash == half.model_hash != quantised.model_hash
    assert full.exact_hash != half.exact_hash
    for old in ("fp32", "bf16"):
        assert is_model(full, old_hash(old))
        assert is_model(half, old_hash(old))
        assert not is_model(quantised, old_hash(old))
    assert is_model(quantised, old_hash("int8-openvino"))
    assert not is_model(full, old_hash("int8-openvino"))


@given(
    st.lists(st.sampled_from(["a", "OTHERCIT", "word", "x1"]), max_size=60),
    st.lists(st.sampled_from(["b", "OTHERCIT", "more", "."]), max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_a_long_context_is_cut_round_its_marker(encoder: GraphEncoder, before: list[str], after: list[str]) -> None:
    tokens = encoder.tokenize([" ".join([*before, "TARGETCIT", *after])])[0].tokens
    assert len(tokens) <= encoder.max_tokens
    at = next(i for i, pair in enumerate(pairwise(tokens)) if pair == ("target", "##cit"))
    left, right = at - 1, len(tokens) - 1 - (at + 2)
    if len(tokens) == encoder.max_tokens:
        # The shorter side is short only because the text ends there.
        whole = encoder.tokenize([" ".join(before)])[0], encoder.tokenize([" ".join(after)])[0]
        ended = left == len(whole[0]) - 2 or right == len(whole[1]) - 2
        assert ended or abs(left - right) <= 2


def test_a_model_may_ask_for_shorter_contexts_than_papers(tmp_path: Path, cache: Path) -> None:
    plain = load_encoder(str(write_tiny_encoder(tmp_path / "plain")), cache=cache)
    folder = write_tiny_encoder(tmp_path / "short")
    (folder / CONTEXTS).write_text('{"tokens": 10}')
    short = load_encoder(str(folder), cache=cache)
    text = "far " * 20 + "near TARGETCIT near" + " away" * 20
    assert [len(each.ids) for each in plain.tokenize([text])] == [plain.max_tokens]
    assert [len(each.ids) for each in short.tokenize([text, "paper " * 40])] == [10, plain.max_tokens]
    assert short.cuts("one two TARGETCIT three four")
    assert not plain.cuts("one two TARGETCIT three four")
    assert not short.cuts("one two three four")
    assert short.model_hash != plain.model_hash
    changed = text.replace("far", "off").replace("away", "afar")
    assert np.array_equal(*short.encode([text, changed], apart=True))


@pytest.mark.parametrize("told", ["{", "[]", "{}", '{"tokens": "ten"}', '{"tokens": 2}', '{"tokens": 999}'])
def test_a_wrong_length_of_contexts_is_refused(tmp_path: Path, told: str) -> None:
    folder = write_tiny_encoder(tmp_path / "short")
    (folder / CONTEXTS).write_text(told)
    with pytest.raises(EncoderUnusable, match=CONTEXTS):
        read_encoder_files(str(folder))


@given(st.integers(1, 300), st.data())
def test_centred_window(length: int, data: st.DataObject) -> None:
    middle, room = data.draw(st.integers(0, length - 1)), data.draw(st.integers(1, 300))
    start, end = centred(length, middle, room)
    assert 0 <= start <= middle < end <= length
    assert end - start == min(room, length)


@pytest.mark.parametrize("tokens", [-1, 1, 2, 65])
def test_a_window_that_holds_no_token_of_a_text_is_refused(tmp_path: Path, cache: Path, tokens: int) -> None:
    folder = str(write_tiny_encoder(tmp_path / "tiny", max_tokens=64))
    with pytest.raises(EncoderUnusable, match=f"max_tokens is {tokens}; .*tiny' takes 3 to 64"):
        load_encoder(folder, precision="fp32", threads=1, cache=cache, max_tokens=tokens)


def test_stripped_markers_leave_the_cut_where_the_target_was(tmp_path: Path, cache: Path) -> None:
    folder = str(write_tiny_encoder(tmp_path / "tiny", max_tokens=8))
    encoder = load_encoder(folder, precision="fp32", threads=1, cache=cache, strip_markers=True)
    tokens = encoder.tokenize(["a " * 30 + "OTHERCIT x TARGETCIT y OTHERCIT" + " b" * 30])[0].tokens
    assert tokens == ["[CLS]", "a", "a", "x", "y", "b", "b", "[SEP]"]


def test_unusable_folders_say_what_is_missing(tmp_path: Path) -> None:
    def message(name: str) -> str:
        with pytest.raises(EncoderUnusable) as caught:
            read_encoder_files(name)
        return str(caught.value)

    folder = write_tiny_encoder(tmp_path / "tiny")
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    assert "pooling is max" in message(str(folder))
    (folder / "modules.json").write_text("[")
    assert "modules.json is not valid JSON" in message(str(folder))
    (folder / "modules.json").write_text("{}")
    assert "modules.json must hold a JSON array; it holds {}" in message(str(folder))
    (folder / "model.safetensors").unlink()
    assert "neither onnx/model.onnx nor model.safetensors" in message(str(folder))
    assert "has no config.json" in message(str(tmp_path))
    assert "neither a folder nor a Hugging Face id" in message("no/such/folder")


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_damaged_graph_is_named(tmp_path: Path, cache: Path, runtime: str) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    (folder / "model.onnx").write_text("no graph")
    with pytest.raises(EncoderUnusable, match=f"tiny/model.onnx cannot be loaded by {runtime}: "):
        load_encoder(str(folder), runtime=runtime, precision="fp32", threads=1, cache=cache)


def test_an_unknown_id_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderUnusable, match=r"'somebody/something'.*not in the local Hugging Face cache"):
        read_encoder_files("somebody/something")


@pytest.mark.parametrize(
    ("field", "value"), [("model_type", "gpt2"), ("hidden_act", "relu"), ("position_embedding_type", "relative_key")]
)
def test_an_architecture_no_graph_can_be_built_for_is_named(
    tmp_path: Path, cache: Path, field: str, value: str
) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(EncoderUnusable, match=f"{field} is {value!r}"):
        load_encoder(str(folder), precision="fp32", cache=tmp_path / "empty")


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny")
    with pytest.raises(EncoderUnusable, match="precision bf16 needs the runtime openvino"):
        load_encoder(str(folder), runtime="onnxruntime", precision="bf16", cache=tmp_path / "cache")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(EncoderUnusable, match=r"tokenizer\.json cannot be read"):
        load_encoder(str(folder), precision="fp32", cache=tmp_path / "cache")
    (folder / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(EncoderUnusable, match="its weights cannot be used"):
        load_encoder(str(folder), precision="fp32", cache=tmp_path / "cache")
