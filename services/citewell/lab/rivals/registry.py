"""All rivals by name, registered here only: commands, tables and pictures read these."""

from __future__ import annotations

from typing import Any

from citewell.lab.rivals.citeomatic.rank import CITEOMATIC, CITEOMATIC_METADATA
from citewell.lab.rivals.citeomatic.select import NNSELECT
from citewell.lab.rivals.dense import DENSE
from citewell.lab.rivals.general_rerankers import GENERAL
from citewell.lab.rivals.hatten import HATTEN
from citewell.lab.rivals.rival import ListReranker, Rival
from citewell.lab.rivals.scibert_reranker import SCIBERT_RERANKER
from citewell.lab.rivals.scincl import SCINCL
from citewell.lab.systems import GlobalSystem, System

_RETRIEVERS: tuple[Rival[Any, System], ...] = (HATTEN, DENSE, SCINCL)
_RERANKERS: tuple[Rival[Any, ListReranker], ...] = (SCIBERT_RERANKER, GENERAL)
_GLOBALS: tuple[Rival[Any, GlobalSystem], ...] = (NNSELECT, CITEOMATIC, CITEOMATIC_METADATA)

RETRIEVERS = {rival.name: rival for rival in _RETRIEVERS}
RERANKERS = {rival.name: rival for rival in _RERANKERS}
GLOBALS = {rival.name: rival for rival in _GLOBALS}
RIVALS: dict[str, Rival[Any, Any]] = {**RETRIEVERS, **RERANKERS, **GLOBALS}
