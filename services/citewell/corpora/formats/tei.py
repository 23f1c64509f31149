"""GROBID's TEI: one XML file a paper; `ref type="bibr"` in the text points to a `biblStruct` of the bibliography."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from citewell.corpora.formats import fields, identifiers, xml_text
from citewell.corpora.formats.documents import Document, Format, Paragraph, Part, Reference
from citewell.corpora.formats.identifiers import Name
from citewell.corpora.formats.xml_text import words
from citewell.corpora.readers import Malformed, OnReject, Reject
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    try:
        yield _document(xml_text.parse(path), path)
    except Malformed as reason:
        on_reject(Reject(path.name, 1, str(reason)))


def _document(root: Element, path: Path) -> Document:
    header = root.find("teiHeader")
    if root.tag != "TEI" or header is None:
        raise Malformed(f"expected TEI with a teiHeader, found {root.tag}")
    title = words(header.find("fileDesc/titleStmt/title"))
    if not title:
        raise Malformed("teiHeader has no title")
    source = header.find("fileDesc/sourceDesc/biblStruct")
    names = _names(source) if source is not None else ()
    own = Name("file", path.name.removesuffix(".gz").removesuffix(".xml").removesuffix(".tei").removesuffix(".grobid"))
    return Document(
        1,
        (own, *names),
        title,
        abstract=words(header.find("profileDesc/abstract")),
        authors=tuple(_authors(source)) if source is not None else (),
        venue=words(source.find("monogr/title")) if source is not None else "",
        published=_published(header, source),
        references={
            entry.get("id", ""): Reference(
                _names(entry), words(entry.find("analytic/title")) or words(entry.find("monogr/title"))
            )
            for entry in root.iterfind("text/back//listBibl/biblStruct")
        },
        paragraphs=tuple(_paragraphs(root)),
    )


def _names(entry: Element) -> tuple[Name, ...]:
    by_type = {(idno.get("type") or "").lower(): words(idno) for idno in entry.iter("idno")}
    return (
        *identifiers.doi(by_type.get("doi", "")),
        *identifiers.arxiv(by_type.get("arxiv", "")),
        *identifiers.numbered("pmid", by_type.get("pmid")),
        *identifiers.numbered("pmc", by_type.get("pmcid")),
    )


def _authors(source: Element) -> Iterator[str]:
    for name in source.iterfind("analytic/author/persName"):
        if written := " ".join(words(part) for part in name if part.tag in ("forename", "surname")):
            yield written


def _published(header: Element, source: Element | None) -> PartialDate:
    places = [header.find("fileDesc/publicationStmt/date")]
    if source is not None:
        places.append(source.find("monogr/imprint/date"))
    return next((day for at in places if at is not None and (day := fields.date(at.get("when"))).known), UNKNOWN_DATE)


def _paragraphs(root: Element) -> Iterator[Paragraph]:
    for division in root.iterfind("text/body//div"):
        section = words(division.find("head"))
        for paragraph in division.iterfind("p"):
            text, marks = xml_text.marked(paragraph, _keys)
            if marks:
                yield Paragraph(text, marks, section)


def _keys(element: Element) -> tuple[str, ...]:
    if element.tag != "ref" or element.get("type") != "bibr":
        return ()
    return tuple(target.removeprefix("#") for target in (element.get("target") or "").split())


FORMAT = Format("tei", "TEI as GROBID writes it", ("*.tei.xml", "*.xml", "*.tei.xml.gz"), read)
