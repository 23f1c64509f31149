"""Who exists in the demo world and who cites whom, each fact computed from (seed, index) alone.

Nothing is stored: paper i of topic i mod T cites earlier papers by the copying model (pick an earlier paper, then cite
it or one of the papers it cites), whose in-degrees have a power-law tail, and any cited paper's traits can be worked
out again when somebody writes about it. So a million papers stream in the memory of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Final, TypeVar

from citewell.demo import words

FIRST_DAY: Final = date(1995, 1, 1)
LAST_DAY: Final = date(2025, 6, 30)
PAPERS_PER_TOPIC: Final = 25
MOST_REFERENCES: Final = 10

_MASK: Final = (1 << 64) - 1
_T = TypeVar("_T")


class Draws:
    """A stream of reproducible draws for one key; the same on every machine and Python version (SplitMix64)."""

    def __init__(self, *key: int) -> None:
        self._state = 0
        for part in key:
            self._state = (self._next() ^ part) & _MASK

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return self._next() % bound

    def unit(self) -> float:
        return (self._next() >> 11) / (1 << 53)

    def chance(self, probability: float) -> bool:
        return self.unit() < probability

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]


class Kind(Enum):
    METHOD = "method"
    DATA_SET = "data set"
    STUDY = "study"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a paper is about; the last two fields appear only in papers that cite it."""

    kind: Kind
    name: str
    domain: tuple[str, str]
    task: tuple[str, str]
    approach: tuple[str, str]
    data: str
    known_for: str
    nickname: str


# The first part of every key. It keeps draws for one purpose independent of draws for another.
_TOPIC, _TRAITS, _REFERENCE, _COUNT, _AUTHORS, _VENUE = range(6)


class World:
    """The facts about each of `papers` papers, numbered in the order of their dates."""

    def __init__(self, papers: int, seed: int) -> None:
        if papers < 1:
            raise ValueError(f"papers is {papers}; a world has at least one")
        self.papers = papers
        self.seed = seed
        self.topics = max(1, papers // PAPERS_PER_TOPIC)

    def id(self, paper: int) -> str:
        return f"demo-{self.seed}-{paper:07}"

    def _day(self, paper: int) -> int:
        # The square root makes the number of papers per year grow, as in reality.
        return int((LAST_DAY - FIRST_DAY).days * math.sqrt(paper / self.papers))

    def published(self, paper: int) -> date:
        return FIRST_DAY + timedelta(days=self._day(paper))

    def earlier(self, paper: int) -> int:
        """The number of papers dated strictly before this one: exactly those it may cite."""
        day = self._day(paper)
        count = min(paper, int(self.papers * (day / (LAST_DAY - FIRST_DAY).days) ** 2))
        while self._day(count) < day:
            count += 1
        while count and self._day(count - 1) >= day:
            count -= 1
        return count

    def traits(self, paper: int) -> Traits:
        topic = paper % self.topics
        # Three topics in a row share a domain: those are the neighbours a paper also cites.
        domain = Draws(_TOPIC, self.seed, topic // 3).pick(words.DOMAINS)
        task = Draws(_TOPIC, self.seed, ~topic).pick(words.TASKS)
        draws = Draws(_TRAITS, self.seed, paper)
        return Traits(
            kind=draws.pick((Kind.METHOD, Kind.METHOD, Kind.METHOD, Kind.DATA_SET, Kind.STUDY)),
            name=_name(draws).capitalize(),
            domain=domain,
            task=task,
            approach=draws.pick(words.APPROACHES),
            data=draws.pick(words.DATA),
            known_for=draws.pick(words.KNOWN_FOR),
            nickname=f"{draws.pick(words.NICK_ADJECTIVES)} {draws.pick(words.NICK_NOUNS)}",
        )

    def authors(self, paper: int) -> tuple[str, ...]:
        draws = Draws(_AUTHORS, self.seed, paper)
        return tuple(f"{draws.pick(words.GIVEN_NAMES)} {_name(draws).capitalize()}" for _ in range(1 + draws.below(4)))

    def venue(self, paper: int) -> str:
        return Draws(_VENUE, self.seed, paper).pick(words.VENUES)

    def references(self, paper: int) -> tuple[int, ...]:
        """The papers this one cites, each dated strictly before it, in ascending order."""
        count = 2 + Draws(_COUNT, self.seed, paper).below(MOST_REFERENCES - 1)
        cited = {self._reference(paper, slot) for slot in range(count)}
        return tuple(sorted(number for number in cited if number is not None))

    def _reference(self, paper: int, slot: int) -> int | None:
        """One draw of the copying model. It is iterative, because a chain of copies may be long."""
        while True:
            draws = Draws(_REFERENCE, self.seed, paper, slot)
            choice = self._earlier_paper(paper, draws)
            if choice is None or draws.chance(0.4):
                return choice
            copied_slot = draws.below(MOST_REFERENCES)
            if self._earlier_paper(choice, Draws(_REFERENCE, self.seed, choice, copied_slot)) is None:
                return choice
            paper, slot = choice, copied_slot

    def _earlier_paper(self, paper: int, draws: Draws) -> int | None:
        earlier = self.earlier(paper)
        reach = draws.below(100)
        if reach < 10:
            # Citations across topics go mostly to old papers: the fourth power favours them.
            return int(earlier * draws.unit() ** 4) if earlier else None
        topic = paper % self.topics
        if reach < 20:
            topic = min(topic - topic % 3 + draws.below(3), self.topics - 1)
        members = -((topic - earlier) // self.topics) if earlier > topic else 0
        return topic + self.topics * draws.below(members) if members else None


def _name(draws: Draws) -> str:
    return "".join(
        draws.pick(words.ONSETS) + draws.pick(words.VOWELS) + (draws.pick(words.CODAS) if last else "")
        for last in (False, True)
    ) + draws.pick(("", "", "o", "is", "a"))  # fmt: skip
