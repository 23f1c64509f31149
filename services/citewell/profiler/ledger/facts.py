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
        # A normalised text has no line break, so this is never a context's key.
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
    """Who is cited, in which contexts, from when; still under the ids that the publisher used."""

    published: PartialDate
    text: TextKey
    contexts: dict[str, tuple[TextKey, ...]]
    aliases: frozenset[str]


def facts_of(publication: Publication) -> Facts:
    """The facts of a publication."""
    return Facts(
        published=publication.published,
        text=paper_text(publication).key,
        contexts={
            source: tuple(sorted(_key(text) for text in texts)) for source, texts in publication.contexts().items()
        },
        aliases=frozenset(alias(external) for external in publication.external_ids),
    )


def texts_of(publication: Publication) -> dict[TextKey, Text]:
    """Every text of the publication that has a vector."""
    texts: dict[TextKey, Text] = {}
    own = paper_text(publication)
    texts[own.key] = own
    for contexts in publication.contexts().values():
        for text in contexts:
            context = ContextText(text)
            texts[context.key] = context
    return texts


def paper_text(publication: Publication) -> PaperText:
    return PaperText(publication.title, publication.abstract)


def alias(external: ExternalId) -> str:
    """How a reference names a paper by another id: doi:10.1/x, arxiv:2401.00001."""
    return f"{external.scheme}:{external.value}"


def _key(text: str) -> TextKey:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
