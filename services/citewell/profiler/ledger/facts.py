"""The facts of one publication that profiles depend on: its texts, its citations with their contexts, and its date."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from citewell.scholarly.contexts import normalise
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.publications import Publication

TextKey = bytes
"""SHA-256 of a text, the same for every encoder."""


@dataclass(frozen=True, slots=True)
class PaperText:
    """T ⊕ A: title and abstract. Each encoder joins the two in its own way."""

    title: str
    abstract: str

    @property
    def key(self) -> TextKey:
        # Normalised texts have no line break, so this key never equals the key of a context.
        return _key(f"{normalise(self.title)}\n{normalise(self.abstract)}")


@dataclass(frozen=True, slots=True)
class ContextText:
    """S: a citation context with masked markers."""

    text: str

    @property
    def key(self) -> TextKey:
        return _key(self.text)


Text = PaperText | ContextText


@dataclass(frozen=True, slots=True)
class Facts:
    """The cited papers with their contexts, and the date. Cited ids are as the publisher wrote them."""

    published: PartialDate
    text: TextKey
    contexts: dict[str, tuple[TextKey, ...]]
    aliases: frozenset[str]


def read_facts(publication: Publication) -> tuple[Facts, dict[TextKey, Text]]:
    """The facts of a publication, and all its texts that are encoded."""
    own = PaperText(publication.title, publication.abstract)
    texts: dict[TextKey, Text] = {(own_key := own.key): own}
    keys: dict[str, tuple[TextKey, ...]] = {}
    for source, said in publication.contexts().items():
        contexts = {text.key: text for text in map(ContextText, said)}
        keys[source] = tuple(sorted(contexts))
        texts |= contexts
    aliases = frozenset(alias(external) for external in publication.external_ids)
    return Facts(publication.published, own_key, keys, aliases), texts


def alias(external: ExternalId) -> str:
    """An external id as reference lists write it: doi:10.1/x, arxiv:2401.00001."""
    return f"{external.scheme}:{external.value}"


def _key(text: str) -> TextKey:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
