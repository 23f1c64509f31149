"""Writes a graph with int8 weights, one scale per output channel; a single scale loses ten times as much.

What happens to the activations differs. ONNX Runtime scales them over the whole batch, so that a text's result
depends a little on its neighbours. OpenVINO scales every 32 values of a token by themselves: nothing depends on the
batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from citewell.inference.sessions import Runtime

# Tables of more rows than this are word embeddings; those of positions and types are not worth it.
_TABLE_ROWS = 2048
_LAST_AXIS = "last_axis"


def quantize(graph: Path, target: Path, runtime: Runtime) -> None:
    """Writes `graph` to `target` in the int8 form the runtime computes fast; one with int8 weights stays as it is."""
    model = onnx.load(graph)
    if any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        onnx.save(model, target)
        return
    if runtime is Runtime.OPENVINO:
        onnx.save(with_int8_weights(model), target)
        return
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, target, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])


def with_int8_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large weights as int8: a scale per column of a matrix, a scale per row of the word embeddings."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []

    def store(name: str, axis: int) -> list[str]:
        """Replaces the tensor by int8 values and their scales along the other axis."""
        matrix = numpy_helper.to_array(tensors[name])
        scale = np.maximum(np.abs(matrix).max(axis=axis, keepdims=True), np.finfo(np.float32).tiny) / np.float32(127)
        parts = {f"{name}_int8": np.rint(matrix / scale).astype(np.int8), f"{name}_scale": scale.squeeze(axis)}
        graph.initializer.remove(tensors[name])
        graph.initializer.extend(numpy_helper.from_array(array, part) for part, array in parts.items())
        return list(parts)

    graph.initializer.append(numpy_helper.from_array(np.array([-1]), _LAST_AXIS))
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in tensors:
            name = node.input[1]
            nodes.append(helper.make_node("DequantizeLinear", store(name, 0), [name], name=f"{name}_restored", axis=1))
        elif node.op_type == "Gather" and _rows(tensors, node.input[0]) > _TABLE_ROWS:
            nodes += _gather_int8(node, store(node.input[0], 1))
            continue
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _rows(tensors: dict[str, onnx.TensorProto], name: str) -> int:
    return int(tensors[name].dims[0]) if name in tensors else 0


def _gather_int8(node: onnx.NodeProto, table: list[str]) -> list[onnx.NodeProto]:
    """Rows are gathered before they are restored: restoring the whole vocabulary for every batch would cost more."""
    values, scales, ids, out = *table, node.input[1], node.output[0]
    return [
        helper.make_node("Gather", [values, ids], [f"{out}_int8"], name=f"{out}_int8"),
        helper.make_node("Cast", [f"{out}_int8"], [f"{out}_float"], name=f"{out}_float", to=TensorProto.FLOAT),
        helper.make_node("Gather", [scales, ids], [f"{out}_scale"], name=f"{out}_scale"),
        helper.make_node("Unsqueeze", [f"{out}_scale", _LAST_AXIS], [f"{out}_scales"], name=f"{out}_scales"),
        helper.make_node("Mul", [f"{out}_float", f"{out}_scales"], [out], name=f"{out}_restored"),
    ]
