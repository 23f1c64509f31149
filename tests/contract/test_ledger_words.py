"""Contract tests: word counts, statistics, lexical scores and upgrades of the ledger, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citewell.lab.dataset import read_dataset
from citewell.lab.knowledge import citations
from citewell.lab.lexical import LexicalProfile, Lexicon
from citewell.profiler.doctor import check_profiles
from citewell.profiler.ledger import filling, said_terms, schema, statistics
from citewell.profiler.ledger.lifecycle import open_ledger
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.statistics import Settling, Statistics, read_statistics, refresh_step
from citewell.profiler.ledger.views import PointForm, read_views, serving_view
from citewell.profiler.lexical import CHOSEN_BAG, CHOSEN_BM25, CHOSEN_FIELDS, CHOSEN_TERMS, BagRules, FieldWeights
from citewell.profiler.query_words import WordWeights, weigh_words
from citewell.profiler.reads import ProfileScore, score_profiles
from citewell.profiler.term_weights import PACKAGED, find_term_weights
from citewell.runtime.errors import FailedPrecondition
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms, lexical_score
from citewell.scholarly.publications import Publication, Retraction
from citewell.scholarly.queries import Query
from citewell.scholarly.words import count_terms, term_id
from tests.lab_sets import invented, write_lines
from tests.ledger_suite import WEIGHTS, World, paper

OLD_FORM = PointForm(None, "whole-context/1")


def statistics_of(world: World) -> Statistics:
    with world.database.reading() as connection:
        return read_statistics(connection, CHOSEN_BAG)


def fill(world: World) -> None:
    while filling.fill_step(world.database, world.ledger.encoders):
        pass


def scores(world: World, ids: list[str], words: LexicalQuery, as_of: PartialDate) -> dict[str, ProfileScore]:
    found, _ = score_profiles(world.database, ids, world.encoder.vector("a question"), as_of, words)
    return {one.paper_id: one for one in found}


def test_a_famous_paper_has_few_runs_and_its_counts_are_exact(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said_terms, "SMALL", 4)
    world.publish(paper("a"))
    for number in range(60):
        says = f" number{number} alike{number % 7}"
        world.publish(paper(f"p{number:02}", "a", says=says, published=str(2018 + number % 2)))
    for number in range(0, 60, 3):
        world.publish(Retraction(f"p{number:02}", 2))
    world.check()
    with world.database.reading() as connection:
        sizes = list(
            connection.scalars(
                sa.select(schema.said_terms.c.size)
                .where(schema.said_terms.c.cited == "a", schema.said_terms.c.year == EVERY_YEAR)
                .order_by(schema.said_terms.c.run)
            )
        )
    assert 2 <= len(sizes) <= 7
    assert all(later < earlier for earlier, later in pairwise(sizes))
    for number in range(60):
        world.publish(Retraction(f"p{number:02}", 3))
    world.check()
    assert world.model.said() == {}


def test_statistics_are_those_of_every_shown_paper(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PAPERS_SCANNED", 2)
    world.publish(
        paper("a", published="2018"),
        paper("b", "a", "stub", published="2019", abstract="parsing of forests"),
        paper("c", "a", "b", published="2019-05"),
        paper("d", "a", published=""),
        paper("gone", "a", published="2017"),
        Retraction("gone", 2),
    )
    assert statistics_of(world).papers == 0
    assert refresh_step(world.database)
    found = statistics_of(world)
    fields = (CHOSEN_FIELDS.title, CHOSEN_FIELDS.abstract, CHOSEN_FIELDS.contexts)
    bags = {key: world.model.bag(key, *fields) for key in "abcd"}
    assert (found.papers, found.citations) == (4, 5)
    assert found.mean_length == sum(sum(bag.values()) for bag in bags.values()) / 4
    frequency = Counter(term for bag in bags.values() for term in bag)
    assert dict(zip(found.frequencies.terms.ids.tolist(), found.frequencies.terms.counts.tolist(), strict=True)) == (
        frequency
    )
    published = world.model.published()
    before = found.as_of(PartialDate(2019, 6))
    own = count_terms(published["a"].title)
    assert (before.papers, before.mean_length) == (1, 3.0 * own.total())
    assert before.frequencies.terms.ids.tolist() == sorted(own)
    assert found.as_of(PartialDate(2020)).papers == 3
    assert not refresh_step(world.database)  # nothing changed
    assert statistics_of(world) == found


def test_statistics_are_made_anew_when_they_have_drifted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "TINY", 5)
    world.publish(*(paper(f"p{number}") for number in range(5)))
    assert refresh_step(world.database)
    first = statistics_of(world)
    world.publish(Retraction("p0", 2), paper("p0", revision=3))  # the totals are as before
    assert not refresh_step(world.database)
    world.publish(*(paper(f"q{number}") for number in range(15)))
    assert refresh_step(world.database)
    second = statistics_of(world)
    assert second.version != first.version
    world.publish(paper("r0"), paper("r1"))
    assert not refresh_step(world.database)  # exactly 10 % is not yet drift
    world.publish(paper("r2"))
    assert refresh_step(world.database)


def test_statistics_are_brought_up_to_what_is_there_once_nothing_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "TINY", 5)
    now = 0.0
    settling = Settling(10.0, lambda: now)
    world.publish(*(paper(f"p{number}") for number in range(50)))
    assert refresh_step(world.database, settling)
    world.publish(paper("q"))
    assert not refresh_step(world.database, settling)  # 2 % are no drift
    now = 9.0
    world.publish(paper("r"))
    assert not refresh_step(world.database, settling)
    now = 18.0
    assert not refresh_step(world.database, settling)  # something came nine seconds ago
    now = 19.0
    assert refresh_step(world.database, settling)
    assert statistics_of(world).papers == 52
    assert not refresh_step(world.database, settling)


def test_statistics_go_with_the_weights_of_fields(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    refresh_step(world.database)
    rules = BagRules(FieldWeights(1.0, 1.0, 0.0))
    open_ledger(world.database, world.encoder, WEIGHTS, form=PointForm(rules))
    assert refresh_step(world.database)
    with world.database.reading() as connection:
        found = read_statistics(connection, rules)
    assert found.mean_length == sum(count_terms(f"On {name}").total() for name in "ab") / 2
    assert found.version != statistics_of(world).version
    world.project()
    asyncio.run(world.projector.step())
    world.check()  # checks the new view, which is served now


def test_scores_by_words_are_those_of_the_model(world: World) -> None:
    world.publish(
        paper("a", abstract="parsers for forests"),
        paper("old", "a", published="2018", says=" parsers"),
        paper("spring", "a", published="2020-03-10", says=" trees parsers"),
        paper("autumn", "a", published="2020-10", says=" trees"),
        paper("undated", "a", published="", says=" trees"),
    )
    refresh_step(world.database)
    words = weigh_words(Query("parsers of trees TARGETCIT build"), WordWeights(), statistics_of(world))
    for as_of, citing in (
        ("", ("old", "spring", "autumn", "undated")),
        ("2020-04", ("old", "spring")),
        ("2020-03-10", ("old",)),
        ("2018", ()),
    ):
        bag: Counter[int] = Counter()
        published = world.model.published()
        for weight, text in (
            (3.0, published["a"].title),
            (1.0, published["a"].abstract),
            *((0.5, published[name].masked_contexts[0].text) for name in citing),
        ):
            for term, count in count_terms(text).items():
                bag[term] += weight * count  # type: ignore[assignment]
        expected = lexical_score(words, Terms.of(bag), sum(bag.values()))
        score = scores(world, ["a"], words, PartialDate.parse(as_of))["a"]
        assert score.lexical == pytest.approx(expected, abs=1e-9)
        assert score.hybrid == pytest.approx(score.score + 3.0 * expected)
        assert score.lexical == pytest.approx(float(score.matched.values.sum()))
        assert term_id("parser") in score.matched.ids
    assert scores(world, ["a"], words, UNKNOWN_DATE)["a"].lexical > 0


def test_the_lab_and_the_service_score_alike(world: World, tmp_path: Path) -> None:
    papers, contexts, splits = invented()
    contexts += [dict(context, id=f"again-{context['id']}") for context in contexts[:9]]  # repeated in one paper
    data = read_dataset(write_lines(tmp_path, papers, contexts, splits))
    known = data.contexts.of_split("train")
    train = set(splits["train"])
    world.publish(
        *(
            Publication(
                record["id"],
                1,
                record["title"],
                record["abstract"],
                published=PartialDate(record["year"]),
                masked_contexts=tuple(
                    MaskedContext(context["text"], context["cited_id"])
                    for context in contexts
                    if context["citing_id"] == record["id"] and record["id"] in train
                ),
            )
            for record in papers
        )
    )
    refresh_step(world.database)
    lexicon = Lexicon(data)
    learned = find_term_weights(PACKAGED)
    rules = CHOSEN_BM25, CHOSEN_FIELDS, CHOSEN_TERMS
    lab = LexicalProfile("lab", data, lexicon, citations(data, known), *rules, learned=learned)
    queries = data.contexts.of_split("test")[:12]
    wanted = lab.scores(queries)
    assert wanted.max() > 0.1
    ids = list(data.papers.ids)
    for row, query in enumerate(queries.tolist()):
        citing = int(data.contexts.citing[query])
        asked = Query(data.contexts.texts[query], data.papers.titles[citing], data.papers.abstracts[citing])
        words = weigh_words(asked, WordWeights(learned=learned), statistics_of(world))
        served = scores(world, ids, words, UNKNOWN_DATE)
        np.testing.assert_allclose([served[each].lexical for each in ids], wanted[row], atol=1e-6)


def test_the_doctor_finds_and_repairs_words(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a", abstract="forests"))
    world.check()
    table = schema.said_terms
    with world.database.writing() as connection:
        connection.execute(sa.delete(table).where(table.c.year == EVERY_YEAR))
        text = connection.scalar(sa.select(schema.papers.c.text_key).where(schema.papers.c.id == "c"))
        connection.execute(
            sa.update(schema.text_terms).where(schema.text_terms.c.text_key == text).values(body=b"\x09\0")
        )
        view = serving_view(connection).name
    points = world.index.papers[view]
    points["b"] = replace(points["b"], terms=Terms.of({1: 2.0}))
    spans = world.index.spans[view]
    key = next(key for key, span in spans.items() if span.citing_id == "c")
    spans[key] = replace(spans[key], span_terms=Terms.of({}))
    report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
    kinds = {(fault.paper_id, fault.kind) for fault in report.faults}
    assert kinds == {("a", "WORDS_MISMATCH"), ("c", "WORDS_MISMATCH"), ("b", "WORDS_DIFFER"), ("c", "WORDS_DIFFER")}
    world.check()
    assert asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False)).faults == []


def as_of_0001(world: World) -> None:
    """Turns the ledger and the index into those of a citewell with schema 0001."""
    world.database.migrate("0001")
    for name, view in world.index.views.items():
        world.index.views[name] = replace(view, form=OLD_FORM)
        for key, point in world.index.papers[name].items():
            world.index.papers[name][key] = replace(point, terms=Terms.of({}), length=0.0)


def test_an_older_ledger_is_counted_while_events_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "PAPERS_COUNTED", 2)
    for number in range(5):
        world.publish(paper(f"p{number}", *(f"p{n}" for n in range(number)), "stub"))
    world.project()
    as_of_0001(world)
    world.database.close()
    world.database, world.ledger = world.another_process()
    old = open_ledger(world.database, world.encoder, WEIGHTS)
    assert (old.form, old.words, old.serving) == (OLD_FORM, None, True)
    open_ledger(world.database, world.encoder, WEIGHTS)  # a restart meanwhile registers no third view
    with world.database.reading() as connection:
        assert [view.form for view in read_views(connection)] == [OLD_FORM, PointForm()]
    world.restart_projector()
    world.publish(paper("early", "p0", "p1"))
    world.project()  # the old view is still projected, without words
    point = world.index.papers[old.name]["early"]
    assert (len(point.terms), point.length) == (0, 0.0)
    steps = 0
    while filling.fill_step(world.database, world.ledger.encoders):
        steps += 1
        world.publish(paper(f"new{steps}", "p0", "zz", f"new{steps - 1}"))
        world.publish(paper("p4", "p0", "p1", revision=steps + 1, says=f" in year {steps}"))
        if steps == 2:
            world.publish(Retraction("p3", 9))
        assert steps < 50
    assert steps > 6
    world.project()
    asyncio.run(world.projector.step())  # this step switches to the new view
    world.check()
    with world.database.reading() as connection:
        assert serving_view(connection).form == PointForm()
    assert asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False)).faults == []


def test_other_rules_for_words_count_anew(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    with world.database.writing() as connection:
        connection.execute(sa.update(schema.lexicons).values(name="words/0"))
        connection.execute(sa.update(schema.views).values(lexicon="words/0"))
        connection.execute(sa.delete(schema.text_terms))
    with pytest.raises(FailedPrecondition, match=r"'words/0'.*'words/1'"):
        world.publish(paper("c"))
    open_ledger(world.database, world.encoder, WEIGHTS)
    world.publish(paper("c", "b"))
    fill(world)
    world.restart_projector()
    for name, view in world.index.views.items():
        form = PointForm(replace(CHOSEN_BAG, lexicon="words/0"))
        world.index.views[name] = replace(view, form=form)
    world.project()
    asyncio.run(world.projector.step())
    world.check()


DATES = st.sampled_from(
    ["2017", "2018-11", "2019", "2019-12-31", "2020", "2020-03", "2020-03-04", "2020-06", "2021", ""]
)
NAMES = st.sampled_from([f"p{number}" for number in range(7)])
SAYS = st.sampled_from(["parsers TARGETCIT", "trees of TARGETCIT parsers", "TARGETCIT forests", "deep trees TARGETCIT"])
PAPERS = st.lists(
    st.builds(
        lambda name, date, abstract, cites, revision: Publication(
            name,
            revision,
            f"Title of {name}",
            abstract,
            published=PartialDate.parse(date),
            masked_contexts=tuple(MaskedContext(text, cited) for cited, text in cites),
        ),
        NAMES,
        DATES,
        st.sampled_from(["", "parsers of trees", "deep forests"]),
        st.lists(st.tuples(NAMES, SAYS), max_size=4),
        st.just(1),
    ),
    max_size=7,
    unique_by=lambda publication: publication.paper_id,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(PAPERS, st.sampled_from(["2019", "2020-03-04", "2020-06", "2021"]))
def test_nothing_dated_t_or_later_moves_a_score(
    tmp_path_factory: pytest.TempPathFactory, publications: list[Publication], date: str
) -> None:
    """KNOWLEDGE: scores as of t of papers published before t do not depend on publications of t or later."""
    as_of = PartialDate.parse(date)
    earlier = [each for each in publications if 0 < each.published.last_day() < as_of.first_day()]
    told: list[dict[str, tuple[float, float]]] = []
    for known in (sorted(earlier, key=lambda each: each.paper_id), publications):
        folder = tmp_path_factory.mktemp("knowledge")
        world = World(f"sqlite:///{folder}/ledger.sqlite")
        for publication in known:
            world.publish(publication)
        refresh_step(world.database)
        asked = Query("deep parsers TARGETCIT of trees", title="forests")
        words = weigh_words(asked, WordWeights(), statistics_of(world).as_of(as_of))
        ids = [each.paper_id for each in earlier]
        told.append({key: (one.score, one.lexical) for key, one in scores(world, ids, words, as_of).items()})
        world.database.close()
    assert told[0] == told[1]
