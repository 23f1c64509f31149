"""Builds the ONNX graph of a BERT-family encoder from its configuration and weights; no torch.

Hugging Face folders carry weights, rarely a graph. The graph of a BERT encoder is fixed by its configuration, so it
is written down here once, in vendor-neutral ops of one pinned opset, and serves ONNX Runtime, OpenVINO and Triton
alike.

Two liberties, both exact: query, key and value are one matrix product; and where only the first token's state is
wanted (CLS pooling, DAVINCI), the last layer computes keys and values for every token but everything else for the
first alone.

An encoder whose first `apart_layers` read the two sides of a pair apart (DAVINCI) is written as two graphs: what they
make of a side can then be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Added to the scores of padding: far below any real score, and inside the range of fp16.
_MASKED = -1e4

Weights = Mapping[str, NDArray[np.float32]]


def check_apart(config: Mapping[str, Any]) -> None:
    """Raises `ValueError` unless at least the last layer reads the pair, and both sides have positions."""
    apart, layers = config.get("apart_layers", 0), config["num_hidden_layers"]
    if not 0 <= apart < layers:
        raise ValueError(f"apart_layers is {apart}; it must be at least 0 and below the encoder's {layers} layers")
    if not apart:
        return
    query, candidate = config.get("side_positions", (0, 0))
    known = config["max_position_embeddings"]
    if not (query > 0 < candidate and query + candidate <= known):
        raise ValueError(
            f"side_positions is {query}, {candidate}; each must be positive, and both together at most {known}"
        )


@dataclass(frozen=True)
class BertConfig:
    """The part of a Hugging Face `config.json` that fixes the graph."""

    layers: int
    heads: int
    hidden: int
    epsilon: float
    apart_layers: int
    """The first layers, in which a token of one side of a pair does not see the other."""
    side_positions: tuple[int, int]
    """With layers apart: how many positions the query has, from 0 on, and the candidate after them. A longer side's
    tail stands at its last one, so that a side is read alike whatever the length of either."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> BertConfig:
        """Returns the configuration, or raises `ValueError` naming the field this builder cannot serve."""
        expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
        for field, value in expected.items():
            if config.get(field, value) != value:
                raise ValueError(f"{field} is {config[field]!r}; a graph can be built for {value!r} only")
        check_apart(config)
        return cls(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            hidden=int(config["hidden_size"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
            apart_layers=int(config.get("apart_layers", 0)),
            side_positions=tuple(config.get("side_positions", (0, 0))),
        )


class GraphWriter:
    """Collects nodes and weights; every method adds one node and returns the name of its result."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, bytes], str] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def constant(self, value: NDArray[Any] | float | list[int]) -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.tensor(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def tensor(self, name: str, array: NDArray[Any]) -> str:
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name: str) -> str:
        return self.tensor(name, self._weights[name])

    def linear(self, x: str, *layers: str) -> str:
        """x · Wᵀ + b; several layers over one input become one product with their results side by side."""
        matrix = np.concatenate([self._weights[f"{layer}.weight"] for layer in layers])
        bias = np.concatenate([self._weights[f"{layer}.bias"] for layer in layers])
        product = self.op("MatMul", x, self.tensor(f"{layers[0]}.weight_t", matrix.T))
        return self.op("Add", product, self.tensor(f"{layers[0]}.bias_all", bias))

    def gelu(self, x: str) -> str:
        """The exact (erf) GELU, in the form runtimes recognise and fuse."""
        erf = self.op("Erf", self.op("Div", x, self.constant(float(np.sqrt(2.0)))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1.0))), self.constant(0.5))

    def model(self, inputs: list[onnx.ValueInfoProto], **outputs: tuple[str, list[int | str]]) -> onnx.ModelProto:
        """The finished, checked model; each output is given as its name = (result of a node, shape)."""
        for name, (result, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [result], [name], name=name))
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, (_, shape) in outputs.items()
        ]
        graph = helper.make_graph(self._nodes, "encoder", inputs, results, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="citewell")
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        return model


def token_inputs() -> list[onnx.ValueInfoProto]:
    """The encoder's inputs, dynamic in batch and length."""
    return [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS]


@dataclass(frozen=True)
class BertWriter:
    """Writes parts of an encoder into a graph; every method returns the name of its result."""

    graph: GraphWriter
    config: BertConfig
    prefix: str

    def embeddings(self) -> str:
        """States before the first layer [batch, length, hidden]."""
        graph, prefix = self.graph, f"{self.prefix}embeddings"
        words = graph.op("Gather", graph.weight(f"{prefix}.word_embeddings.weight"), "input_ids")
        types = graph.op("Gather", graph.weight(f"{prefix}.token_type_embeddings.weight"), "token_type_ids")
        table = graph.weight(f"{prefix}.position_embeddings.weight")
        if self.config.apart_layers:
            positions = graph.op("Gather", table, self._side_positions())
        else:
            length = graph.op("Slice", graph.op("Shape", "input_ids"), graph.constant([1]), graph.constant([2]))
            positions = graph.op("Slice", table, graph.constant([0]), length, graph.constant([0]))
        return self._norm(graph.op("Add", graph.op("Add", words, types), positions), f"{prefix}.LayerNorm")

    def _side_positions(self) -> str:
        """Where each token stands in its own side [batch, length]."""
        graph, axis = self.graph, self.graph.constant([1])
        query, candidate = self.config.side_positions
        places = graph.op("CumSum", "attention_mask", axis, exclusive=1)
        asked = graph.op("ReduceSum", graph.op("Sub", "attention_mask", "token_type_ids"), axis, keepdims=1)
        places = graph.op("Sub", places, graph.op("Mul", "token_type_ids", asked))
        further = graph.op("Mul", "token_type_ids", graph.constant([candidate - query]))
        places = graph.op("Min", places, graph.op("Add", graph.constant([query - 1]), further))
        return graph.op("Add", places, graph.op("Mul", "token_type_ids", graph.constant([query])))

    def padding(self) -> str:
        """What keeps attention off padding [batch, 1, 1, length]."""
        graph = self.graph
        mask = graph.op("Cast", graph.op("Unsqueeze", "attention_mask", graph.constant([1, 2])), to=TensorProto.FLOAT)
        return graph.op("Mul", graph.op("Sub", graph.constant(1.0), mask), graph.constant(_MASKED))

    def padding_and_other_side(self) -> str:
        """What keeps attention off padding and the other side [batch, 1, length, length]."""
        graph = self.graph
        sides = graph.op("Cast", "token_type_ids", to=TensorProto.FLOAT)
        rows, columns = (graph.op("Unsqueeze", sides, graph.constant(axes)) for axes in ([1, 3], [1, 2]))
        across = graph.op("Abs", graph.op("Sub", rows, columns))
        return graph.op("Add", graph.op("Mul", across, graph.constant(_MASKED)), self.padding())

    def layers(self, x: str, bias: str, chosen: range, *, first_only: bool = False) -> str:
        """States after the layers `chosen`; with `first_only`, after the last of all, the first token's alone."""
        graph, config = self.graph, self.config
        size = config.hidden // config.heads
        heads = graph.constant([0, 0, config.heads, size])
        scale = graph.constant(1.0 / float(np.sqrt(size)))
        for i in chosen:
            layer = f"{self.prefix}encoder.layer.{i}"
            query, key, value = (f"{layer}.attention.self.{part}" for part in ("query", "key", "value"))
            if first_only and i == config.layers - 1:
                first = graph.op("Slice", x, graph.constant([0]), graph.constant([1]), graph.constant([1]))
                q = graph.linear(first, query)
                k, v = graph.ops("Split", graph.linear(x, key, value), outputs=2, axis=-1)
                x = first
            else:
                q, k, v = graph.ops("Split", graph.linear(x, query, key, value), outputs=3, axis=-1)
            q = graph.op("Transpose", graph.op("Reshape", q, heads), perm=[0, 2, 1, 3])
            k = graph.op("Transpose", graph.op("Reshape", k, heads), perm=[0, 2, 3, 1])
            v = graph.op("Transpose", graph.op("Reshape", v, heads), perm=[0, 2, 1, 3])
            scores = graph.op("Add", graph.op("Mul", graph.op("MatMul", q, k), scale), bias)
            mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
            mixed = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
            mixed = graph.op("Reshape", mixed, graph.constant([0, 0, config.hidden]))
            attended = graph.linear(mixed, f"{layer}.attention.output.dense")
            x = self._norm(graph.op("Add", attended, x), f"{layer}.attention.output.LayerNorm")
            inner = graph.gelu(graph.linear(x, f"{layer}.intermediate.dense"))
            out = graph.linear(inner, f"{layer}.output.dense")
            x = self._norm(graph.op("Add", out, x), f"{layer}.output.LayerNorm")
        return x

    def _norm(self, x: str, name: str) -> str:
        scale, bias = self.graph.weight(f"{name}.weight"), self.graph.weight(f"{name}.bias")
        return self.graph.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.config.epsilon)


def bert_encoder(config: Mapping[str, Any], weights: Weights, *, first_only: bool = False) -> onnx.ModelProto:
    """The encoder as an ONNX model: `input_ids`, `attention_mask`, `token_type_ids` → `last_hidden_state`."""
    prefix = next((p for p in ("", "bert.") if f"{p}embeddings.word_embeddings.weight" in weights), None)
    if prefix is None:
        raise ValueError("the weights hold no embeddings.word_embeddings.weight: not a BERT encoder")
    parsed = BertConfig.from_json(config)
    graph = GraphWriter(weights)
    bert = BertWriter(graph, parsed, prefix)
    states = bert.layers(bert.embeddings(), bert.padding(), range(parsed.layers), first_only=first_only)
    return graph.model(token_inputs(), last_hidden_state=(states, ["batch", "tokens", parsed.hidden]))
