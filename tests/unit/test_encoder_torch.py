"""The graph written from weights computes what transformers computes from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citewell.profiler.encoder import load_encoder
from tests.tiny_models import write_tiny_encoder

torch = pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_graph_equals_transformers(tmp_path: Path, pooling: str) -> None:
    folder = write_tiny_encoder(tmp_path / "tiny", pooling=pooling, normalise=False)
    encoder = load_encoder(str(folder), runtime="onnxruntime", threads=1, cache=tmp_path)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for text in ("a small net.", "longer words " * 9, ""):
        ids = torch.tensor([encoder.tokenize([text])[0].ids])
        with torch.inference_mode():
            states = model(input_ids=ids).last_hidden_state[0].numpy()
        expected = states.mean(axis=0) if pooling == "mean" else states[0]
        np.testing.assert_allclose(encoder.encode([text])[0], expected, atol=1e-5)
