"""Sentences that no paper answers, written for this test: a calibrated service must give them low confidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from citewell.lab.dataset import Column, Contexts, Dataset, Rows, TextColumn
from citewell.scholarly.contexts import TARGET

_SENTENCES = """
Boil the pasta in salted water until it is firm to the bite TARGETCIT and drain it well.
The bakery on the corner closes at noon on Saturdays TARGETCIT, so buy the bread early.
Her grandmother planted the roses TARGETCIT along the south wall of the house.
The train to the coast leaves twice a day TARGETCIT and is often late in winter.
He paid the rent in cash TARGETCIT on the first day of every month.
Fold the letter twice and put it into the blue envelope TARGETCIT.
The home team lost three to one TARGETCIT after the rain had stopped.
My neighbour's dog barks at the postman TARGETCIT every single morning.
Stir the soup slowly and add cream, pepper and a little nutmeg TARGETCIT.
The museum is free on Sundays TARGETCIT and closed on Mondays.
She wore a green coat and a hat with a feather TARGETCIT to the wedding.
We drove over the pass in heavy snow TARGETCIT and reached the hotel at night.
The plumber fixed the leaking tap TARGETCIT and sent his bill a week later.
Tickets for the concert were sold out within the hour TARGETCIT.
The tenant must give three months' notice in writing TARGETCIT.
Prune the apple trees in late winter TARGETCIT, before the buds open.
The old ferry crosses the river every half hour TARGETCIT in summer.
Knead the dough for ten minutes TARGETCIT and let it rise under a cloth.
His brother works as a carpenter TARGETCIT in a village near the border.
The children built a castle of sand TARGETCIT and waited for the tide.
A cold front brings showers and wind from the west TARGETCIT on Tuesday.
The waiter spilled red wine TARGETCIT over the white tablecloth.
Please switch off the lights TARGETCIT when you leave the building.
The cat sleeps on the warm roof of the car TARGETCIT all afternoon.
They painted the kitchen yellow TARGETCIT and bought new chairs.
The cyclist broke away on the last climb TARGETCIT and won by a minute.
Wash wool by hand in cool water TARGETCIT and dry it flat.
The mayor opened the new swimming pool TARGETCIT with a short speech.
Two eggs, a cup of flour and a pinch of salt TARGETCIT make the batter.
The lighthouse has been empty TARGETCIT since its keeper moved to the mainland.
Grandfather told us about the flood TARGETCIT that took the old bridge.
The shop sells second-hand bicycles TARGETCIT and repairs them too.
Leave your shoes at the door TARGETCIT and come in.
The orchestra played a waltz TARGETCIT and everybody got up to dance.
Our flight was cancelled TARGETCIT, and we slept on the benches.
Sow the beans when the soil is warm TARGETCIT and water them daily.
The judge adjourned the hearing TARGETCIT until the witness could travel.
Slice the onions thinly and fry them in butter TARGETCIT until golden.
He collects stamps of islands TARGETCIT that no longer print them.
The bus stops in front of the church TARGETCIT next to the fountain.
"""


def everyday_sentences() -> list[str]:
    """Sentences with one marker each, none of them about research."""
    sentences = [line.strip() for line in _SENTENCES.strip().splitlines()]
    assert all(sentence.count(TARGET) == 1 for sentence in sentences)
    return sentences


def with_everyday(data: Dataset, sentences: list[str]) -> tuple[Dataset, Rows]:
    """The set with these sentences as contexts of a draft without title, dated today; and their rows.

    The draft is in no split and cites nothing, so nothing else in the set changes. A context needs a cited paper: it is
    the draft itself, which is never a candidate for its own queries.
    """
    papers, contexts = data.papers, data.contexts
    draft, first, count = len(papers), len(contexts), len(sentences)
    latest = int(max(contexts.first_day.max(), papers.last_day.max())) + 1

    def longer(column: Column, *values: int) -> Column:
        return np.append(column, np.array(values, np.int32))

    grown = replace(
        papers,
        ids=TextColumn([*papers.ids, "everyday-draft"]),
        titles=TextColumn([*papers.titles, ""]),
        abstracts=TextColumn([*papers.abstracts, ""]),
        year=longer(papers.year, 0),
        first_day=longer(papers.first_day, 0),
        last_day=longer(papers.last_day, 0),
    )
    asked = Contexts(
        ids=TextColumn([*contexts.ids, *(f"everyday-{number}" for number in range(count))]),
        texts=TextColumn([*contexts.texts, *sentences]),
        citing=longer(contexts.citing, *[draft] * count),
        cited=longer(contexts.cited, *[draft] * count),
        first_day=longer(contexts.first_day, *[latest] * count),
        group=longer(contexts.group, *[0] * count),
        source=longer(contexts.source, *[0] * count),
        sources=contexts.sources,
        split=longer(contexts.split, *[-1] * count),
    )
    return replace(data, papers=grown, contexts=asked), np.arange(first, first + count)
