"""What files of real corpora hold beside the plain case: each test is one oddity of JATS, OpenAlex or their files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from citewell.corpora.formats.registry import FORMATS
from citewell.corpora.joining import JoinedCorpus
from citewell.corpora.readers import Reject, read_papers
from citewell.scholarly.contexts import mask
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Publication

TEX = r"\documentclass[12pt]{minimal} \usepackage{amsmath} \begin{document}$$E = x^2$$\end{document}"
REFERENCES = "".join(
    f'<ref id="B{n}"><label>{n}</label><mixed-citation>Boat {n}. <pub-id pub-id-type="doi">10.1234/b{n}</pub-id>'
    "</mixed-citation></ref>"
    for n in range(1, 10)
)


def article(meta: str = "", body: str = "", title: str = "Rivers", references: str = REFERENCES) -> bytes:
    return f"""<article xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:mml="http://www.w3.org/1998/Math/MathML"><front>
<article-meta><title-group><article-title>{title}</article-title></title-group>{meta}</article-meta></front>
<body>{body}</body><back><ref-list>{references}</ref-list></back></article>""".encode()


def cite(number: int) -> str:
    return f'<xref ref-type="bibr" rid="B{number}">{number}</xref>'


def load(
    folder: Path, form: str, files: Mapping[str, bytes], *, corpus: str = "corpus", source: str = ""
) -> tuple[list[Publication], list[dict[str, Any]]]:
    """What a folder of these files holds, and what was left out."""
    for name, content in files.items():
        path = folder / corpus / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    names = folder / "file-names.sqlite"
    joined = JoinedCorpus(folder / corpus, folder / "state.sqlite", FORMATS[form], source=source, names=names)
    joined.spill(lambda: None)
    found = [loadable.event.body for loadable in joined.publications()]
    rejects = folder / "rejects.jsonl"
    count = joined.write_rejects(rejects)
    joined.close(forget=True)
    assert all(isinstance(each, Publication) for each in found)
    told = rejects.read_text("utf-8").splitlines() if count else []
    return [each for each in found if isinstance(each, Publication)], [json.loads(line) for line in told]


def of_jats(folder: Path, content: bytes) -> Publication:
    [found], rejects = load(folder, "jats", {"river.xml": content})
    assert not rejects
    return found


def contexts(paper: Publication) -> list[tuple[str, str]]:
    return [(each.text, each.cited_id) for passage in paper.passages for each in mask(passage)]


@pytest.mark.parametrize("folders", [("a", "b"), ("a" * 150 + "/" + "b" * 100, "c")])
@pytest.mark.parametrize("identified", [True, False])
def test_files_of_one_name_in_several_folders_are_several_papers(
    tmp_path: Path, folders: tuple[str, str], identified: bool
) -> None:
    ids = [f'<article-id pub-id-type="doi">10.1234/{n}</article-id>' if identified else "" for n in range(2)]
    files = {f"{folders[n]}/main.nxml": article(ids[n], title=f"River number {n}") for n in range(2)}
    found, rejects = load(tmp_path, "jats", files)
    assert not rejects
    assert sorted(paper.title for paper in found) == ["River number 0", "River number 1"]
    assert len({paper.paper_id for paper in found}) == 2
    if identified:
        assert {paper.paper_id for paper in found} == {"doi:10.1234/0", "doi:10.1234/1"}


def test_a_load_of_another_folder_replaces_no_paper_of_the_same_file_name(tmp_path: Path) -> None:
    first, second = {"x.xml": article(title="Rivers run")}, {"x.xml": article(title="Boats are built")}
    [kept], _ = load(tmp_path, "jats", first, corpus="a")
    found, [reject] = load(tmp_path, "jats", second, corpus="b")
    assert (kept.paper_id, found, reject["file"]) == ("file:x", [], "x.xml")
    assert "file:x would replace 'Rivers run' of " in reject["reason"]
    assert "--source NAME" in reject["reason"]
    [named], rejects = load(tmp_path, "jats", second, corpus="b", source="boats")
    assert (named.paper_id, rejects) == ("file:boats/x", [])
    for corpus in ("a", "moved"):  # a new title in the same folder, and nearly the same title in another one
        [again], rejects = load(tmp_path, "jats", {"x.xml": article(title="Rivers run deep")}, corpus=corpus)
        assert (again.paper_id, rejects) == ("file:x", [])


def test_a_damaged_file_does_not_stop_a_load(tmp_path: Path) -> None:
    damaged = bytearray(gzip.compress(article()))
    damaged[20:40] = b"\xff" * 20
    unknown = b'<?xml version="1.0" encoding="no-such"?>' + article()
    files = {"damaged.xml.gz": bytes(damaged), "unknown.xml": unknown, "whole.xml": article()}
    found, rejects = load(tmp_path, "jats", files)
    assert [paper.paper_id for paper in found] == ["file:whole"]
    reasons = {each["file"]: each["reason"] for each in rejects}
    assert "cannot be read to its end" in reasons["damaged.xml.gz"]
    assert "unknown encoding" in reasons["unknown.xml"]


def test_unarxive_authors_that_are_no_list_cost_no_paper(tmp_path: Path) -> None:
    record = {"paper_id": "2101.12345", "metadata": {"title": "Rivers", "authors_parsed": 5}}
    found, _ = load(tmp_path, "unarxive", {"part.jsonl": json.dumps(record).encode()})
    assert [paper.title for paper in found] == ["Rivers"]


@pytest.mark.parametrize("dash", ["–", "-", " ‑ "])
@pytest.mark.parametrize("brackets", ["", "[]"])
def test_a_range_cites_all_entries_in_it(tmp_path: Path, dash: str, brackets: str) -> None:
    opening, closing = brackets or ("", "")
    first, last = (cite(n).replace(f">{n}<", f">{opening}{n}{closing}<") for n in (3, 6))
    paper = of_jats(tmp_path, article(body=f"<p>Boats float {first}{dash}{last} well.</p>"))
    assert [cited for _, cited in contexts(paper)] == [f"doi:10.1234/b{n}" for n in (3, 4, 5, 6)]
    assert {marker.group for marker in paper.passages[0].markers} == {1}


@pytest.mark.parametrize(
    ("rid", "text", "cited"),
    [
        ("B3 B4 B5 B6", "3–6", (3, 4, 5, 6)),
        ("B3", "3–6", (3, 4, 5, 6)),
        ("B3 B6", "[3-6]", (3, 4, 5, 6)),
        ("B2", "(2, 4–6,9)", (2, 4, 5, 6, 9)),
        ("B3", "4–6", (3,)),
        ("B3", "3–99", (3,)),
        ("B3", "6–3", (3,)),
        ("B3", "3", (3,)),
    ],
)
def test_a_range_in_one_mark_cites_all_entries_in_it(
    tmp_path: Path, rid: str, text: str, cited: tuple[int, ...]
) -> None:
    body = f'<p>Boats float <xref ref-type="bibr" rid="{rid}">{text}</xref> well.</p>'
    paper = of_jats(tmp_path, article(body=body))
    assert [cited for _, cited in contexts(paper)] == [f"doi:10.1234/b{n}" for n in cited]


def test_ranges_go_by_the_labels_of_the_list(tmp_path: Path) -> None:
    later = REFERENCES.partition("</ref>")[2]  # the list begins with number 2
    body = '<p>Boats float <xref ref-type="bibr" rid="B3">3–5</xref> well.</p>'
    paper = of_jats(tmp_path, article(body=body, references=later))
    assert [cited for _, cited in contexts(paper)] == [f"doi:10.1234/b{n}" for n in (3, 4, 5)]


@pytest.mark.parametrize("tag", ["mixed-citation", "element-citation"])
def test_an_entry_with_several_citations_stands_for_all_of_them(tmp_path: Path, tag: str) -> None:
    entry = "".join(f'<{tag} id="c{n}">Boat. <pub-id pub-id-type="doi">10.1234/c{n}</pub-id></{tag}>' for n in "ab")
    body = "<p>All {} float. One {} sinks.</p>".format(
        *(f'<xref ref-type="bibr" rid="{rid}">[1]</xref>' for rid in ("B1", "cb"))
    )
    paper = of_jats(tmp_path, article(body=body, references=f'<ref id="B1"><label>1.</label>{entry}</ref>'))
    assert paper.reference_ids == ("doi:10.1234/ca", "doi:10.1234/cb")
    assert [cited for _, cited in contexts(paper)] == ["doi:10.1234/ca", "doi:10.1234/cb", "doi:10.1234/cb"]


def test_a_citation_in_several_forms_is_one(tmp_path: Path) -> None:
    one = 'Boat. <pub-id pub-id-type="doi">10.1234/{}</pub-id>'
    forms = f"<element-citation>{one.format('c')}</element-citation><mixed-citation>{one.format('d')}</mixed-citation>"
    for entry in (forms, f"<citation-alternatives>{forms}</citation-alternatives>"):
        folder = tmp_path / str(len(entry))
        folder.mkdir()
        paper = of_jats(
            folder, article(body=f"<p>Boats {cite(1)} float.</p>", references=f'<ref id="B1">{entry}</ref>')
        )
        assert paper.reference_ids == ("doi:10.1234/c",)


def test_numbers_that_are_not_those_of_the_list_make_no_range(tmp_path: Path) -> None:
    body = f"<p>Boats {cite(3)}–{cite(7).replace('>7<', '>9<')} and {cite(1)}, {cite(5)} float.</p>"
    paper = of_jats(tmp_path, article(body=body))
    assert [cited for _, cited in contexts(paper)] == [f"doi:10.1234/b{n}" for n in (3, 7, 1, 5)]


def test_a_raised_number_of_an_unknown_paper_becomes_a_word_of_its_own(tmp_path: Path) -> None:
    body = f"<p>In boats<sup>{cite(99)}</sup> and rafts<sup>{cite(1)}</sup> we sit.</p>"
    paper = of_jats(tmp_path, article(body=body))
    assert contexts(paper) == [("In boats OTHERCIT and rafts TARGETCIT we sit.", "doi:10.1234/b1")]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (f"<alternatives><tex-math>{TEX}</tex-math><mml:math><mml:mi>E</mml:mi></mml:math></alternatives>", "E"),
        (f"<alternatives><graphic/><tex-math>{TEX}</tex-math></alternatives>", "$$E = x^2$$"),
        (f"<tex-math>{TEX}</tex-math>", "$$E = x^2$$"),
        ("<mml:semantics><mml:mi>E</mml:mi><mml:annotation>E_{TeX}</mml:annotation></mml:semantics>", "E"),
    ],
)
def test_of_a_formula_one_form_is_read_without_a_preamble(tmp_path: Path, formula: str, expected: str) -> None:
    formula = f"<inline-formula>{formula}</inline-formula>"
    paper = of_jats(tmp_path, article(body=f"<p>With {formula} boats {cite(1)} float.</p>", title=f"On {formula}"))
    assert paper.title == f"On {expected}"
    assert contexts(paper) == [(f"With {expected} boats TARGETCIT float.", "doi:10.1234/b1")]


def test_parts_of_a_structured_abstract_are_not_glued(tmp_path: Path) -> None:
    parts = (
        "<sec><title>Aim</title><p>We float.</p></sec><sec><title>Method</title><p>By <italic>b</italic>oat.</p></sec>"
    )
    assert of_jats(tmp_path, article(f"<abstract>{parts}</abstract>")).abstract == "Aim We float. Method By boat."


def test_items_of_a_list_in_a_paragraph_are_not_glued(tmp_path: Path) -> None:
    items = f"<list><list-item><p>Boats {cite(1)}</p></list-item><list-item><p>Oars</p></list-item></list>"
    [(text, _)] = contexts(of_jats(tmp_path, article(body=f"<p>We use{items}</p>")))
    assert text == "We use Boats TARGETCIT Oars"


def test_citations_in_lists_and_boxes_are_read(tmp_path: Path) -> None:
    listed = f"<list><list-item><p>Boats {cite(1)}.</p></list-item></list>"
    boxed = f"<boxed-text><title>Box</title><p>Oars {cite(2)}.</p></boxed-text>"
    paper = of_jats(tmp_path, article(body=f"<sec><title>Methods</title>{listed}{boxed}</sec>"))
    assert [cited for _, cited in contexts(paper)] == ["doi:10.1234/b1", "doi:10.1234/b2"]
    assert [passage.section for passage in paper.passages] == ["Methods", "Methods"]


def test_the_full_date_is_taken_before_the_bare_year_of_an_issue(tmp_path: Path) -> None:
    dates = "<pub-date><year>2020</year></pub-date><pub-date><day>5</day><month>3</month><year>2020</year></pub-date>"
    assert of_jats(tmp_path, article(dates)).published == PartialDate(2020, 3, 5)


def test_identifiers_authors_and_links_in_other_spellings(tmp_path: Path) -> None:
    meta = """<article-id pub-id-type="DOI">10.1234/RIVER</article-id><contrib-group><contrib><name-alternatives>
