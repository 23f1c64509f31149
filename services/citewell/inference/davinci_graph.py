"""DAVINCI as ONNX graphs, from its weights and no torch: two for the encoder, and the head (eq. 7–10).

    input_ids, attention_mask, token_type_ids ──▶ sides ──▶ states [batch, length, d_enc]
                       states, attention_mask ──▶ pairs ──▶ e [batch, d_enc]
                                     e, prior ──▶ head  ──▶ scores [batch, 3]: logit, text gate, prior gate

`sides` are the layers that read query and candidate apart: it takes a pair, or a side alone, with the same result, so
that a side's states can be kept; `pairs` are the others. The head is a graph of its own because it wants another
precision: priors of neighbouring ranks differ by less than bf16 can tell once they are mixed with text, so the head,
which costs nothing, stays in fp32. `joined` makes one graph of all for servers that run a single one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, compose, helper

from citewell.inference.bert_graph import BertConfig, BertWriter, GraphWriter, Weights, token_inputs


def davinci_sides(config: Mapping[str, Any], weights: Weights, prefix: str = "encoder.") -> onnx.ModelProto:
    """The embeddings, and the layers that read the sides of a pair apart."""
    parsed = BertConfig.from_json(config)
    graph = GraphWriter(weights)
    bert = BertWriter(graph, parsed, prefix)
    states = bert.embeddings()
    if parsed.apart_layers:
        states = bert.layers(states, bert.padding_and_other_side(), range(parsed.apart_layers))
    return graph.model(token_inputs(), states=(states, ["batch", "length", parsed.hidden]))


def davinci_pairs(config: Mapping[str, Any], weights: Weights, prefix: str = "encoder.") -> onnx.ModelProto:
    """The layers that read the whole pair, up to e, the final state of the first token."""
    parsed = BertConfig.from_json(config)
    graph = GraphWriter(weights)
    bert = BertWriter(graph, parsed, prefix)
    last = bert.layers("states", bert.padding(), range(parsed.apart_layers, parsed.layers), first_only=True)
    first = graph.op("Squeeze", last, graph.constant([1]))
    inputs = [
        helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "length", parsed.hidden]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"]),
    ]
    return graph.model(inputs, e=(first, ["batch", parsed.hidden]))


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


def joined(*parts: onnx.ModelProto) -> onnx.ModelProto:
    """The parts as one graph: what one puts out, a later one takes in; inputs of one name are one input."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    inputs: dict[str, onnx.ValueInfoProto] = {}
    made: set[str] = set()
    for number, part in enumerate(parts):
        graph = compose.add_prefix(part, f"part{number}_", rename_inputs=False, rename_outputs=False).graph
        nodes += graph.node
        weights += graph.initializer
        inputs |= {each.name: each for each in graph.input if each.name not in made}
        made |= {each.name for each in graph.output}
    whole = helper.make_graph(nodes, "davinci", list(inputs.values()), list(parts[-1].graph.output), weights)
    model = helper.make_model(whole, opset_imports=parts[0].opset_import, producer_name="citewell")
    model.ir_version = parts[0].ir_version
    onnx.checker.check_model(model)
    return model


def as_float32(weights: Mapping[str, Any]) -> Weights:
    """Weights as the builder wants them, whatever they are stored in."""
    return {name: np.asarray(array, np.float32) for name, array in weights.items()}
