"""The tokens of a (query, candidate) pair as ENC2 reads them: `[CLS] S ⊕ T ⊕ A [SEP] T_c ⊕ A_c [SEP]`.

Serving and training cut text here and nowhere else. Every field has a budget; what it cuts away is chosen so that the
most telling words stay: the context keeps its marker in the middle, the candidate its whole title. The two sides are
tokenised apart, so that each is done once and may be cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from citewell.scholarly.contexts import TARGET, normalise
from citewell.scholarly.queries import Query

Tokens = NDArray[np.int32]
SPECIAL_TOKENS = 3
"""Of a pair: [CLS] and a [SEP] after each side."""
_CLS, _SEP, _PAD = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens each field of a pair may have."""

    context: int = 56
    """S, cut on both sides of the marker."""
    query_title: int = 16
    query_abstract: int = 0
    candidate: int = 45
    """T_c and A_c together. A title longer than this is kept whole, and the abstract left out."""
    mentions: int = 0
    """Citing contexts of the candidate (the text-level public profile); they share these tokens evenly."""
    abstract_fills: bool = False
    """The abstract gets the tokens that `mentions` does not use, so more of an uncited paper's abstract is read."""
    window: int = 512
    """The encoder's longest input; one half is for the query, the other for the candidate."""

    def __post_init__(self) -> None:
        fields = (self.context, self.query_title, self.query_abstract, self.candidate, self.mentions)
        if min(fields) < 0 or self.context < 8 or self.candidate < 8:
            raise ValueError(f"budgets must not be negative, context and candidate at least 8, got {self}")
        if self.context + self.query_title + self.query_abstract > self.query_half:
            raise ValueError(f"the query's budgets exceed its half of the window, {self.query_half} tokens: {self}")
        if self.candidate + self.mentions > self.candidate_half:
            raise ValueError(
                f"the candidate's budgets exceed its half of the window, {self.candidate_half} tokens: {self}"
            )

    @property
    def longest(self) -> int:
        """Tokens of a pair whose every field is full, the special ones included; a longer title makes a longer pair."""
        return self.context + self.query_title + self.query_abstract + self.candidate + self.mentions + SPECIAL_TOKENS

    def changed(self, fields: str) -> TokenBudget:
        """The budget with some fields at other values, such as "context=24,candidate=20"."""
        parts = (each.partition("=") for each in fields.split(",") if each)
        values = {name.strip(): tokens.strip() for name, _, tokens in parts}
        for name, tokens in values.items():
            if name not in self.__dataclass_fields__ or not tokens.isdecimal():
                raise ValueError(f"{name}={tokens} is no field of a budget with its tokens, such as candidate=20")
        changed: dict[str, Any] = {name: int(tokens) for name, tokens in values.items()}
        return replace(self, **changed)

    @property
    def query_half(self) -> int:
        """The most tokens a query can have; the pair's three special tokens are taken off."""
        return self.window // 2 - SPECIAL_TOKENS

    @property
    def candidate_half(self) -> int:
        """The most tokens a candidate can have, whatever the length of its title."""
        return self.window // 2


@dataclass(frozen=True, slots=True)
class CandidateText:
    """What the reranker reads of a paper."""

    title: str
    abstract: str
    mentions: tuple[str, ...] = ()
    """Masked contexts in which others cite it, the most fitting first."""


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch:
    """Pairs of one padded length: `int64 [pairs, length]` each."""

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]


