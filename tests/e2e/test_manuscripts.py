"""Whole manuscripts: results are streamed as they are ready, and unreadable places are reported by line."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from citewell.manuscripts.bibliography import to_bibtex
from citewell.manuscripts.drafts import read_files
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.papers import Paper
from tests.e2e.client import DEADLINE, Refusal
from tests.e2e.conftest import Running
from tests.e2e.test_commands import citewell


def _sentence(running: Running, number: int) -> str:
    return running.queries[number].query.context.replace("OTHERCIT", "others")


def _ask(running: Running, request: messages.RecommendManuscriptRequest) -> list[messages.RecommendManuscriptResponse]:
    return list(running.client.recommender.RecommendManuscript(request, timeout=DEADLINE))


def test_each_place_of_a_draft_is_answered_as_recommend_answers_it(running: Running) -> None:
    query = running.queries[0].query
    places = [_sentence(running, number).replace("TARGETCIT", "\\cite{?}") for number in range(3)]
    text = f"\\title{{{query.title}}}\n\\begin{{document}}\n" + "\n\n".join(places) + "\n\\end{document}\n"
    options = messages.Options(rerank=False, top_k=3)
    outline, *answers = _ask(running, messages.RecommendManuscriptRequest(text=text, options=options))
    assert (outline.outline.places, outline.outline.title) == (3, query.title)
    assert sorted(answer.place for answer in answers) == [0, 1, 2]
    for answer in answers:
        assert text[answer.offset : answer.offset + answer.length] == "\\cite{?}"
        alone = messages.Query(context=answer.context, title=query.title)
        expected = running.client.recommend(alone, options).items
        assert [item.paper.id for item in answer.result.response.items] == [item.paper.id for item in expected]


def test_what_the_draft_cites_is_never_recommended_there_and_told_elsewhere(running: Running) -> None:
    query = running.queries[0].query
    context = _sentence(running, 0)
    options = messages.Options(rerank=False, top_k=5)
    best = running.client.recommend(messages.Query(context=context, title=query.title), options).items[0].paper
    bib = to_bibtex([Paper(id=best.id, title=best.title)], ["best"]).encode()
    told = context.replace("TARGETCIT", "\\cite{%s}")
    draft = f"\\title{{{query.title}}}\\begin{{document}}{told % 'best, ?'}\n\n{told % '?'}\\end{{document}}".encode()
    files = [messages.ManuscriptFile(name="a.tex", content=draft), messages.ManuscriptFile(name="a.bib", content=bib)]
    _, *answers = _ask(running, messages.RecommendManuscriptRequest(files=files, options=options))
    own, other = sorted(answers, key=lambda answer: answer.place)
    assert list(own.own_keys) == ["best"]
    assert best.id not in {item.paper.id for item in own.result.response.items}
    assert [item.rank for item in own.result.response.items] == [1, 2, 3, 4, 5]
    assert {each.paper_id: list(each.keys) for each in other.cited_elsewhere}.get(best.id) == ["best"]


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        (messages.RecommendManuscriptRequest(), "text", "the draft as text, or as files"),
        (messages.RecommendManuscriptRequest(text="x" * 2_000_001), "text", "at most 2000000"),
        (
            messages.RecommendManuscriptRequest(files=[messages.ManuscriptFile(name="a.docx", content=b"no")]),
            "files['a.docx']",
            "no archive",
        ),
        (messages.RecommendManuscriptRequest(text="x [?]", format=99), "format", "99"),
    ],
)
def test_bad_drafts_name_the_field(
    running: Running, request_: messages.RecommendManuscriptRequest, field: str, says: str
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        _ask(running, request_)
    refusal = Refusal.of(error.value)
    assert (refusal.code, refusal.field) == ("INVALID_ARGUMENT", field)
    assert says in refusal.message


def test_a_caller_that_leaves_ends_the_work(running: Running) -> None:
    text = "\n\n".join(_sentence(running, 0).replace("TARGETCIT", "[?]") for _ in range(500))
    before = running.answered()
    stream = running.client.recommender.RecommendManuscript(
        messages.RecommendManuscriptRequest(text=text, options=messages.Options(rerank=False)), timeout=DEADLINE
    )
    assert next(stream).outline.places == 500
    assert next(stream).result.HasField("response")
    stream.cancel()
    assert 0 < running.answered_at_rest() - before < 400


def test_the_command_writes_a_draft_whose_places_are_cited(running: Running, tmp_path: Path) -> None:
    query = running.queries[0].query
    draft = tmp_path / "paper" / "draft.tex"
    draft.parent.mkdir()
    text = _sentence(running, 0).replace("TARGETCIT", "\\cite{?}").replace("_", "\\_").replace("&", "\\&")
    draft.write_text(
        f"\\documentclass{{article}}\n\\title{{{query.title}}}\n\\begin{{document}}\n\\maketitle\n{text}\n\n"
        "Known work is known \\cite{known}.\n\\bibliographystyle{plain}\n\\bibliography{refs}\n\\end{document}\n"
    )
    (draft.parent / "refs.bib").write_text("@misc{known, title={A known thing}, year={2001}}\n")
    out = tmp_path / "out"
    where = ["--address", running.stack.addresses["recommender"]]
    run = citewell(
        "manuscript", str(draft), *where, "--apply", str(out), "--no-rerank", "--csl", str(tmp_path / "all.json")
    )
    assert run.returncode == 0, run.stderr
    assert "1 places cited" in run.stdout
    assert (tmp_path / "all.json").exists()
    written = (out / "draft.tex").read_text()
    assert "\\cite{?}" not in written
    assert "\\bibliography{refs,citewell}" in written
    # The written draft has no open places. The old and the new bibliography together define every key.
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    again = read_files(files)
    assert not again.places
    assert not again.problems
    assert again.bibliography.entries.keys() >= {"known"}
