"""The life cycle of views: register, fill, serve, drop."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import NamedModel, is_model
from citewell.profiler.ledger.rules import Kind
from citewell.profiler.ledger.sums import Model, read_models
from citewell.profiler.ledger.text_terms import open_lexicon
from citewell.profiler.ledger.views import PointForm, View, is_complete, named_view, read_meta, read_views
from citewell.profiler.profiles import ProfileWeights
from citewell.runtime.errors import FailedPrecondition

# Every event is projected into every view, so each view adds the full cost of one.
MAX_VIEWS = 4
DEFAULT_FORM = PointForm()

NewName = Callable[[], str]


def random_name() -> str:
    return uuid.uuid4().hex[:8]


BULK_LOAD = "bulk load"
"""Name in the `meta` table of the build that is being loaded; there from the first row of a bulk load to the last."""


def require_loaded(database: Database) -> None:
    """Raises FailedPrecondition while a bulk load is unfinished: events would change rows that it has yet to write."""
    with database.reading() as connection:
        build = read_meta(connection, BULK_LOAD)
    if build:
        raise FailedPrecondition(
            f"the ledger holds a part of a bulk build ({build}): repeat `citewell load --bulk` until it is finished"
        )


def open_ledger(
    database: Database,
    encoder: NamedModel,
    weights: ProfileWeights,
    *,
    form: PointForm = DEFAULT_FORM,
    max_views: int = MAX_VIEWS,
    migrate: bool = True,
    loading: bool = False,
    new_name: NewName = random_name,
) -> View:
    """Migrates the tables and returns the serving view. Registers the first view in a new ledger.

    `loading`: the caller is the bulk load; others are refused until that is finished.

    Raises FailedPrecondition if `migrate` is false and the tables are not the current ones, or if the serving view was
    made by another encoder. If its weights or its form of points differ from the given ones, a rebuild starts; the new
    view is served when it is complete. Only a process that projects may call this.
    """
    if migrate:
        database.migrate()
    else:
        database.require_migrated()
    if not loading:
        require_loaded(database)
    open_lexicon(database)
    with database.reading() as connection:
        serving = next((view for view in read_views(connection) if view.serving), None)
    if serving is None:
        with database.writing(alone=True) as connection:
            views = read_views(connection)  # read again: another process may have registered the first view
            serving = views[0] if views else _first_view(database, connection, encoder, weights, form, new_name)
    require_encoder(serving, encoder)
    if (serving.weights, serving.form) != (weights, form):
        start_rebuild(
            database,
            encoder,
            weights,
            f"settings {weights} {form}",
            form=form,
            switch_when_complete=True,
            max_views=max_views,
            new_name=new_name,
        )
    return serving


def find_serving_view(database: Database) -> View | None:
    """The serving view, or None if no process that projects has opened the ledger yet. Does not write."""
    if not database.is_migrated():
        return None
    with database.reading() as connection:
        return next((view for view in read_views(connection) if view.serving), None)


def require_encoder(serving: View, encoder: NamedModel) -> None:
    """Raises FailedPrecondition if the serving view was made by another encoder."""
    if not is_model(encoder, serving.model.hash):
        raise FailedPrecondition(
            f"the ledger's serving view was written by encoder {serving.model.name!r} (hash {serving.model.hash}), "
            f"this profiler is set to {encoder.model_id!r} (hash {encoder.model_hash}, {encoder.runtime}): set "
            "CITEWELL_PROFILER__ENCODER, __ENCODER_MAX_TOKENS and __ENCODER_PRECISION as they were (fp32 and bf16 are "
            "interchangeable, int8 is not), or start a rebuild with the second encoder while the first serves",
            reason="ENCODER_MISMATCH",
            found=encoder.model_hash,
            expected=serving.model.hash,
        )


def _first_view(
    database: Database,
    connection: Connection,
    encoder: NamedModel,
    weights: ProfileWeights,
    form: PointForm,
    new_name: NewName,
) -> View:
    database.upsert(connection, schema.meta, [{"name": "epoch", "value": new_name()}])
    model = Model(encoder.model_hash, encoder.model_id, encoder.dimension, "READY")
    return _register(database, connection, model, weights, form, new_name(), serving=True)


def start_rebuild(
    database: Database,
    encoder: NamedModel,
    weights: ProfileWeights,
    request_id: str = "",
    *,
    form: PointForm = DEFAULT_FORM,
    switch_when_complete: bool = False,
    max_views: int = MAX_VIEWS,
    new_name: NewName = random_name,
) -> View:
    """Registers a further view and marks every object for it. Repeating a request id returns the same view.

    Raises FailedPrecondition (TOO_MANY_VIEWS) if there are `max_views` already.
    """
    with database.writing(alone=True) as connection:
        views = read_views(connection)
        for view in views:
            if request_id and view.request_id == request_id and view.projected:
                if switch_when_complete:
                    change = sa.update(schema.views).where(schema.views.c.name == view.name)
                    connection.execute(change.values(switch_when_complete=True))
                return view
        if len(views) >= max_views:
            names = ", ".join(f"{view.name}{' (serving)' if view.serving else ''}" for view in views)
            raise FailedPrecondition(
                f"there are {len(views)} views already: {names}; drop one with `citewell rebuild drop NAME`, or raise "
                f"CITEWELL_PROFILER__MAX_VIEWS ({max_views})",
                reason="TOO_MANY_VIEWS",
                views=len(views),
                max_views=max_views,
            )
        model = next((model for model in read_models(connection) if is_model(encoder, model.hash)), None)
        if model is None:
            model = Model(encoder.model_hash, encoder.model_id, encoder.dimension, "ENCODING")
            papers = sa.select(sa.literal(model.hash), schema.bodies.c.paper_id)
            connection.execute(sa.insert(schema.encode_marks).from_select(["model", "paper_id"], papers))
        return _register(
            database,
            connection,
            model,
            weights,
            form,
            new_name(),
            request_id=request_id,
            switch_when_complete=switch_when_complete,
        )


def try_switch(database: Database, name: str) -> tuple[View, str] | None:
    """Serves the view if it is complete, and returns it with the name of the view served before; else returns None.

    A view is complete when every text is encoded, every sum is built, and everything that existed when the view was
    registered is projected. Marks of later events may still wait, as in any view.
    """
    with database.writing(alone=True) as connection:
        view = named_view(connection, name)
        if not view.projected:
            raise FailedPrecondition(f"view {name!r} belongs to an older epoch: start a rebuild", reason="OLD_EPOCH")
        if not (view.can_be_filled and is_complete(connection, view)):
            return None
        views = schema.views
        previous = connection.scalar(sa.select(views.c.name).where(views.c.serving)) or ""
        connection.execute(sa.update(views).values(serving=views.c.name == name))
        connection.execute(sa.update(views).where(views.c.name == name).values(switch_when_complete=False))
        return named_view(connection, name), previous


def retire_view(database: Database, name: str) -> None:
    """Stops projecting into the view, so that the index can drop it."""
    with database.writing(alone=True) as connection:
        if named_view(connection, name).serving:
            raise FailedPrecondition(f"view {name!r} is served; switch to another one first", reason="VIEW_SERVING")
        others = [view for view in read_views(connection) if view.projected and view.name != name]
        if not any(view.serving or view.switch_when_complete for view in others):
            # After a restore, the served view belongs to the old epoch, and this view must replace it.
            raise FailedPrecondition(
                f"view {name!r} is the only one to take over from the served one, which is of an older epoch: "
                "switch to another one first",
                reason="LAST_VIEW",
            )
        connection.execute(sa.update(schema.views).where(schema.views.c.name == name).values(projected=False))


def forget_view(database: Database, name: str) -> None:
    """Deletes a retired view, and the sums of its model if no other view uses the model.

    Text vectors are kept, so that a later view of the same model needs no encoding.
    """
    with database.writing(alone=True) as connection:
        model = next((view.model.hash for view in read_views(connection) if view.name == name), None)
        if model is None:  # another process has deleted the view
            return
        connection.execute(sa.delete(schema.marks).where(schema.marks.c.view == name))
        connection.execute(sa.delete(schema.views).where(schema.views.c.name == name))
        connection.execute(sa.delete(schema.meta).where(schema.meta.c.name == created_key(name)))
        if all(view.model.hash != model for view in read_views(connection)):
            for table, column in (
                (schema.year_sums, schema.year_sums.c.model),
                (schema.encode_marks, schema.encode_marks.c.model),
                (schema.models, schema.models.c.hash),
            ):
                connection.execute(sa.delete(table).where(column == model))


def adopt_restored(database: Database, request_id: str = "", *, new_name: NewName = random_name) -> str:
    """Begins a new epoch after the ledger was restored from a backup, and returns its name.

    The index may hold newer versions than the restored ledger and would reject its writes, so nothing is written to the
    old views. The served view stays unchanged until a new view, filled from the restored ledger, is complete.
    """
    with database.writing(alone=True) as connection:
        views = read_views(connection)
        if request_id and any(view.request_id == request_id for view in views):
            return read_meta(connection, "epoch")
        serving = next(view for view in views if view.serving)
        epoch = new_name()
        database.upsert(connection, schema.meta, [{"name": "epoch", "value": epoch}])
        connection.execute(sa.update(schema.views).values(projected=False, switch_when_complete=False))
        connection.execute(sa.delete(schema.marks))
        _register(
            database,
            connection,
            serving.model,
            serving.weights,
            serving.form,
            new_name(),
            request_id=request_id,
            switch_when_complete=True,
        )
        return epoch


def created_key(view: str) -> str:
    """The key in the `meta` table that records that the view was created in the index."""
    return f"created {view}"


def left_to_do(connection: Connection, view: View) -> tuple[int, int]:
    """The number of objects still to be projected into the view, and of papers still to be encoded for it."""
    marks, encode_marks = schema.marks, schema.encode_marks
    objects = sa.select(marks.c.kind, marks.c.object).where(marks.c.view == view.name).distinct().subquery()
    papers = sa.select(sa.func.count()).select_from(encode_marks).where(encode_marks.c.model == view.model.hash)
    return (
        connection.scalar(sa.select(sa.func.count()).select_from(objects)) or 0,
        connection.scalar(papers) or 0,
    )


def _register(
    database: Database,
    connection: Connection,
    model: Model,
    weights: ProfileWeights,
    form: PointForm,
    name: str,
    *,
    serving: bool = False,
    switch_when_complete: bool = False,
    request_id: str = "",
) -> View:
    row = {"hash": model.hash, "name": model.name, "dimension": model.dimension, "state": model.state, "summed_to": ""}
    database.insert_missing(connection, schema.models, [row])
    database.upsert(
        connection,
        schema.views,
        [
            {
                "name": name,
                "model": model.hash,
                "alpha": weights.alpha,
                "beta": weights.beta,
                "epoch": read_meta(connection, "epoch"),
                "serving": serving,
                "projected": True,
                "switch_when_complete": switch_when_complete,
                "request_id": request_id,
                "created": 1 + (connection.scalar(sa.select(sa.func.max(schema.views.c.created))) or 0),
                "lexicon": form.words.lexicon if form.words else "",
                "title_weight": form.words.fields.title if form.words else 0.0,
                "abstract_weight": form.words.fields.abstract if form.words else 0.0,
                "context_weight": form.words.fields.contexts if form.words else 0.0,
                "max_terms": form.words.max_terms if form.words else 0,
                "extractor": form.extractor,
            }
        ],
    )
    mark_everything(database, connection, name)
    return named_view(connection, name)


def mark_everything(database: Database, connection: Connection, view: str) -> None:
    """Marks every object of the view for a rebuild or a refill.

    These marks have version 0, so they are kept beside the marks of events on the same object. The view is incomplete
    until they are gone.
    """
    papers, edges, marks = schema.papers, schema.edges, schema.marks
    speaks = sa.exists().where(edges.c.citing == papers.c.id)
    for kind, condition in ((Kind.PAPER, sa.true()), (Kind.SPANS, speaks)):
        objects = sa.select(
            sa.literal(view), sa.literal(kind.value), papers.c.id, sa.literal(0), sa.literal(""), sa.true()
        ).where(papers.c.body_revision > 0, condition)
        insert = database.insert(marks).from_select(["view", "kind", "object", "version", "event", "bulk"], objects)
        connection.execute(insert.on_conflict_do_nothing())
