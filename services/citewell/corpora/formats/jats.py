"""JATS, as PubMed Central and many publishers write it: `xref ref-type="bibr"` points to a `ref` of the `ref-list`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element

from citewell.corpora.formats import identifiers, xml_text
from citewell.corpora.formats.documents import Document, Format, Paragraph, Part, Reference
from citewell.corpora.formats.identifiers import Name
from citewell.corpora.formats.numbered_ranges import with_ranges
from citewell.corpora.formats.xml_text import words
from citewell.corpora.readers import Malformed, OnReject, Reject
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate

_DOCUMENT = re.compile(r"\\begin\{document\}(.*?)\\end\{document\}", re.DOTALL)
_LABEL = re.compile(r"\W*(\d{1,4})\W*")
_ENTRIES = "back//ref-list/ref"
_CITATIONS = ("element-citation", "mixed-citation", "nlm-citation", "citation")


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    try:
        root = xml_text.parse(path)
        articles = [root] if root.tag == "article" else list(root.iter("article"))
        if not articles:
            raise Malformed(f"expected article, found {root.tag}")
    except Malformed as reason:
        on_reject(Reject(path.name, 1, str(reason)))
        return
    _simplify_formulas(root)
    for number, article in enumerate(articles, 1):
        try:
            yield _document(article, path, number)
        except Malformed as reason:
            on_reject(Reject(path.name, number, str(reason)))


def _simplify_formulas(root: Element) -> None:
    """Leaves one form of each formula. A TeX form is a whole LaTeX document, of which only the body is kept."""
    for choice in root.iter("alternatives"):
        if any(words(each) for each in choice if each.tag != "tex-math"):
            for each in choice.findall("tex-math"):
                choice.remove(each)
    for semantics in root.iter("semantics"):
        for each in semantics.findall("annotation"):
            semantics.remove(each)
    for formula in root.iter("tex-math"):
        if body := _DOCUMENT.search(formula.text or ""):
            formula.text = body[1]


def _document(article: Element, path: Path, number: int) -> Document:
    about = article.find("front/article-meta")
    title = words(about.find("title-group/article-title")) if about is not None else ""
    if about is None or not title:
        raise Malformed("article-meta has no article-title")
    references, keys, numbers = _bibliography(article)
    entries = [entry.get("id", "") for entry in article.iterfind(_ENTRIES)]
    stem = path.name.removesuffix(".gz").removesuffix(".nxml").removesuffix(".xml")
    own = Name("file", stem if number == 1 else f"{stem}-{number}")
    return Document(
        number,
        (own, *_names(about, "article-id")),
        title,
        abstract=words(next((each for each in about.iterfind("abstract") if not each.get("abstract-type")), None)),
        authors=tuple(_authors(about)),
        venue=words(article.find("front/journal-meta//journal-title")),
        published=min(
            (day for day in map(_day, about.iterfind("pub-date")) if day.known),
            key=PartialDate.last_day,
            default=UNKNOWN_DATE,
        ),
        references=references,
        paragraphs=tuple(
            _of_each(with_ranges(paragraph, entries, numbers), keys)
            for paragraph in _paragraphs(article.find("body"), "")
        ),
        retracted=article.get("article-type") == "retracted-article",
    )


def _names(element: Element, tag: str) -> tuple[Name, ...]:
    by_type = {each.get("pub-id-type", "").lower(): words(each) for each in element.iter(tag)}
    return (
        *identifiers.doi(by_type.get("doi", "")),
        *identifiers.arxiv(by_type.get("arxiv", "")),
        *identifiers.numbered("pmid", by_type.get("pmid")),
        *identifiers.numbered("pmc", by_type.get("pmc") or by_type.get("pmcid")),
    )


def _authors(about: Element) -> Iterator[str]:
    for contributor in about.iterfind("contrib-group/contrib"):
        if contributor.get("contrib-type", "author") != "author":
            continue
        name = contributor.find("name")
        if name is None:
            name = contributor.find("name-alternatives/name")
        parts = (name.find("given-names"), name.find("surname")) if name is not None else (contributor.find("collab"),)
        if written := " ".join(filter(None, map(words, parts))):
            yield written


def _day(element: Element) -> PartialDate:
    numbers = [words(element.find(part)) for part in ("year", "month", "day")]
    known = [int(text) for text in numbers if text.isdigit()]
    try:
        return PartialDate(*known) if len(known) == sum(map(bool, numbers)) and known else PartialDate(*known[:1])
    except (TypeError, ValueError):
        return UNKNOWN_DATE


def _bibliography(article: Element) -> tuple[dict[str, Reference], dict[str, tuple[str, ...]], dict[int, str]]:
    """The references by their keys; which of them an id stands for; and the ids of entries by their numbers.

    An entry may hold several references, with or without ids of their own.
    """
    references: dict[str, Reference] = {}
    keys: dict[str, tuple[str, ...]] = {}
    numbers: dict[int, str] = {}
    for position, entry in enumerate(article.iterfind(_ENTRIES), 1):
        name = entry.get("id", "")
        label = _LABEL.fullmatch(words(entry.find("label")))
        numbers.setdefault(int(label[1]) if label else position, name)
        own: list[str] = []
        for number, citation in enumerate(_citations(entry)):
            key = f"{name}/{number}" if number else name
            references[key] = _reference(citation)
            own.append(key)
            if citation.get("id"):
                keys[citation.get("id", "")] = (key,)
        keys[name] = tuple(own)
    return references, keys, numbers


def _citations(entry: Element) -> list[Element]:
    """The references of an entry; of one that is written in several forms, one form."""
    return next(
        (found for tag in ("citation-alternatives", *_CITATIONS) if (found := entry.findall(f".//{tag}"))), [entry]
    )


def _of_each(paragraph: Paragraph, keys: dict[str, tuple[str, ...]]) -> Paragraph:
    """The paragraph with the references that its ids stand for."""
    marks = (
        replace(mark, keys=tuple(key for one in mark.keys for key in keys.get(one, (one,)))) for mark in paragraph.marks
    )
    return replace(paragraph, marks=tuple(marks))


def _reference(entry: Element) -> Reference:
    citation = next((found for tag in _CITATIONS if (found := entry.find(f".//{tag}")) is not None), entry)
    names = _names(citation, "pub-id")
    links = " ".join(each.get("href", "") for each in citation.iter("ext-link"))
    names = names or identifiers.doi(words(citation)) or identifiers.doi(links)
    return Reference(names, words(citation.find("article-title")))


def _paragraphs(section: Element | None, title: str) -> Iterator[Paragraph]:
    if section is None:
        return
    for part in section:
        if part.tag == "p":
            text, marks = xml_text.marked(part, _keys)
            if marks:
                yield Paragraph(text, marks, title)
        elif part.tag not in ("title", "label"):  # sections, and whatever else holds paragraphs, such as lists
            yield from _paragraphs(part, (words(part.find("title")) if part.tag == "sec" else "") or title)


def _keys(element: Element) -> tuple[str, ...]:
    return (
        tuple((element.get("rid") or "").split()) if element.tag == "xref" and element.get("ref-type") == "bibr" else ()
    )


FORMAT = Format("jats", "JATS articles, as of PubMed Central", ("*.nxml", "*.xml", "*.nxml.gz", "*.xml.gz"), read)
