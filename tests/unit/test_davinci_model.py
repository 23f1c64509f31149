"""The heads against a plain numpy forward pass, their gradients, their switches, and the two losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from citewell.lab.davinci.model import (
    PRIOR_OF,
    GatedHead,
    HeadOutput,
    LinearHead,
    Loss,
    Reranker,
    ScalarGateHead,
    SemanticHead,
    Variant,
    load_encoder,
    parse_heads,
    ranking_loss,
)
from citewell.lab.davinci.priors import PriorKind
from tests.unit.davinci_world import write_encoder

D_ENC, D_H = 6, 4


def mlp(module: torch.nn.Sequential, x: np.ndarray) -> np.ndarray:
    first, second = module[0], module[2]
    hidden = np.maximum(x @ first.weight.detach().numpy().T + first.bias.detach().numpy(), 0)
    return hidden @ second.weight.detach().numpy().T + second.bias.detach().numpy()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(5, D_ENC)).astype(np.float32), rng.random(5).astype(np.float32)


def judge(head: torch.nn.Module, inputs: tuple[np.ndarray, np.ndarray]) -> HeadOutput:
    with torch.no_grad():
        found: HeadOutput = head(*map(torch.from_numpy, inputs))
    return found


def test_davinci_is_eq_7_to_10(inputs: tuple[np.ndarray, np.ndarray]) -> None:
    torch.manual_seed(0)
    head = GatedHead(D_ENC, D_H)
    e, p = inputs[0], inputs[1][:, None]
    h = np.concatenate([mlp(head.text, e), mlp(head.score, p)], axis=1)
    g = sigmoid(mlp(head.gate, np.concatenate([e, p], axis=1)))
    assert g.shape == (5, 2 * D_H)
    found = judge(head, inputs)
    np.testing.assert_allclose(found.logit, mlp(head.out, g * h)[:, 0], atol=1e-6)
    np.testing.assert_allclose(found.gate_text, g[:, :D_H].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.gate_score, g[:, D_H:].mean(axis=1), atol=1e-6)


def test_a1_and_the_cross_encoder_do_not_look_at_the_prior(inputs: tuple[np.ndarray, np.ndarray]) -> None:
    semantic, linear = SemanticHead(D_ENC, D_H), LinearHead(D_ENC, D_H)
    e = inputs[0]
    np.testing.assert_allclose(judge(semantic, inputs).logit, mlp(semantic.out, mlp(semantic.text, e))[:, 0], atol=1e-6)
    weight, bias = linear.out.weight.detach().numpy(), linear.out.bias.detach().numpy()
    np.testing.assert_allclose(judge(linear, inputs).logit, (e @ weight.T + bias)[:, 0], atol=1e-6)
    for head in (semantic, linear):
        np.testing.assert_array_equal(judge(head, inputs).logit, judge(head, (e, 1 - inputs[1])).logit)


def test_a4_gates_the_semantics_by_the_prior_alone(inputs: tuple[np.ndarray, np.ndarray]) -> None:
    head = ScalarGateHead(D_ENC, D_H)
    e, p = inputs[0], inputs[1][:, None]
    g = sigmoid(mlp(head.gate, p))
    found = judge(head, inputs)
    np.testing.assert_allclose(found.logit, mlp(head.out, g * mlp(head.text, e))[:, 0], atol=1e-6)
    np.testing.assert_allclose(found.gate_text, g[:, 0], atol=1e-6)


def test_a2_and_a3_are_the_full_head_on_another_prior(tmp_path: Path) -> None:
    names = {str(variant): variant for variant in Variant}
    model = Reranker(load_encoder(str(write_encoder(tmp_path))), names, D_H).eval()
    assert isinstance(model.heads["a2"], GatedHead)
    assert isinstance(model.heads["a3"], GatedHead)
    e = torch.randn(3, model.encoder.config.hidden_size)
    for changed in PriorKind:
        priors = torch.rand(3, len(PriorKind))
        before = model.judge(e, priors)
        priors[:, list(PriorKind).index(changed)] += 0.5
        after = model.judge(e, priors)
        moved = {name for name in names if not torch.equal(before[name].logit, after[name].logit)}
        blind = {Variant.A1, Variant.CROSS_ENCODER}
        assert moved == {name for name in names if PRIOR_OF[names[name]] is changed and names[name] not in blind}


def test_gradients_match_finite_differences(inputs: tuple[np.ndarray, np.ndarray]) -> None:
    torch.manual_seed(2)
    for head in (GatedHead(D_ENC, D_H), SemanticHead(D_ENC, D_H), ScalarGateHead(D_ENC, D_H), LinearHead(D_ENC, D_H)):
        head = head.double()
        e = torch.from_numpy(inputs[0]).double().requires_grad_()
        prior = torch.from_numpy(inputs[1]).double()
        assert torch.autograd.gradcheck(lambda e, prior, head=head: head(e, prior).logit, (e, prior))


def test_every_weight_of_the_model_learns(tmp_path: Path) -> None:
    model = Reranker(load_encoder(str(write_encoder(tmp_path))), {"davinci": Variant.DAVINCI}, D_H)
    ids = torch.randint(4, 30, (8, 10))
    out = model(ids, torch.ones_like(ids), torch.zeros_like(ids), torch.rand(8, len(PriorKind)))["davinci"].logit
    assert out.shape == (8,)
    ranking_loss(Loss.LISTWISE, out.reshape(2, 4), 0.1).backward()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.abs().any()]
    # Key biases shift all attention scores of a row equally, so they do not change the softmax and have no gradient.
    assert [name for name in silent if not name.endswith("key.bias")] == []


def test_the_last_layer_for_the_first_token_alone_gives_its_state(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    whole = AutoModel.from_pretrained(folder).eval()
    ids = torch.randint(4, 30, (3, 12))
    mask = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()
    with torch.no_grad():
        expected = whole(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        found = load_encoder(str(folder)).eval()(input_ids=ids, attention_mask=mask).last_hidden_state
    assert found.shape == (3, 1, 16)
    torch.testing.assert_close(found[:, 0], expected, atol=1e-5, rtol=0)


def test_padding_does_not_change_a_score(tmp_path: Path) -> None:
    model = Reranker(load_encoder(str(write_encoder(tmp_path))), {"davinci": Variant.DAVINCI}, D_H).eval()
    ids = torch.randint(4, 30, (2, 10))
    priors = torch.rand(2, len(PriorKind))
    wide = torch.nn.functional.pad(ids, (0, 7))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 7))
    with torch.no_grad():
        tight = model(ids, torch.ones_like(ids), torch.zeros_like(ids), priors)["davinci"].logit
        padded = model(wide, mask, torch.zeros_like(wide), priors)["davinci"].logit
    torch.testing.assert_close(tight, padded, atol=1e-5, rtol=0)


def test_margin_loss_is_eq_11() -> None:
    logits = torch.tensor([[1.0, 0.5, -2.0], [0.0, 3.0, 0.1]])
    scores = 1 / (1 + np.exp(-logits.numpy()))
    by_hand = [max(0.0, negative - row[0] + 0.1) for row in scores for negative in row[1:]]
    assert float(ranking_loss(Loss.MARGIN, logits, 0.1)) == pytest.approx(np.mean(by_hand), rel=1e-5)


def test_listwise_loss_is_the_cross_entropy_of_the_positive() -> None:
    logits = torch.tensor([[1.0, 0.5, -2.0], [0.0, 3.0, 0.1]])
    exp = np.exp(logits.numpy())
    by_hand = -np.log(exp[:, 0] / exp.sum(axis=1)).mean()
    assert float(ranking_loss(Loss.LISTWISE, logits, 0.1)) == pytest.approx(by_hand, rel=1e-5)


def test_heads_are_named_by_variant_and_loss() -> None:
    assert parse_heads(["davinci", "davinci+margin"], "listwise") == {
        "davinci": (Variant.DAVINCI, Loss.LISTWISE),
        "davinci+margin": (Variant.DAVINCI, Loss.MARGIN),
    }
    with pytest.raises(ValueError, match="once each"):
        parse_heads(["a1", "a1"], "listwise")
