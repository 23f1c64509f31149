"""JATS, as PubMed Central and many publishers write it: `xref ref-type="bibr"` points to a `ref` of the `ref-list`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

from citewell.corpora.formats import identifiers, xml_text
from citewell.corpora.formats.documents import Document, Format, Paragraph, Part, Reference
from citewell.corpora.formats.identifiers import Name
from citewell.corpora.formats.xml_text import words
from citewell.corpora.readers import Malformed, OnReject, Reject
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate

_DOCUMENT = re.compile(r"\\begin\{document\}(.*?)\\end\{document\}", re.DOTALL)
_NUMBER = re.compile(r"[\[(]?(\d{1,4})[\])]?")
_DASH = re.compile(r"\s*[-‐‑‒–]\s*")
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
    references = {entry.get("id", ""): _reference(entry) for entry in article.iterfind("back//ref-list/ref")}
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
        paragraphs=tuple(_with_ranges(each, list(references)) for each in _paragraphs(article.find("body"), "")),
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


def _with_ranges(paragraph: Paragraph, entries: list[str]) -> Paragraph:
    """The paragraph where "3–7", of which only 3 and 7 are marked, cites the entries between them as well."""
    marks = list(paragraph.marks)
    place = {key: at for at, key in enumerate(entries)}
    for number, (first, last) in enumerate(pairwise(paragraph.marks)):
        numbers = [_NUMBER.fullmatch(paragraph.text, mark.start, mark.end) for mark in (first, last)]
        if not all(numbers) or not _DASH.fullmatch(paragraph.text, first.end, last.start):
            continue
        low, high = (int(found[1]) for found in numbers if found)
        start, end = place.get(first.keys[-1], -1), place.get(last.keys[0], -1)
        if start >= 0 and end - start == high - low > 1:  # the list is numbered as the text says
            marks[number] = replace(first, keys=(*first.keys, *entries[start + 1 : end]))
    return replace(paragraph, marks=tuple(marks))


def _keys(element: Element) -> tuple[str, ...]:
    return (
        tuple((element.get("rid") or "").split()) if element.tag == "xref" and element.get("ref-type") == "bibr" else ()
    )


FORMAT = Format("jats", "JATS articles, as of PubMed Central", ("*.nxml", "*.xml", "*.nxml.gz", "*.xml.gz"), read)
