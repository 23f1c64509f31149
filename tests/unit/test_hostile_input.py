"""Inputs that fuzzing found: each once broke a parser, or kept it busy without end."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import zipfile
from pathlib import Path

import docx
import pytest

from citewell.commands.publish import _request
from citewell.corpora.readers import Malformed, Reject, read_papers, read_splits
from citewell.ingestion.settings import IngestionSettings
from citewell.manuscripts.drafts import Format, UnreadableDraft, read_files, read_text
from citewell.runtime.errors import InvalidField
from citewell.runtime.settings import UnknownSetting, read_settings
from citewell.types.messages import filter_from_message
from citewell.types.v1 import paper_pb2

DEEP = b"[" * 100_000


def test_broken_latex_groups_do_not_keep_the_reader_busy() -> None:
    text = r"\documentclass{article}" + r"\newcommand{\m" * 12 + r"\begin{a\caption{" * 12 + r"\cite{}"
    draft = read_text(text, Format.LATEX)
    assert any("reading would not end" in problem.message for problem in draft.problems)


def test_deeply_nested_latex_commands_are_reported() -> None:
    draft = read_text(r"\input{" * 190 + "}" * 190, Format.LATEX)
    assert any("nested too deeply" in problem.message for problem in draft.problems)


@pytest.mark.parametrize("name", ["draft.zip", "draft.docx"])
def test_damaged_archives_are_refused(name: str) -> None:
    written = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(written, "w") as archive:
            archive.writestr("main.tex", "\\cite{}")
    else:
        docx.Document().save(written)
    whole = written.getvalue()
    read_files({name: whole})
    damaged = [whole[:at] + whole[at + 5 :] for at in range(0, len(whole), max(1, len(whole) // 200))]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(min(len(whole), 400))]
    for data in damaged:
        with contextlib.suppress(UnreadableDraft):
            read_files({name: data})


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"x" + data, lambda data: data[:30] + b"\xff" * 9]
)
def test_a_damaged_gzip_file_is_one_reject(tmp_path: Path, damage: object) -> None:
    papers = b"".join(json.dumps({"paper_id": f"p{n}", "title": "T"}).encode() + b"\n" for n in range(50))
    (tmp_path / "papers.jsonl.gz").write_bytes(damage(gzip.compress(papers)))  # type: ignore[operator]
    rejects: list[Reject] = []
    list(read_papers(tmp_path, rejects.append))
    assert [each.reason.partition(":")[0] for each in rejects][-1:] == ["not gzip"]


@pytest.mark.parametrize("name", ["papers.jsonl", "papers.json"])
def test_deeply_nested_json_is_a_reject(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"a": ' + DEEP)
    rejects: list[Reject] = []
    assert list(read_papers(tmp_path, rejects.append)) == []
    assert len(rejects) == 1


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"train": 3}', b'{"train": [3]}', DEEP])
def test_splits_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "splits.json").write_bytes(content)
    with pytest.raises(Malformed, match=r"splits\.json"):
        list(read_splits(tmp_path, lambda _: None))


@pytest.mark.parametrize("line", [DEEP, b'{"publication": ' * 2000])
def test_deeply_nested_events_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        _request(line)


@pytest.mark.parametrize("value", ["{", '{"password": "x"', "[" * 100_000])
def test_a_group_of_settings_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CITEWELL_INGESTION__LOG", value)
    with pytest.raises(UnknownSetting, match="CITEWELL_INGESTION"):
        read_settings(IngestionSettings)


@pytest.mark.parametrize("year", [1, 5, 999, 10_000, 2**31 - 1])
def test_a_year_in_which_no_paper_appeared_is_a_bound_like_any_other(year: int) -> None:
    message = paper_pb2.SearchFilter(year_from=year, published_before=paper_pb2.PartialDate(year=2020))
    if year < 2020:
        assert filter_from_message(message).year_from == year
    else:
        with pytest.raises(InvalidField, match="after year_from"):
            filter_from_message(message)
