"""What one publication states, as far as profiles depend on it."""

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
    """T ⊕ A; each encoder joins the two in its own way."""

    title: str
    abstract: str

    @property
    def key(self) -> TextKey:
        # A normalised text has no line break, so this key can never equal a context's key.
        return _key(f"{normalise(self.title)}\n{normalise(self.abstract)}")


@dataclass(frozen=True, slots=True)
class ContextText:
    """S: a masked context."""

    text: str

    @property
    def key(self) -> TextKey:
        return _key(self.text)


Text = PaperText | ContextText


@dataclass(frozen=True, slots=True)
class Facts:
    """Which papers are cited in which contexts, and the date. Ids are those that the publisher used."""

    published: PartialDate
    text: TextKey
    contexts: dict[str, tuple[TextKey, ...]]
    aliases: frozenset[str]


def read_facts(publication: Publication) -> tuple[Facts, dict[TextKey, Text]]:
    """The facts of a publication, and every text of it that has a vector."""
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
    """How a reference names a paper by another id: doi:10.1/x, arxiv:2401.00001."""
    return f"{external.scheme}:{external.value}"


def _key(text: str) -> TextKey:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
