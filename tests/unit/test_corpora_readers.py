"""Both formats give the same data set, unusable entries are reported and the rest is read, and files are streamed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.corpora import readers
from citewell.corpora.readers import Reject, read_contexts, read_papers, read_splits
from citewell.lab.dataset import read_dataset
from citewell.scholarly.dates import PartialDate
from tests.lab_sets import invented, write_lines, write_public


@pytest.mark.parametrize("indent", [None, 2])
def test_both_formats_give_the_same_columns(tmp_path: Path, indent: int | None) -> None:
    papers, contexts, splits = invented()
    lines = read_dataset(write_lines(tmp_path / "lines", papers, contexts, splits))
    public = read_dataset(write_public(tmp_path / "public", papers, contexts, splits, indent))
    assert lines.rejects == public.rejects == ()
    assert len(lines.papers) == len(papers)
    assert len(lines.contexts) == len(contexts)
    for one, other in ((lines.papers, public.papers), (lines.contexts, public.contexts)):
        for column in (
            "ids",
            "titles",
            "abstracts",
            "texts",
            "year",
            "first_day",
            "last_day",
            "citing",
            "cited",
            "split",
        ):
            if hasattr(one, column):
                assert list(getattr(one, column)) == list(getattr(other, column)), column
    assert {k: v.tolist() for k, v in lines.split_papers.items()} == {
        k: v.tolist() for k, v in public.split_papers.items()
    }


def test_unusable_lines_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    papers, contexts, splits = invented(12)
    write_lines(tmp_path, papers, contexts, splits)
    (tmp_path / "papers.jsonl.gz").unlink()
    bad = [
        '{"id": "x1", "title": "cut off',
        '["a", "list"]',
        '{"id": "x2", "title": "  "}',
        '{"id": "", "title": "no id"}',
        '{"id": "x3", "title": "when?", "year": "soon"}',
        '{"id": "x4", "title": 7}',
    ]
    lines = [json.dumps(papers[0]), *bad, "", json.dumps(papers[1])]
    (tmp_path / "papers.jsonl").write_text("\n".join(lines))
    rejects: list[Reject] = []
    read = list(read_papers(tmp_path, rejects.append))
    assert [(record.id, record.line) for record in read] == [(papers[0]["id"], 1), (papers[1]["id"], 9)]
    assert [(reject.file, reject.line) for reject in rejects] == [("papers.jsonl", line) for line in range(2, 8)]
    for reject, reason in zip(rejects, ("not JSON", "object", "title", "id", "soon", "string"), strict=True):
        assert reason in reject.reason


HALVES = '"the \\ud835 half, \\uD83D\\uDE00 whole"'
MENDED = "the \ufffd half, \U0001f600 whole"


@pytest.mark.parametrize("keyed", [False, True])
def test_half_a_character_is_replaced_and_nothing_is_lost(tmp_path: Path, keyed: bool) -> None:
    if keyed:
        (tmp_path / "papers.json").write_text(f'{{"a": {{"title": {HALVES}, "abstract": {HALVES}}}}}')
    else:
        raw = HALVES.encode().replace(b"\\ud835", b"\xed\xa0\xb5")  # written by a program that does not know UTF-8
        (tmp_path / "papers.jsonl").write_bytes(b'{"id": "a", "title": %s, "abstract": %s}' % (raw, HALVES.encode()))
    [paper] = read_papers(tmp_path, pytest.fail)
    assert (paper.id, paper.title, paper.abstract) == ("a", MENDED, MENDED)


def test_numbers_that_no_event_can_hold_are_left_out(tmp_path: Path) -> None:
    papers = [{"id": "a", "title": "t", "revision": 2**63}, {"id": "b", "title": "t", "revision": 2**63 - 1}]
    context = {"citing_id": "b", "cited_id": "c", "text": "see TARGETCIT"}
    contexts = [{"id": "1", "group": 2**31, **context}, {"id": "2", "group": 2, **context}]
    for name, records in (("papers", papers), ("contexts", contexts)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    rejects: list[Reject] = []
    assert [paper.id for paper in read_papers(tmp_path, rejects.append)] == ["b"]
    assert [context.id for context in read_contexts(tmp_path, rejects.append)] == ["2"]
    assert [reject.file for reject in rejects] == ["papers.jsonl", "contexts.jsonl"]


def test_a_context_needs_exactly_one_marker(tmp_path: Path) -> None:
    texts = {
        "none": "no marker",
        "two": "TARGETCIT and TARGETCIT",
        "one": "see TARGETCIT",
        "glued": "aTARGETCITb OTHERCITs",
    }
    members = {name: {"masked_text": text, "citing_id": "a", "refid": "b"} for name, text in texts.items()}
    (tmp_path / "contexts.json").write_text(json.dumps(members))
    rejects: list[Reject] = []
    read = {record.id: record.text for record in read_contexts(tmp_path, rejects.append)}
    assert read == {"one": "see TARGETCIT", "glued": "a TARGETCIT b OTHERCIT s"}
    assert [reject.reason for reject in rejects] == [
        "a context needs exactly one TARGETCIT, found 0",
        "a context needs exactly one TARGETCIT, found 2",
    ]


def test_dates_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    records = [
        {"id": "a", "title": "t", "year": 1999},
        {"id": "b", "title": "t", "published": "2001-02"},
        {"id": "c", "title": "t"},
    ]
    (tmp_path / "papers.jsonl").write_text("\n".join(map(json.dumps, records)))
    dates = [record.published for record in read_papers(tmp_path, pytest.fail)]
    assert dates == [PartialDate(1999), PartialDate(2001, 2), PartialDate()]


def test_where_a_json_object_breaks_off_the_members_before_are_kept(tmp_path: Path) -> None:
    (tmp_path / "papers.json").write_text('{\n"a": {"title": "one"},\n"b": {"title": "two"},\n"c": {"title": ')
    rejects: list[Reject] = []
    assert [record.id for record in read_papers(tmp_path, rejects.append)] == ["a", "b"]
    assert [(reject.file, reject.line) for reject in rejects] == [("papers.json", 4)]
    assert "rest of the file" in rejects[0].reason


def test_contexts_of_unknown_papers_are_left_out(tmp_path: Path) -> None:
    papers, contexts, splits = invented(12)
    contexts[0]["cited_id"] = "nobody"
    splits["test"].append("nobody")
    data = read_dataset(write_lines(tmp_path, papers, contexts, splits))
    assert len(data.contexts) == len(contexts) - 1
    assert [reject.reason for reject in data.rejects] == [
        "no paper has the id 'nobody'",
        "test names 'nobody', which was not read",
    ]


def test_two_papers_of_one_id_are_an_error(tmp_path: Path) -> None:
    papers, contexts, splits = invented(12)
    with pytest.raises(ValueError, match="'p000' stands for two papers"):
        read_dataset(write_lines(tmp_path, [*papers, papers[0]], contexts, splits))


def test_a_folder_without_a_data_set_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"papers\.jsonl"):
        list(read_papers(tmp_path, pytest.fail))
    with pytest.raises(FileNotFoundError, match=r"train\.json"):
        list(read_splits(tmp_path, pytest.fail))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    members=st.dictionaries(st.text(min_size=1), JSON, max_size=6) | st.lists(JSON, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    chunk=st.integers(1, 40),
    escape=st.booleans(),
)
def test_streamed_members_are_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, members: object, indent: int | None, chunk: int, escape: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(json.dumps(members, indent=indent, ensure_ascii=escape), encoding="utf-8", errors="surrogatepass")
    expected = json.loads(path.read_bytes().decode("utf-8", "replace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_CHUNK", chunk)  # so that every token is cut by some buffer boundary
        streamed = [(key, value) for _, key, value in readers._json_members(path, pytest.fail)]
    assert streamed == (list(expected.items()) if isinstance(expected, dict) else [(None, item) for item in expected])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(contexts: int) -> int:
        member = '"c%d": {"masked_text": "some words around TARGETCIT %s", "citing_id": "a", "refid": "b"}'
        (tmp_path / "contexts.json").write_text("{" + ",".join(member % (n, "x" * 200) for n in range(contexts)) + "}")
        tracemalloc.start()
        count = sum(1 for _ in read_contexts(tmp_path, pytest.fail))
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == contexts
        return highest

    assert peak(60_000) < 1.5 * peak(15_000)
