"""Writes a graph with int8 weights, one scale per output channel; a single scale loses ten times as much.

What happens to the activations differs. ONNX Runtime scales them over the whole batch, so that a text's result
depends a little on its neighbours. OpenVINO scales every 32 values of a token by themselves: nothing depends on the
batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from citewell.inference.sessions import Runtime


def quantize(graph: Path, target: Path, runtime: Runtime) -> None:
    """Writes `graph` to `target` in the int8 form the runtime computes fast."""
    if runtime is Runtime.OPENVINO:
        onnx.save(with_int8_weights(onnx.load(graph)), target)
        return
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, target, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])


def with_int8_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the constant side of every matrix product stored as int8 and a scale per column."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    restored = []
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in tensors:
            continue
        tensor = tensors[node.input[1]]
        matrix = numpy_helper.to_array(tensor)
        scale = np.maximum(np.abs(matrix).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
        name = tensor.name
        parts = {f"{name}_int8": np.rint(matrix / scale).astype(np.int8), f"{name}_scale": scale.astype(np.float32)}
        model.graph.initializer.remove(tensor)
        model.graph.initializer.extend(numpy_helper.from_array(array, part) for part, array in parts.items())
        restored.append(helper.make_node("DequantizeLinear", list(parts), [name], name=f"{name}_restored", axis=1))
    for node in restored:
        model.graph.node.insert(0, node)
    return model
