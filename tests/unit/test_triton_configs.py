"""The Triton repositories agree with what the client sends and what the exported graph takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from citewell.inference.davinci_graph import joined
from citewell.reranker.triton import BUCKETS
from tests.tiny_models import tiny_davinci_graphs

TRITON = Path(__file__).parents[2] / "deploy" / "triton"
REPOSITORIES = ["models", "cpu"]
TYPES = {7: "TYPE_INT64", 1: "TYPE_FP32"}


def read(repository: str) -> model_config_pb2.ModelConfig:
    text = (TRITON / repository / "davinci" / "config.pbtxt").read_text("utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_inputs_and_outputs_are_the_exported_graphs(repository: str) -> None:
    config, graph = read(repository), joined(*tiny_davinci_graphs()).graph
    for configured, exported in [(config.input, graph.input), (config.output, graph.output)]:
        assert {one.name: model_config_pb2.DataType.Name(one.data_type) for one in configured} == {
            one.name: TYPES[one.type.tensor_type.elem_type] for one in exported
        }
    assert list(config.output[0].dims) == [3]


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_no_queue_policy_that_makes_the_batcher_stall(repository: str) -> None:
    batching = read(repository).dynamic_batching
    assert not batching.HasField("default_queue_policy")
    assert not batching.priority_levels
    assert not batching.priority_queue_policy


def test_every_bucket_is_warmed_up_on_a_gpu() -> None:
    warmed = {one.inputs["input_ids"].dims[0]: one for one in read("models").model_warmup}
    assert set(warmed) == set(BUCKETS)
    for bucket, one in warmed.items():
        assert set(one.inputs) == {"input_ids", "attention_mask", "token_type_ids", "prior"}
        assert all(given.zero_data for given in one.inputs.values())
        assert one.inputs["attention_mask"].dims[0] == bucket


def test_the_tensorrt_option_parses_and_covers_every_bucket() -> None:
    """The option is commented out, so a syntax error would otherwise show only on a GPU."""
    text = (TRITON / "models" / "davinci" / "config.pbtxt").read_text("utf-8")
    option = text[text.index("# optimization {") :]
    config = text_format.Parse(re.sub(r"^# ?", "", option, flags=re.MULTILINE), model_config_pb2.ModelConfig())
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    smallest, largest = (accelerator.parameters[f"trt_profile_{end}_shapes"] for end in ("min", "max"))
    assert f"input_ids:1x{BUCKETS[0]}" in smallest
    assert f"input_ids:512x{BUCKETS[-1]}" in largest
