"""DAVINCI as ONNX graphs, from its weights and no torch: the encoder, which reads text, and the head (eq. 7–10).

    input_ids, attention_mask, token_type_ids ──▶ encoder ──▶ e [batch, d_enc]
                                                   e, prior ──▶ head ──▶ scores [batch, 3]: logit, text gate, prior gate

They are two graphs because they want two precisions: priors of neighbouring ranks differ by less than bf16 can tell
once they are mixed with text, so the head, which costs nothing, stays in fp32. `joined` makes one graph of both for
servers that run a single one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, compose, helper

from citewell.inference.bert_graph import BertConfig, GraphWriter, Weights, bert_states, token_inputs


def davinci_encoder(config: Mapping[str, Any], weights: Weights, prefix: str = "encoder.") -> onnx.ModelProto:
    """The encoder up to e, the final state of the first token."""
    parsed = BertConfig.from_json(config)
    graph = GraphWriter(weights)
    states = bert_states(graph, parsed, prefix, first_only=True)
    first = graph.op("Squeeze", states, graph.constant([1]))
    return graph.model(token_inputs(), e=(first, ["batch", parsed.hidden]))


def davinci_head(weights: Weights, prefix: str = "heads.davinci.") -> onnx.ModelProto:
    """Eq. 7–10: towers of text and prior, the gate over both, the output's logit."""
    graph = GraphWriter(weights)
    size = weights[f"{prefix}text.2.bias"].shape[0]
    hidden = weights[f"{prefix}text.0.weight"].shape[1]

    def mlp(x: str, name: str) -> str:
        return graph.linear(graph.op("Relu", graph.linear(x, f"{prefix}{name}.0")), f"{prefix}{name}.2")

    both = graph.op("Concat", mlp("e", "text"), mlp("prior", "score"), axis=-1)
    gate = graph.op("Sigmoid", mlp(graph.op("Concat", "e", "prior", axis=-1), "gate"))
    logit = mlp(graph.op("Mul", gate, both), "out")
    halves = graph.ops("Split", gate, outputs=2, axis=-1)
    means = [
        graph.op("Div", graph.op("ReduceSum", half, graph.constant([-1])), graph.constant(float(size)))
        for half in halves
    ]
    inputs = [
        helper.make_tensor_value_info("e", TensorProto.FLOAT, ["batch", hidden]),
        helper.make_tensor_value_info("prior", TensorProto.FLOAT, ["batch", 1]),
    ]
    return graph.model(inputs, scores=(graph.op("Concat", logit, *means, axis=-1), ["batch", 3]))


def joined(encoder: onnx.ModelProto, head: onnx.ModelProto) -> onnx.ModelProto:
    """Encoder and head as one graph."""
    apart = compose.add_prefix(head, "head_", rename_inputs=False, rename_outputs=False)
    return compose.merge_models(encoder, apart, io_map=[("e", "e")], producer_name="citewell")


def join_files(encoder: Path, head: Path, out: Path) -> None:
    """Writes the joined graph of two files."""
    onnx.save(joined(onnx.load(encoder), onnx.load(head)), out)


def as_float32(weights: Mapping[str, Any]) -> Weights:
    """Weights as the builder wants them, whatever they are stored in."""
    return {name: np.asarray(array, np.float32) for name, array in weights.items()}
