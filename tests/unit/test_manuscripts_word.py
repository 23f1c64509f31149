"""Word documents: every part has its places, deleted text has none, and one that unfolds is refused."""

from __future__ import annotations

import io

import docx
import pytest
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml.ns import nsdecls

from citewell.manuscripts.drafts import UnreadableDraft, read_files
from tests.unit.word_files import word_file

ENTITIES = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
    f"<!ENTITY {chr(98 + n)} '{f'&{chr(97 + n)};' * 10}'>" for n in range(9)
) + "]>"  # fmt: skip


@pytest.mark.parametrize(
    ("body", "declared", "says"),
    [
        ("<w:p/>" * 60_000, "", "more than 50000 paragraphs"),
        ("<w:p/>" * 2_000_000, "", "bytes of XML"),
        ("<w:p><w:r><w:t>&j;</w:t></w:r></w:p>", ENTITIES, "no Word document"),
        ("<w:p>" * 10_000 + "</w:p>" * 10_000, "", "no Word document"),
        (f"<w:p><w:r><w:t>{'x' * 2_000_001}</w:t></w:r></w:p>", "", "characters of text"),
    ],
)
def test_a_word_document_that_unfolds_is_refused(body: str, declared: str, says: str) -> None:
    with pytest.raises(UnreadableDraft, match=says):
        read_files({"draft.docx": word_file(body, declared)})


def test_word() -> None:
    document = docx.Document()
    document.add_heading("A title", 0)
    document.add_paragraph("Abstract")
    document.add_paragraph("We parse.")
    document.add_paragraph("Parsers are good [CITATION].")
    written = io.BytesIO()
    document.save(written)
    draft = read_files({"draft.docx": written.getvalue()})
    assert (draft.title, draft.abstract) == ("A title", "We parse.")
    assert [(place.line, place.column) for place in draft.places] == [(4, 18)]


def test_every_part_of_a_word_document_has_places() -> None:
    document = docx.Document()
    document.add_paragraph("Before [?].")
    table = document.add_table(1, 2)
    table.cell(0, 0).text = "In a table [?]."
    table.cell(0, 1).add_table(1, 1).cell(0, 0).text = "In a table within one [?]."
    document.add_paragraph("After [?].")
    written = io.BytesIO()
    document.save(written)
    draft = read_files({"draft.docx": written.getvalue()})
    assert [place.line for place in draft.places] == [1, 2, 4, 6]
    assert "In a table within one TARGETCIT" in draft.places[2].context


BOX = "<w:txbxContent><w:p><w:r><w:t>In a box [?].</w:t></w:r></w:p></w:txbxContent>"


COMPATIBLE = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'


@pytest.mark.parametrize(
    ("body", "context"),
    [
        (
            "<w:p><w:r><w:t>Trees </w:t></w:r><w:ins><w:r><w:t>grow [?]</w:t></w:r></w:ins>"
            "<w:del><w:r><w:delText> [?]</w:delText><w:t> [?]</w:t></w:r></w:del><w:r><w:t>.</w:t></w:r></w:p>",
            "Trees grow TARGETCIT .",
        ),
        (
            "<w:sdt><w:sdtContent><w:p><w:r><w:t>Controlled [?].</w:t></w:r></w:p></w:sdtContent></w:sdt>",
            "Controlled TARGETCIT .",
        ),
        (
            f"<w:p><w:r><w:t>Outside. </w:t><mc:AlternateContent {COMPATIBLE}><mc:Choice>{BOX}</mc:Choice>"
            f"<mc:Fallback>{BOX}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
            "Outside. In a box TARGETCIT .",
        ),
    ],
)
def test_text_in_any_wrapping_is_read_once_and_deleted_text_not(body: str, context: str) -> None:
    draft = read_files({"draft.docx": word_file(body)})
    assert [place.context for place in draft.places] == [context]


def test_footnotes_of_a_word_document_are_read_behind_its_text() -> None:
    document = docx.Document()
    document.add_paragraph("A text [?].")
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    note = "<w:footnote><w:p><w:r><w:t>A note [?].</w:t></w:r></w:p></w:footnote>"
    notes = f"<w:footnotes {nsdecls('w')}>{note}</w:footnotes>"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), document.part.package)
    document.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    written = io.BytesIO()
    document.save(written)
    draft = read_files({"draft.docx": written.getvalue()})
    assert [place.line for place in draft.places] == [1, 2]
    assert draft.places[1].context == "A text OTHERCIT . A note TARGETCIT ."
