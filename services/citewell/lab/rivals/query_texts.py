"""Citation contexts as encoders read them: the words nearest to the place of the missing citation."""

from __future__ import annotations

from citewell.scholarly.contexts import TARGET


def nearest_words(context: str, count: int) -> str:
    """At most `count` words around the marker."""
    said = context.split()
    place = next((at for at, word in enumerate(said) if TARGET in word), 0)
    start = max(0, min(place - count // 2, len(said) - count))
    return " ".join(said[start : start + count])
