"""What the papers of the demo world say: titles, abstracts, and passages that cite."""

from __future__ import annotations

from typing import Final

from citewell.demo import words
from citewell.demo.world import Draws, Kind, Traits, World
from citewell.scholarly.contexts import CitationMarker, Passage

_ABSTRACT, _PASSAGES, _SENTENCE = range(100, 103)

_LEADS: Final = (
    "For {task} in {domain}, ",
    "For {task}, ",
    "In studies of {domain}, ",
    "As usual in {task}, ",
    "When it comes to {task} for {domain}, ",
    "With {approach} at hand, ",
)
_NAMED_CORES: Final = (
    "we build on {nick} ¶",
    "{nick} ¶ is our starting point",
    "many groups have adopted {nick} ¶",
    "we compare ourselves with {nick} ¶",
)
_PLAIN_CORES: Final = (
    "we follow ¶",
    "the work of ¶ is the natural baseline",
    "¶ set the example",
    "we borrow the protocol of ¶",
    "we take up an idea of ¶",
)
_TAILS: Final = (
    ", known for {known}",
    ", which uses {approach} and stands out by {known}",
    ", whose merit is {known}",
    ", since it relies on {approach}",
    ", an instance of {approach}",
)
_GROUP_SENTENCES: Final = (
    "Several lines of work address {task} for {domain} ¶.",
    "Much has been written about {task} with {approach} ¶.",
    "Related efforts apply {approach} to {domain} ¶.",
)
_BACKGROUND: Final = (
    "Our interest is {task} for {domain}.",
    "Progress with {approach} has been steady.",
    "Collecting {data} is costly.",
    "We now describe the related work.",
    "Results on {domain} remain mixed.",
)


def title(traits: Traits) -> str:
    match traits.kind:
        case Kind.METHOD:
            return f"{traits.name}: {traits.approach[0]} for {traits.task[0]}"
        case Kind.DATA_SET:
            return f"{traits.name}: {traits.data} for {traits.task[0]} in {traits.domain[0]}"
        case Kind.STUDY:
            return f"Does {traits.approach[0]} help {traits.task[0]}? Evidence from {traits.domain[0]}"


def abstract(world: World, paper: int, traits: Traits) -> str:
    draws = Draws(_ABSTRACT, world.seed, paper)
    opening = draws.pick(
        (
            "{task} is a central problem in {domain}.",
            "In {domain}, {task} has to be trusted.",
            "We revisit {task} with an application to {domain}.",
        )
    )
    match traits.kind:
        case Kind.METHOD:
            body = "We introduce {name}, a method that brings {approach} to {task}. It is trained on {data}."
        case Kind.DATA_SET:
            body = "We release {name}, a data set of {data} for {task}, with a baseline that uses {approach}."
        case Kind.STUDY:
            body = "We compare {approach} with simpler alternatives on {data} and report where each fails."
    text = f"{opening} {body} Our approach {draws.pick(words.FINDINGS)}."
    filled = text.format(
        task=traits.task[0],
        domain=traits.domain[0],
        approach=traits.approach[0],
        data=traits.data,
        name=traits.name,
        n=2 + draws.below(40),
    )
    return filled[0].upper() + filled[1:]


def passages(world: World, paper: int) -> tuple[Passage, ...]:
    """The passages of this paper's full text, each with one or two markers; together they cite all its references."""
    draws = Draws(_PASSAGES, world.seed, paper)
    traits = world.traits(paper)
    references = world.references(paper)
    waiting = [*references, *(cited for cited in references if draws.chance(0.2))]  # some are cited twice
    printed = 0
    result = []
    while waiting:
        text, markers = _background(traits, draws), []
        for _ in range(1 + draws.below(2)):
            size = min(2 if draws.chance(0.15) else 1, len(waiting))
            if not size:
                break
            cited = tuple(dict.fromkeys(waiting.pop(draws.below(len(waiting))) for _ in range(size)))
            before, after = _sentence(world, cited, draws).split("¶")
            marker = str(list(range(printed + 1, printed + len(cited) + 1)))
            printed += len(cited)
            text += f" {before}"
            markers.append(CitationMarker(len(text), len(marker), tuple(map(world.id, cited))))
            text += marker + after
        result.append(Passage(text, tuple(markers)))
    return tuple(result)


def _background(traits: Traits, draws: Draws) -> str:
    return draws.pick(_BACKGROUND).format(
        task=traits.task[1], domain=traits.domain[1], approach=traits.approach[1], data=traits.data
    )


def _sentence(world: World, cited: tuple[int, ...], draws: Draws) -> str:
    """A sentence about the first of the cited papers, in the words others use for it."""
    traits = world.traits(cited[0])
    if len(cited) > 1:
        template = draws.pick(_GROUP_SENTENCES)
    else:
        core = draws.pick(_NAMED_CORES if draws.chance(0.5) else _PLAIN_CORES)
        template = draws.pick(_LEADS) + core + draws.pick(_TAILS) + "."
    # Most writers use the nickname; some spell out the name its authors gave it.
    called = traits.name if draws.chance(0.4) and traits.kind is not Kind.STUDY else f"the {traits.nickname}"
    text = template.format(
        task=traits.task[1], domain=traits.domain[1], approach=traits.approach[1], known=traits.known_for, nick=called
    )
    return text[0].upper() + text[1:]
