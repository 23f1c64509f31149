"""A PairScorer on a Triton server, over gRPC."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from citewell.reranker.model_files import ModelFolder
from citewell.reranker.pairs import PairBatch
from citewell.reranker.scorer import Floats, ScorerInfo
from citewell.runtime.errors import CitewellError, DeadlineExceeded, FailedPrecondition, Unavailable

# Only requests of equal length are batched together on the server, so lengths are rounded up to these.
BUCKETS = (64, 128, 256, 384, 512)
# The max_batch_size of the model's config.pbtxt.
_MAX_PAIRS = 512
_CHECK_SECONDS = 2.0


class TritonScorer:
    """Sends each batch as one request `[pairs, bucket]`; cancelling the call cancels it on the server."""

    def __init__(
        self,
        model: ModelFolder,
        address: str,
        name: str,
        version: str = "",
        *,
        channels: int = 2,
        timeout_seconds: float = 5.0,
    ) -> None:
        self._name, self._version, self._timeout = name, version, timeout_seconds
        options = [
            ("grpc.use_local_subchannel_pool", 1),  # else all channels would share one connection
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        self._clients = [InferenceServerClient(address, channel_args=options) for _ in range(channels)]
        self._turn = cycle(self._clients)
        described = model.description
        served = f"triton {name}" + (f" version {version}" if version else "")
        self.info = ScorerInfo(
            described.name,
            f"{model.hash}-{name}-{version or 'served'}",
            served,
            described.hidden,
            described.budget.window,
        )

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        """See PairScorer."""
        arrays = batch.input_ids, batch.attention_mask, batch.token_type_ids
        starts = range(0, len(priors), _MAX_PAIRS)
        parts = [(PairBatch(*(a[i : i + _MAX_PAIRS] for a in arrays)), priors[i : i + _MAX_PAIRS]) for i in starts]
        return np.concatenate(await asyncio.gather(*(self._infer(*part) for part in parts)))

    async def _infer(self, batch: PairBatch, priors: Floats) -> Floats:
        length = next(bucket for bucket in BUCKETS if bucket >= batch.input_ids.shape[1])
        inputs = [
            _tensor("input_ids", _widened(batch.input_ids, length), "INT64"),
            _tensor("attention_mask", _widened(batch.attention_mask, length), "INT64"),
            _tensor("token_type_ids", _widened(batch.token_type_ids, length), "INT64"),
            _tensor("prior", priors[:, None].astype(np.float32), "FP32"),
        ]
        outputs = [InferRequestedOutput("scores")]
        try:
            result = await next(self._turn).infer(
                self._name, inputs, self._version, outputs, client_timeout=self._timeout
            )
        except InferenceServerException as error:
            raise _translated(error, self._name) from None
        scores: Floats = result.as_numpy("scores")
        return scores

    async def check(self) -> None:
        """Raises Unavailable until the server has the model ready."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                ready = await self._clients[0].is_model_ready(self._name, self._version)
        except (InferenceServerException, TimeoutError):
            ready = False
        if not ready:
            raise Unavailable(f"Triton does not have {self._name} ready")

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(client.close() for client in self._clients))


def _widened(array: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.pad(array, ((0, 0), (0, length - array.shape[1])))


def _tensor(name: str, array: NDArray[Any], kind: str) -> InferInput:
    tensor = InferInput(name, array.shape, kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _translated(error: InferenceServerException, model: str) -> CitewellError:
    """Translates an error of Triton into one of ours."""
    status, message = str(error.status()), str(error.message())
    if "DEADLINE_EXCEEDED" in status:
        return DeadlineExceeded(f"Triton did not answer for {model} in time", stage="rerank")
    # A full queue, a model that is not ready and a lost connection all arrive as UNAVAILABLE.
    if "UNAVAILABLE" in status or "NOT_FOUND" in status or "CANCELLED" in status:
        return Unavailable(f"Triton cannot compute {model}: {message}", reason="TRITON_UNAVAILABLE")
    return FailedPrecondition(f"Triton refuses a batch for {model}: {message}", reason="TRITON_REFUSED")
