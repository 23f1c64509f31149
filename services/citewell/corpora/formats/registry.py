"""All formats by their names."""

from __future__ import annotations

from citewell.corpora.formats import jats, openalex, s2ag, s2orc, tei, unarxive

FORMATS = {each.FORMAT.name: each.FORMAT for each in (s2ag, s2orc, unarxive, openalex, tei, jats)}
