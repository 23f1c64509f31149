"""Which words a query shares with a paper, as the query writes them, and where a citing context has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from citewell.recommender.answers import MatchedWord
from citewell.recommender.evidence_ranking import query_text
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.queries import Query, Strategy
from citewell.scholarly.spans import Span
from citewell.scholarly.words import Word, located_words, term_id


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The words of a query by their terms."""

    written: Mapping[int, str]
    """term → the word as the query first writes it: in the context, else in the title, else in the abstract."""
    sought: frozenset[int]
    """Those that are shown in evidence: of the span with EVIDENCE, else of context and title, and of the abstract where
    there is no context. A whole abstract's words would be in any text."""

    @classmethod
    def of(cls, query: Query, strategy: Strategy) -> QueryWords:
        """The words of all texts of the query."""
        written: dict[int, str] = {}
        for text in (query.context, query.title, query.abstract):
            for word in _terms_of(text):
                written.setdefault(term_id(word.normal), text[word.offset : word.offset + word.length])
        if strategy is Strategy.EVIDENCE:
            texts = [query_text(query)]
        else:
            texts = [query.title, query.context.strip() or query.abstract]
        return cls(written, frozenset(term_id(word.normal) for text in texts for word in _terms_of(text)))

    def matched(self, terms: Terms, lexical: LexicalQuery | None, score: float) -> tuple[MatchedWord, ...]:
        """The words behind a paper's matched terms with their shares of its score, the heaviest first."""
        if lexical is None or score <= 0:
            return ()
        shares = zip(terms.ids.tolist(), terms.values.tolist(), strict=True)
        words = [
            MatchedWord(self.written[term], lexical.weight * value / score)
            for term, value in shares
            if term in self.written
        ]
        return tuple(sorted(words, key=lambda word: (-word.share, word.word)))

    def places(self, text: str) -> tuple[Span, ...]:
        """Where the text has words that are sought."""
        return tuple(Span(word.offset, word.length) for word in _terms_of(text) if term_id(word.normal) in self.sought)


def _terms_of(text: str) -> list[Word]:
    """The words that count as terms: all but the marker of the missing citation."""
    return [word for word in located_words(text) if not word.is_target]