<name><surname>Brook</surname></name></name-alternatives></contrib><contrib><collab>The Boats</collab></contrib>
</contrib-group>"""
    link = '<ext-link xlink:href="https://doi.org/10.1234/B1">CrossRef</ext-link>'
    reference = f'<ref id="B1"><mixed-citation>Boat. {link}</mixed-citation></ref>'
    paper = of_jats(tmp_path, article(meta, references=reference))
    assert (paper.paper_id, paper.authors) == ("doi:10.1234/river", ("Brook", "The Boats"))
    assert paper.reference_ids == ("doi:10.1234/b1",)


def test_openalex_titles_and_abstracts_lose_their_markup(tmp_path: Path) -> None:
    record = {
        "id": "https://openalex.org/W1",
        "title": 'Boats of <i>P. rivalis</i> &amp; CO<sub>2</sub> <mml:math xmlns:mml="http://m"><mml:mi>x</mml:mi></mml:math>',
        "abstract_inverted_index": {"<p>Where": [0], "a<b,": [1], "<b>c>d</b></p>": [2]},
    }
    [paper], _ = load(tmp_path, "openalex", {"works.gz": gzip.compress(json.dumps(record).encode())})
    assert paper.title == "Boats of P. rivalis & CO2 x"
    assert paper.abstract == "Where a<b, c>d"


def test_a_byte_order_mark_costs_no_paper(tmp_path: Path) -> None:
    (tmp_path / "papers.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"p": {"title": "Rivers"}}).encode())
    rejects: list[Reject] = []
    assert [paper.title for paper in read_papers(tmp_path, rejects.append)] == ["Rivers"]
    assert not rejects
