"""Foreign corpora: a sample of each format in its own shape, the join by identifiers, and files that are broken.

The samples are invented. Their fields are those of the formats' public documentation.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from citewell.corpora.formats import identifiers
from citewell.corpora.formats.marking import masked
from citewell.corpora.formats.registry import FORMATS
from citewell.corpora.joining import JoinedCorpus
from citewell.corpora.readers import Reject
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Publication, Retraction

TITLE = "Parsing rivers of text with shallow boats"


def lines(path: Path, *records: object) -> None:
    """Writes JSON lines, gzipped where the name says so."""
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def corpus(folder: Path, form: str) -> JoinedCorpus:
    names = folder.parent / "file-names.sqlite"
    return JoinedCorpus(folder, folder.parent / f"{folder.name}.sqlite", FORMATS[form], names=names)


def load(folder: Path, form: str) -> tuple[dict[str, Publication | Retraction], list[dict[str, Any]]]:
    """What the folder holds, by id, and what was left out."""
    joined = corpus(folder, form)
    joined.spill(lambda: None)
    bodies = [loadable.event.body for loadable in joined.publications()]
    assert len({body.paper_id for body in bodies}) == len(bodies)
    out = folder.parent / "rejects.jsonl"
    count = joined.write_rejects(out)
    joined.close(forget=True)
    return {body.paper_id: body for body in bodies}, [
        json.loads(line) for line in out.read_text().splitlines()
    ] if count else []


def publication(body: Publication | Retraction) -> Publication:
    assert isinstance(body, Publication)
    return body


def names(body: Publication) -> set[str]:
    return {f"{each.scheme}:{each.value}" for each in body.external_ids}


def s2ag(folder: Path) -> None:
    paper: Mapping[str, Any] = {"authors": [{"authorId": "1", "name": "Ada Brook"}], "venue": "Streams", "year": 2019}
    lines(
        folder / "papers-000.jsonl.gz",
        {"corpusid": 1, "externalids": {"DOI": "10.1234/River", "ArXiv": "1901.00001"}, "title": TITLE, **paper},
        {
            "corpusid": 2,
            "externalids": {"ACL": "P18-1001"},
            "title": "Boats",
            "authors": [{"name": "Bo Quay"}],
            "year": 2018,
        },
        {"corpusid": 3, "externalids": {}, "title": "Oars", "publicationdate": "2017-05-06", "year": 2017},
        {"corpusid": 4, "externalids": {}, "title": None},
    )
    lines(folder / "abstracts-000.jsonl.gz", {"corpusid": 1, "abstract": "We parse rivers.", "openaccessinfo": {}})
    lines(
        folder / "citations-000.jsonl.gz",
        {
            "citationid": 9,
            "citingcorpusid": 1,
            "citedcorpusid": 2,
            "isinfluential": False,
            "contexts": ["Boats (Quay, 2018) float on what others dug [3]."],
            "intents": [["background"]],
        },
        {"citationid": 10, "citingcorpusid": 1, "citedcorpusid": 3, "contexts": None},
        {"citationid": 11, "citingcorpusid": 1, "citedcorpusid": None, "contexts": ["To a paper they do not know."]},
    )


def test_semantic_scholar_is_joined_from_three_kinds_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "s2ag"
    folder.mkdir()
    s2ag(folder)
    found, rejects = load(folder, "s2ag")
    assert set(found) == {"doi:10.1234/river", "acl:P18-1001", "s2:3"}
    river = publication(found["doi:10.1234/river"])
    assert (river.title, river.abstract, river.authors, river.venue) == (
        TITLE,
        "We parse rivers.",
        ("Ada Brook",),
        "Streams",
    )
    assert names(river) == {"s2:1", "doi:10.1234/river", "arxiv:1901.00001"}
    assert river.reference_ids == ("acl:P18-1001", "s2:3")
    [context] = river.masked_contexts
    assert (context.text, context.cited_id) == ("Boats TARGETCIT float on what others dug OTHERCIT.", "acl:P18-1001")
    assert publication(found["s2:3"]).published == PartialDate(2017, 5, 6)
    assert [(each["file"], each["line"], each["reason"]) for each in rejects] == [
        ("citations-000.jsonl.gz", 3, "citedcorpusid is missing"),
        ("papers-000.jsonl.gz", 4, "title is missing"),
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_s2orc_keeps_paragraphs_sections_and_brackets(tmp_path: Path, version: int) -> None:
    body = "Introduction\nBoats float [1] [2]. Oars too [9].\nNothing is cited here."
    text = f"{TITLE}\n{body}\nB1 Boats. B2 Oars. B9 Unknown."

    def span(part: str, within: str = text, **attributes: object) -> dict[str, object]:
        start = within.index(part)
        return {"start": start, "end": start + len(part), "attributes": attributes}

    listed = [
        span("B1 Boats.", id="b1", matched_paper_id=2),
        span("B2 Oars.", id="b2", matched_paper_id=3),
        span("B9 Unknown.", id="b9"),
    ]
    cited = [span("[1]", ref_id="b1"), span("[2]", ref_id="b2"), span("[9]", ref_id="b9")]
    paragraphs = [span("Boats float [1] [2]. Oars too [9]."), span("Nothing is cited here.")]
    ids = {"corpusid": 1, "externalids": {"doi": "10.1234/River"}}
    if version == 1:
        annotations = {
            "title": [span(TITLE)],
            "sectionheader": [span("Introduction")],
            "paragraph": paragraphs,
            "bibref": cited,
            "bibentry": listed,
            "abstract": None,
        }
        record = {
            **ids,
            "content": {"text": text, "annotations": {k: v and json.dumps(v) for k, v in annotations.items()}},
        }
    else:
        annotations = {"section_header": [span("Introduction")], "paragraph": paragraphs, "bib_ref": cited}
        record = {
            **ids,
            "title": TITLE,
            "authors": [{"name": "Ada Brook"}],
            "body": {"text": text, "annotations": {k: json.dumps(v) for k, v in annotations.items()}},
            "bibliography": {"text": text, "annotations": {"bib_entry": json.dumps(listed)}},
        }
    folder = tmp_path / "s2orc"
    folder.mkdir()
    lines(folder / "s2orc-000.jsonl.gz", record, {"corpusid": 5, "content": {"text": "", "annotations": {}}})
    found, rejects = load(folder, "s2orc")
    river = publication(found["doi:10.1234/river"])
    assert river.title == TITLE
    assert river.reference_ids == ("s2:2", "s2:3")
    [passage] = river.passages
    assert (passage.text, passage.section) == ("Boats float [1] [2]. Oars too OTHERCIT.", "Introduction")
    assert river.contexts()["s2:2"] == ("Boats float TARGETCIT OTHERCIT. Oars too OTHERCIT.",)
    assert {marker.group for marker in passage.markers} == {1}
    assert [each["reason"] for each in rejects] == ["title is missing"]


def test_unarxive_reads_dates_names_and_linked_entries(tmp_path: Path) -> None:
    cite = "{{cite:aa}}"
    text = f"Boats float {cite}, oars row {{{{cite:bb}}}}.\n"
    record = {
        "paper_id": "1901.00001",
        "_source_hash": "x",
        "metadata": {
            "title": TITLE,
            "doi": "10.1234/River",
            "abstract": "Ours.",
            "journal-ref": "Streams 3",
            "update_date": "2020-01-01",
            "authors_parsed": [["Brook", "Ada", ""], ["Quay", "Bo", "Jr."]],
            "versions": [
                {"version": "v1", "created": "Tue, 1 Jan 2019 19:18:42 GMT"},
                {"version": "v2", "created": ""},
            ],
        },
        "discipline": "Computer Science",
        "abstract": {"section": "Abstract", "text": "We parse rivers."},
        "body_text": [
            {
                "section": "Introduction",
                "sec_number": "1",
                "sec_type": "section",
                "content_type": "paragraph",
                "text": text,
                "cite_spans": [
                    {"start": 12, "end": 12 + len(cite), "text": cite, "ref_id": "aa"},
                    {"start": text.index("{{cite:bb"), "end": len(text) - 2, "text": "", "ref_id": "bb"},
                ],
                "ref_spans": [],
            },
            {"section": "Listing", "content_type": "listing", "text": "code", "cite_spans": [], "ref_spans": []},
        ],
        "bib_entries": {
            "aa": {
                "bib_entry_raw": "Quay, Boats.",
                "ids": {"open_alex_id": "https://openalex.org/W22", "doi": ""},
                "contained_arXiv_ids": [],
            },
            "bb": {
                "bib_entry_raw": "Oars.",
                "ids": {},
                "contained_arXiv_ids": [{"id": "1705.00003v2"}],
                "contained_links": [],
            },
        },
    }
    folder = tmp_path / "unarxive"
    folder.mkdir()
    lines(folder / "arXiv_src_1901_001.jsonl", record, {"paper_id": "no id", "metadata": {"title": "t"}})
    found, rejects = load(folder, "unarxive")
    river = publication(found["doi:10.1234/river"])
    assert (river.authors, river.revision) == (("Ada Brook", "Bo Quay"), 2)
    assert (river.published, river.abstract) == (PartialDate(2019, 1, 1), "We parse rivers.")
    assert river.contexts() == {
        "arxiv:1705.00003": ("Boats float OTHERCIT, oars row TARGETCIT.",),
        "openalex:W22": ("Boats float TARGETCIT, oars row OTHERCIT.",),
    }
    assert [each["reason"] for each in rejects] == ["paper_id is 'no id', which is no arXiv id"]


def test_openalex_abstracts_references_and_retractions(tmp_path: Path) -> None:
    folder = tmp_path / "openalex" / "updated_date=2024-01-02"
    folder.mkdir(parents=True)
    lines(
        folder / "part_000.gz",
        {
            "id": "https://openalex.org/W1",
            "doi": "https://doi.org/10.1234/River",
            "title": TITLE,
            "ids": {"openalex": "https://openalex.org/W1", "pmid": "https://pubmed.ncbi.nlm.nih.gov/77"},
            "publication_date": "2019-01-02",
            "publication_year": 2019,
            "updated_date": "2024-01-02T03:04:05.6",
            "authorships": [{"author": {"display_name": "Ada Brook"}}],
            "primary_location": {"source": {"display_name": "Streams"}},
            "referenced_works": ["https://openalex.org/W2", "https://openalex.org/W3"],
            "abstract_inverted_index": {"We": [0], "rivers.": [2], "parse": [1]},
            "is_retracted": False,
        },
        {
            "id": "https://openalex.org/W2",
            "doi": "https://doi.org/10.1234/boats",
            "title": "Boats",
            "referenced_works": [],
        },
        {"id": "https://openalex.org/W4", "title": "Withdrawn", "is_retracted": True, "updated_date": "2024-01-02"},
        {"id": "https://openalex.org/A1", "title": "An author"},
    )
    found, rejects = load(tmp_path / "openalex", "openalex")
    river = publication(found["doi:10.1234/river"])
    assert (river.abstract, river.venue, river.authors) == ("We parse rivers.", "Streams", ("Ada Brook",))
    assert river.reference_ids == ("doi:10.1234/boats", "openalex:W3")
    assert isinstance(found["openalex:W4"], Retraction)
    assert river.revision == PartialDate(2024, 1, 2).first_day()
    assert [each["reason"] for each in rejects] == ["id is 'https://openalex.org/A1', which is no work of OpenAlex"]


TEI = f"""<?xml version="1.0" encoding="UTF-8"?>
<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader xml:lang="en">
<fileDesc><titleStmt><title level="a" type="main">{TITLE}</title></titleStmt>
<publicationStmt><publisher/><date type="published" when="2019-01-02">2 January 2019</date></publicationStmt>
<sourceDesc><biblStruct><analytic><author><persName><forename type="first">Ada</forename>
<surname>Brook</surname></persName></author></analytic>
<monogr><title level="j">Streams</title><imprint><date when="2019"/></imprint></monogr>
<idno type="DOI">10.1234/River</idno></biblStruct></sourceDesc></fileDesc>
<profileDesc><abstract><div><p>We parse rivers.</p></div></abstract></profileDesc></teiHeader>
<text xml:lang="en"><body><div><head n="1">Introduction</head>
<p>Boats float <ref type="bibr" target="#b0">[1,</ref> <ref type="bibr" target="#b1">2]</ref> as in
<ref type="figure" target="#f0">1</ref>,
<hi>not</hi> <ref type="bibr">(Unlinked, 2001)</ref>.</p><p>Nothing is cited here.</p></div></body>
<back><div type="references"><listBibl>
<biblStruct xml:id="b0"><analytic><title level="a">Boats that float on shallow rivers</title></analytic>
<monogr><title>Streams</title></monogr></biblStruct>
<biblStruct xml:id="b1"><analytic><title>Oars</title><idno type="arXiv">arXiv:1705.00003[cs.CL]</idno>
</analytic></biblStruct>
</listBibl></div></back></text></TEI>"""


def test_tei_finds_papers_by_title_or_identifier(tmp_path: Path) -> None:
    folder = tmp_path / "tei"
    folder.mkdir()
    (folder / "river.grobid.tei.xml").write_text(TEI)
    boats = (
        TEI.replace(TITLE, "Boats That Float, on Shallow Rivers")
        .replace("10.1234/River", "10.1234/boats")
        .split("<text")[0]
    )
    (folder / "boats.tei.xml").write_text(boats + "</TEI>")
    (folder / "broken.tei.xml").write_text(TEI[:300])
    (folder / "bomb.tei.xml").write_text('<!DOCTYPE t [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;">]>' + TEI[40:])
    (folder / "deep.tei.xml").write_text("<a>" * 5000 + "</a>" * 5000)
    found, rejects = load(folder, "tei")
    river = publication(found["doi:10.1234/river"])
    assert (river.authors, river.venue, river.published) == (("Ada Brook",), "Streams", PartialDate(2019, 1, 2))
    assert river.abstract == "We parse rivers."
    [passage] = river.passages
    assert passage.section == "Introduction"
    assert [(passage.text[m.offset : m.offset + m.length], m.reference_ids, m.group) for m in passage.markers] == [
        ("[1,", ("doi:10.1234/boats",), 1),
        ("2]", ("arxiv:1705.00003",), 1),
    ]
    assert {each["file"] for each in rejects} == {"broken.tei.xml", "bomb.tei.xml", "deep.tei.xml"}
    reasons = {each["file"]: each["reason"] for each in rejects}
    assert "not XML" in reasons["broken.tei.xml"]
    assert "entities" in reasons["bomb.tei.xml"]
    assert "deep" in reasons["deep.tei.xml"]


JATS = f"""<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS (Z39.96) v1.2//EN" "JATS-archivearticle1.dtd">
<article xmlns:xlink="http://www.w3.org/1999/xlink" article-type="research-article"><front>
<journal-meta><journal-title-group><journal-title>Streams</journal-title></journal-title-group></journal-meta>
<article-meta><article-id pub-id-type="pmid">77</article-id><article-id pub-id-type="doi">10.1234/River</article-id>
<title-group><article-title>{TITLE}</article-title></title-group>
<contrib-group><contrib contrib-type="author"><name><surname>Brook</surname><given-names>Ada</given-names>
</name></contrib>
<contrib contrib-type="editor"><name><surname>Quay</surname></name></contrib></contrib-group>
<pub-date pub-type="epub"><day>2</day><month>1</month><year>2019</year></pub-date><pub-date pub-type="ppub">
<year>2020</year></pub-date>
<abstract><p>We parse rivers.</p></abstract><abstract abstract-type="graphical"><p>A picture.</p></abstract>
</article-meta></front>
<body><p>Preface <xref ref-type="bibr" rid="r1">1</xref>.</p><sec><title>Methods</title>
<p>Boats float [<xref ref-type="bibr" rid="r1">1</xref>,
<xref ref-type="bibr" rid="r2 r3">2–3</xref>].<fig><caption><p>A boat.</p></caption></fig></p></sec></body>
<back><ref-list><ref id="r1"><element-citation><article-title>Boats</article-title>
<pub-id pub-id-type="doi">10.1234/boats</pub-id></element-citation></ref>
<ref id="r2"><mixed-citation>Oars. <pub-id pub-id-type="pmid">88</pub-id></mixed-citation></ref>
<ref id="r3"><mixed-citation>Sails, doi:10.1234/sails.</mixed-citation></ref></ref-list></back></article>"""


def test_jats_reads_nested_sections_and_ranges(tmp_path: Path) -> None:
    folder = tmp_path / "jats"
    folder.mkdir()
    (folder / "PMC1.nxml").write_text(JATS)
    (folder / "retracted.nxml").write_text(
        JATS.replace("research-article", "retracted-article").replace("River", "gone").replace(">77<", ">78<")
    )
    (folder / "other.xml").write_text("<html/>")
    found, rejects = load(folder, "jats")
    river = publication(found["doi:10.1234/river"])
    assert (river.authors, river.venue, river.published) == (("Ada Brook",), "Streams", PartialDate(2019, 1, 2))
    assert river.abstract == "We parse rivers."
    assert river.reference_ids == ("doi:10.1234/boats", "doi:10.1234/sails", "pmid:88")
    assert [passage.section for passage in river.passages] == ["", "Methods"]
    methods = river.passages[1]
    assert [m.reference_ids for m in methods.markers] == [("doi:10.1234/boats",), ("pmid:88", "doi:10.1234/sails")]
    assert {m.group for m in methods.markers} == {1}
    assert isinstance(found["doi:10.1234/gone"], Retraction)
    assert [(each["file"], each["reason"]) for each in rejects] == [("other.xml", "expected article, found html")]


def test_a_killed_load_goes_on_behind_what_was_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "s2ag"
    folder.mkdir()
    s2ag(folder)
    first = corpus(folder, "s2ag")
    first.spill(lambda: None)
    one = next(iter(first.publications()))
    first.loaded(one.number, [Reject("papers-000.jsonl.gz", 1, "refused")])
    first.close(forget=False)
    second = corpus(folder, "s2ag")
    assert second.ready
    assert len(list(second.publications())) == 2
    second.close(forget=True)


def test_a_changed_file_is_a_new_revision_and_references_find_what_came_before(tmp_path: Path) -> None:
    folder = tmp_path / "tei"
    folder.mkdir()
    (folder / "river.tei.xml").write_text(TEI)
    joined = corpus(folder, "tei")
    joined.spill(lambda: None)
    [first] = joined.publications()
    joined.loaded(first.number, [])
    assert joined.ready

    boats = TEI.replace(TITLE, "Boats that float on shallow rivers").replace("10.1234/River", "10.1234/boats")
    (folder / "boats.tei.xml").write_text(boats)
    (folder / "river.tei.xml").write_text(TEI.replace("Nothing is cited", "Nothing at all is cited"))
    os.utime(folder / "river.tei.xml", (first.event.body.revision + 100,) * 2)
    joined.spill(lambda: None)
    new = {loadable.event.body.paper_id: publication(loadable.event.body) for loadable in joined.publications()}
    assert set(new) == {"doi:10.1234/boats", "doi:10.1234/river"}
    assert new["doi:10.1234/river"].revision == first.event.body.revision + 100
    assert "doi:10.1234/boats" in new["doi:10.1234/river"].reference_ids
    joined.close(forget=True)


def test_a_file_that_is_cut_off_gives_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "openalex"
    folder.mkdir()
    lines(folder / "part.gz", *({"id": f"https://openalex.org/W{n}", "title": f"Paper {n}" * 50} for n in range(2000)))
    content = (folder / "part.gz").read_bytes()
    (folder / "part.gz").write_bytes(content[: len(content) // 2])
    found, rejects = load(folder, "openalex")
    assert 0 < len(found) < 2000
    assert "ended before the end-of-stream marker" in rejects[-1]["reason"]


def test_a_title_of_several_papers_finds_none(tmp_path: Path) -> None:
    folder = tmp_path / "tei"
    folder.mkdir()
    (folder / "river.tei.xml").write_text(TEI)
    for number in (1, 2):
        same = TEI.replace(TITLE, "Boats that float on shallow rivers").replace(
            "10.1234/River", f"10.1234/boats{number}"
        )
        (folder / f"boats{number}.tei.xml").write_text(same)
    found, _ = load(folder, "tei")
    assert publication(found["doi:10.1234/river"]).reference_ids == ("arxiv:1705.00003",)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("As shown by Quay (2018), boats float.", "As shown by TARGETCIT, boats float."),
        ("Boats float [12].", "Boats float TARGETCIT."),
        ("Boats (Quay et al., 2018) and oars (Rower, 2018) move.", "Boats TARGETCIT and oars OTHERCIT move."),
        ("Boats (A, 1999; B, 2018; C, 2001) move.", "Boats TARGETCIT move."),
        ("Boats move on rivers.", "Boats move on rivers TARGETCIT."),
        ("Some [1] and others [2] float", "Some OTHERCIT and others OTHERCIT float TARGETCIT"),
        ("TARGETCIT is a word here [3].", "is a word here TARGETCIT."),
    ],
)
def test_a_sentence_without_a_marker_gets_one(sentence: str, expected: str) -> None:
    assert masked(sentence, ["Quay"], 2018) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (identifiers.doi("https://doi.org/10.1000/ABC.1."), "doi:10.1000/abc.1"),
        (identifiers.doi("10.48550/arXiv.2101.00001v3"), "arxiv:2101.00001"),
        (identifiers.arxiv("arXiv:cs/0501001v2"), "arxiv:cs/0501001"),
        (identifiers.arxiv("https://arxiv.org/abs/2101.00001"), "arxiv:2101.00001"),
        (identifiers.openalex("https://openalex.org/w12"), "openalex:W12"),
        (identifiers.numbered("pmc", "PMC123"), "pmc:123"),
    ],
)
def test_identifiers_have_one_spelling(found: tuple[identifiers.Name, ...], expected: str) -> None:
    assert [str(name) for name in found] == [expected]
