"""Views: what the index holds of the ledger, which model and weights made it, and which one is served."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.sums import Model
from citewell.profiler.lexical import CHOSEN_BAG, BagRules, FieldWeights
from citewell.profiler.profiles import ProfileWeights
from citewell.runtime.errors import NotFound
from citewell.scholarly.spans import EXTRACTOR
from citewell.scholarly.words import LEXICON


@dataclass(frozen=True, slots=True)
class PointForm:
    """What a view's points hold beside vectors."""

    words: BagRules | None = CHOSEN_BAG
    """None: no words. A view of schema 0001 has none."""
    extractor: str = EXTRACTOR
    """What cuts spans from contexts."""


@dataclass(frozen=True, slots=True)
class View:
    """One projection of the ledger into the index."""

    name: str
    model: Model
    weights: ProfileWeights
    epoch: str
    serving: bool
    projected: bool
    switch_when_complete: bool
    request_id: str = ""
    form: PointForm = PointForm()
    words_counted: bool = True
    """Whether the ledger's words are all counted."""

    @property
    def words(self) -> BagRules | None:
        """How bags of words are made for it; None where it holds none, or by rules that this citewell does not know."""
        return self.form.words if self.form.words and self.form.words.lexicon == LEXICON else None

    @property
    def can_be_filled(self) -> bool:
        """Its model's sums and its words are complete, and it belongs to the ledger's epoch."""
        counted = self.words_counted or self.words is None
        return self.projected and self.model.state == "READY" and counted


def read_views(connection: Connection) -> list[View]:
    """Every view, oldest first."""
    views, models = schema.views, schema.models
    query = (
        sa.select(views, models.c.name.label("encoder"), models.c.dimension, models.c.state, models.c.summed_to)
        .join_from(views, models, views.c.model == models.c.hash)
        .order_by(views.c.created, views.c.name)
    )
    ready = connection.scalar(sa.select(schema.lexicons.c.state)) == "READY"
    return [
        View(
            row.name,
            Model(row.model, row.encoder, row.dimension, row.state, row.summed_to),
            ProfileWeights(row.alpha, row.beta),
            row.epoch,
            row.serving,
            row.projected,
            row.switch_when_complete,
            row.request_id,
            PointForm(_words(row), row.extractor),
            ready,
        )
        for row in connection.execute(query)
    ]


def _words(row: sa.Row[tuple[object, ...]]) -> BagRules | None:
    if not row.lexicon:
        return None
    fields = FieldWeights(row.title_weight, row.abstract_weight, row.context_weight)
    return BagRules(fields, row.max_terms, row.lexicon)


def is_complete(connection: Connection, view: View) -> bool:
    """Whether the view holds everything, apart from recent events whose marks still wait.

    It does not while a rebuild, a repair or a refill has marks left in it (those name no event), nor when nothing is
    projected into it any more because it belongs to an older epoch.
    """
    marks = schema.marks
    refill = sa.select(sa.literal(1)).where(marks.c.view == view.name, marks.c.event == "").limit(1)
    return view.projected and connection.execute(refill).first() is None


def serving_view(connection: Connection) -> View:
    return next(view for view in read_views(connection) if view.serving)


def named_view(connection: Connection, name: str) -> View:
    for view in read_views(connection):
        if view.name == name:
            return view
    raise NotFound(f"there is no view {name!r}", view=name)


def read_meta(connection: Connection, name: str) -> str:
    """A value of the ledger itself; empty when it was never set."""
    return connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == name)) or ""
