"""Runs an ONNX graph on ONNX Runtime or OpenVINO; safe from many threads, the GIL released while it computes.

Precisions: `fp32`; `bf16` (OpenVINO on a CPU that has it: about twice as fast); `int8` (the graph itself is written
so: `quantization`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Inputs = Mapping[str, NDArray[np.int64] | NDArray[np.float32]]


class Runtime(StrEnum):
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"


class GraphUnusable(ValueError):
    """A file that a runtime cannot load; the message names both."""


class Session(Protocol):
    """A graph ready to run."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs, in the order `run` returns them."""

    @property
    def streams(self) -> int:
        """How many runs are computed side by side; one more waits."""

    def run(self, inputs: Inputs) -> list[NDArray[np.float32]]:
        """Every output of the graph; inputs it does not have are ignored."""


class OnnxRuntimeSession:
    """A graph on ONNX Runtime's CPU provider."""

    streams = 1

    def __init__(self, graph: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())

    def run(self, inputs: Inputs) -> list[NDArray[np.float32]]:
        return list(self._session.run(None, {name: inputs[name] for name in self.inputs}))


class OpenVinoSession:
    """A graph on OpenVINO's CPU plug-in."""

    def __init__(self, graph: Path, threads: int, precision: Precision, *, side_by_side: bool) -> None:
        openvino = _openvino()
        hint = "bf16" if precision is Precision.BF16 else "f32"
        config = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.streams = 1
        if side_by_side:
            self.streams = threads or _cores()
            config |= {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": self.streams}
            config["INFERENCE_NUM_THREADS"] = self.streams
        self._model = openvino.Core().compile_model(str(graph), "CPU", config)
        self._requests = threading.local()
        self.inputs = tuple(port.get_any_name() for port in self._model.inputs)
        self.outputs = tuple(port.get_any_name() for port in self._model.outputs)

    def run(self, inputs: Inputs) -> list[NDArray[np.float32]]:
        # A request belongs to one thread: it keeps the buffers of its last run.
        if not hasattr(self._requests, "request"):
            self._requests.request = self._model.create_infer_request()
        request = self._requests.request
        request.infer({name: inputs[name] for name in self.inputs}, share_inputs=True)
        return [np.array(request.get_output_tensor(i).data) for i in range(len(self.outputs))]


def open_session(
    graph: Path, runtime: Runtime, precision: Precision, threads: int, *, side_by_side: bool = False
) -> Session:
    """The graph on the given runtime; `threads` = 0 leaves their number to the runtime.

    `side_by_side`: each core computes a run of its own, where the runtime can. A run then takes longer, but cores do
    not wait for one another, so that throughput is higher, above all on a machine that does other work too.
    """
    if runtime is Runtime.ONNXRUNTIME and precision is Precision.BF16:
        raise ValueError("precision bf16 needs the runtime openvino; onnxruntime has fp32 and int8")
    try:
        if runtime is Runtime.OPENVINO:
            return OpenVinoSession(graph, threads, precision, side_by_side=side_by_side)
        return OnnxRuntimeSession(graph, threads)
    except ImportError:
        raise
    except Exception as error:  # the runtimes raise no narrower class
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise GraphUnusable(f"{graph} cannot be loaded by {runtime}: {why[-1]}") from error


def cpu_has_bf16() -> bool:
    """Whether OpenVINO computes in bf16 on this CPU (elsewhere it would only emulate it, slowly)."""
    return "BF16" in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _cores() -> int:
    """Those this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_loading = threading.Lock()


def _openvino() -> Any:
    """OpenVINO, imported so that it cannot hang.

    First, its telemetry forks the process at import to report over the network; with gRPC threads running the fork can
    deadlock, so telemetry is made unimportable. Second, the first array passed to it initialises a C++ static while the
    GIL is released; a second thread would then hold the GIL and wait for that static. One array is passed here, under
    a lock.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None = cannot be imported
    with _loading:
        import openvino

        openvino.Tensor(np.zeros(1, np.float32))
    return openvino
