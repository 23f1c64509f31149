"""A LaTeX draft of about 20 pages with 60 places where a citation is missing, out of the invented corpus."""

from __future__ import annotations

from collections.abc import Sequence

from citewell.demo.corpus import generate
from tests.demo_world import Asked

PLACES = 60
_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in "&%$#_{}"})


def long_draft(queries: Sequence[Asked], places: int = PLACES) -> str:
    """The draft; its places are contexts that were held out."""
    filler = [publication.abstract for publication in generate(4 * places, 11)]
    parts = []
    for number in range(places):
        context = queries[number % len(queries)].query.context.replace("OTHERCIT", "others").translate(_ESCAPED)
        parts.append(f"\\section{{Part {number}}}" if number % 6 == 0 else "")
        parts.append(context.replace("TARGETCIT", "\\cite{?}"))
        parts += [each.translate(_ESCAPED) for each in filler[4 * number : 4 * number + 4]]
    body = "\n\n".join(parts)
    return (
        "\\documentclass{article}\n\\title{A long draft about many things}\n\\author{Nobody}\n\\begin{document}\n"
        f"\\maketitle\n{body}\n\n\\bibliographystyle{{plain}}\n\\bibliography{{refs}}\n\\end{{document}}\n"
    )
