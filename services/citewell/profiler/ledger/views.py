"""Views: projections of the ledger into the index, each with its model and weights. One of them is served."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The content of a view's points apart from vectors."""

    words: BagRules | None = CHOSEN_BAG
    """None: the points hold no words, as in a view of schema 0001."""
    extractor: str = EXTRACTOR
    """The name of the rules that cut spans from contexts."""


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
    """Whether all words in the ledger are counted."""

    @property
    def words(self) -> BagRules | None:
        """The rules of the view's bags of words. None if it has no bags, or if this citewell lacks the rules."""
        return self.form.words if self.form.words and self.form.words.lexicon == LEXICON else None

    @property
    def can_be_filled(self) -> bool:
        """Whether its model's sums and its words are complete, and it is still projected."""
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
    """Whether the view holds everything except recent events whose marks still wait.

    A view is incomplete while it has marks of a rebuild, a repair or a refill; these marks name no event. It is also
    incomplete if it belongs to an older epoch, because nothing is projected into it any more.
    """
    marks = schema.marks
    refill = sa.select(sa.literal(1)).where(marks.c.view == view.name, marks.c.event == "").limit(1)
    return view.projected and connection.execute(refill).first() is None


def serving_view(connection: Connection) -> View:
    return next(view for view in read_views(connection) if view.serving)


def named_view(connection: Connection, name: str) -> View:
    return view_called(read_views(connection), name)


def view_called(views: Sequence[View], name: str) -> View:
    """The view of this name; NotFound, with the names that there are, if there is none."""
    for view in views:
        if view.name == name:
            return view
    raise NotFound(f"there is no view {name!r}; there are {', '.join(view.name for view in views)}", view=name)


def read_meta(connection: Connection, name: str) -> str:
    """A value in the `meta` table. Empty if it was never set."""
    return connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == name)) or ""
