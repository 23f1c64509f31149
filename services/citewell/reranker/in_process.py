"""A PairScorer in this process, on ONNX Runtime or OpenVINO."""

from __future__ import annotations

import asyncio

from citewell.inference.pair_encoder import PairEncoder
from citewell.inference.sessions import Precision, Runtime, cpu_has_bf16, open_session
from citewell.reranker.model_files import HEAD, PAIRS, SIDES, ModelFolder
from citewell.reranker.pairs import PairBatch
from citewell.reranker.scorer import Floats, ScorerInfo
from citewell.runtime import telemetry
from citewell.runtime.worker_threads import worker_pool

_sides = telemetry.meter.create_counter(
    "citewell_reranker_sides", description="Queries and candidates read, by whether that was kept from before"
)


def _count(kept: int, computed: int) -> None:
    _sides.add(kept, {"kept": True})
    _sides.add(computed, {"kept": False})


class InProcessScorer:
    """Computes in a thread of its own, off the event loop; the runtime uses `threads` cores."""

    def __init__(
        self, model: ModelFolder, runtime: Runtime, precision: str, threads: int, *, kept_bytes: int = 0
    ) -> None:
        """`kept_bytes`: size of the cache of first-layer states."""
        if precision == "auto":
            precision = Precision.BF16 if runtime is Runtime.OPENVINO and cpu_has_bf16() else Precision.FP32
        wanted = Precision(precision)
        described = model.description
        sides, pairs = (open_session(model.file(name), runtime, wanted, threads) for name in (SIDES, PAIRS))
        apart = described.apart_layers > 0
        self._encoder = PairEncoder(sides, pairs, apart=apart, kept_bytes=kept_bytes, on_sides=_count)
        # The head stays in fp32: rounding there would swap neighbouring candidates, and it costs next to nothing.
        self._head = open_session(model.file(HEAD), runtime, Precision.FP32, threads)
        self._thread = worker_pool(1, "scorer")
        self.info = ScorerInfo(
            described.name, f"{model.hash}-{wanted}", f"{runtime} {wanted}, {described.precision} weights",
            described.hidden, described.budget.window,
        )  # fmt: skip

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        """See PairScorer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, batch, priors)

    def _score(self, batch: PairBatch, priors: Floats) -> Floats:
        e = self._encoder.encode(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        (scores,) = self._head.run({"e": e, "prior": priors[:, None]})
        return scores

    async def check(self) -> None:
        """Never raises: the model is in this process."""

    async def close(self) -> None:
        """Waits for the batch that is being computed."""
        await asyncio.to_thread(self._thread.shutdown)