class PairTokenizer:
    """Cuts queries and candidates to their budgets and joins them."""

    def __init__(self, tokenizer: Tokenizer, budget: TokenBudget) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.budget = budget
        self._cls, self._sep, self._pad = (_special(tokenizer, names) for names in (_CLS, _SEP, _PAD))

    @classmethod
    def from_file(cls, path: Path, budget: TokenBudget) -> PairTokenizer:
        """A tokeniser read from a Hugging Face `tokenizer.json`."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"{path} cannot be read: {error}") from None
        return cls(tokenizer, budget)

    def queries(self, texts: Sequence[Query]) -> list[Tokens]:
        """S ⊕ T ⊕ A of each query, without special tokens."""
        budget = self.budget
        contexts = self._around_marker([text.context for text in texts], [budget.context] * len(texts))
        titles = self._heads([text.title for text in texts], budget.query_title)
        abstracts = self._heads([text.abstract for text in texts], budget.query_abstract)
        return [_join(parts) for parts in zip(contexts, titles, abstracts, strict=True)]

    def candidates(self, texts: Sequence[CandidateText]) -> list[Tokens]:
        """T_c ⊕ A_c of each candidate, then `[SEP]` and each mention; without the outer special tokens."""
        budget = self.budget
        titles = self._heads([text.title for text in texts], budget.candidate_half)
        longest = budget.candidate + (budget.mentions if budget.abstract_fills else 0)
        abstracts = self._heads([text.abstract for text in texts], longest)
        shares = [(mention, budget.mentions // len(text.mentions) - 1) for text in texts for mention in text.mentions]
        said = iter(self._around_marker([text for text, _ in shares], [share for _, share in shares]))
        out = []
        for text, title, abstract in zip(texts, titles, abstracts, strict=True):
            mentions: list[Tokens] = []
            for mention in [next(said) for _ in text.mentions]:
                if len(mention):
                    mentions += [np.array([self._sep], np.int32), mention]
            room = longest - sum(map(len, mentions)) if budget.abstract_fills else budget.candidate
            out.append(_join([title, abstract[: max(0, room - len(title))], *mentions])[: budget.candidate_half])
        return out

    def pack(self, pairs: Sequence[tuple[Tokens, Tokens]], length: int | None = None) -> PairBatch:
        """The pairs with their special tokens, padded to `length` or to the longest of them."""
        longest = max(pair_length(query, candidate) for query, candidate in pairs)
        if length is None:
            length = longest
        if longest > length:
            raise ValueError(f"a pair of {longest} tokens does not fit {length}")
        shape = len(pairs), length
        ids = np.full(shape, self._pad, np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, (query, candidate) in enumerate(pairs):
            first, end = len(query) + 2, pair_length(query, candidate)
            ids[row, 0], ids[row, first - 1], ids[row, end - 1] = self._cls, self._sep, self._sep
            ids[row, 1 : first - 1], ids[row, first : end - 1] = query, candidate
            mask[row, :end], types[row, first:end] = 1, 1
        return PairBatch(ids, mask, types)

    def _heads(self, texts: Sequence[str], width: int) -> list[Tokens]:
        if not width:
            return [np.empty(0, np.int32)] * len(texts)
        encodings = self._tokenizer.encode_batch([normalise(text) for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids[:width], np.int32) for encoding in encodings]

    def _around_marker(self, texts: Sequence[str], widths: Sequence[int]) -> list[Tokens]:
        normal = [normalise(text) for text in texts]
        encodings = self._tokenizer.encode_batch(normal, add_special_tokens=False)
        out = []
        for text, encoding, width in zip(normal, encodings, widths, strict=True):
            at = text.find(TARGET)
            inside = [i for i, (start, end) in enumerate(encoding.offsets) if at <= start and end <= at + len(TARGET)]
            first, marker = (inside[0], len(inside)) if at >= 0 and inside else (0, 0)
            start = min(first - (width - marker) // 2, len(encoding.ids) - width)
            start = max(0, start) if marker else 0
            out.append(np.array(encoding.ids[start : start + max(0, width)], np.int32))
        return out


def pair_length(query: Tokens, candidate: Tokens) -> int:
    """Tokens of a pair, special ones included."""
    return len(query) + len(candidate) + SPECIAL_TOKENS


def _join(parts: Sequence[Tokens]) -> Tokens:
    return np.concatenate(parts).astype(np.int32, copy=False)


def _special(tokenizer: Tokenizer, names: Sequence[str]) -> int:
    for name in names:
        number = tokenizer.token_to_id(name)
        if number is not None:
            return int(number)
    raise ValueError(f"the tokeniser has none of the special tokens {', '.join(names)}")
