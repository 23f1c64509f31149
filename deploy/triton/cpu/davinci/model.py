"""Triton's Python backend around the exported graph: all requests of a batch are one run."""

import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "prior")


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options)

    def execute(self, requests):
        inputs = {
            name: np.concatenate([triton.get_input_tensor_by_name(request, name).as_numpy() for request in requests])
            for name in INPUTS
        }
        (scores,) = self.session.run(None, inputs)
        ends = np.cumsum([triton.get_input_tensor_by_name(request, "prior").shape()[0] for request in requests])
        parts = np.split(scores, ends[:-1])
        return [triton.InferenceResponse([triton.Tensor("scores", part)]) for part in parts]
