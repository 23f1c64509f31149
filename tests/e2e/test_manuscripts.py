"""Whole manuscripts: results are streamed as they are ready, and unreadable places are reported by line."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_draft_is_cited_again_beside_whatever_lies_in_its_folder(running: Running, tmp_path: Path) -> None:
    paper = tmp_path / "paper"
    (paper / "folder.tex").mkdir(parents=True)
    (paper / ".#draft.tex").symlink_to("user@host.1:1")  # Emacs's lock of a file that is edited
    (paper / "other.tex").write_text("Another draft \\cite{lost}, with } an error.\n" + "% much text\n" * 200_000)
    (paper / "refs.bib").write_text("@misc{known, title={A known thing}, year={2001}}\n")
    draft = "\\documentclass{article}\n\\usepackage[latin1]{inputenc}\n\\title{Müller}\n\\begin{document}\n"
    draft += "Für " + _sentence(running, 0).replace("TARGETCIT", "\\cite{?}")
    draft += "\n\\bibliography{refs}\n\\end{document}\n"
    (paper / "draft.tex").write_bytes(draft.encode("latin-1"))
    arguments = ["--address", running.stack.addresses["recommender"], "--no-rerank", "--top-k", "1", "--apply"]

    first = citewell("manuscript", str(paper / "draft.tex"), *arguments, str(paper / "first"))
    assert first.returncode == 0, first.stderr
    written = (paper / "first" / "draft.tex").read_bytes().decode("latin-1")
    assert "\\title{Müller}" in written
    assert sorted(path.name for path in (paper / "first").iterdir()) == ["citewell.bib", "draft.tex", "refs.bib"]

    more = _sentence(running, 1).replace("TARGETCIT", "[?]")
    again = written.replace("\\bibliography", f"{more}\n\\bibliography")
    (paper / "first" / "draft.tex").write_bytes(again.encode("latin-1"))
    second = citewell("manuscript", str(paper / "first" / "draft.tex"), *arguments, str(paper / "second"))
    assert second.returncode == 0, second.stderr
    files = {path.name: path.read_bytes() for path in (paper / "second").iterdir()}
    assert files["draft.tex"].count(b"citewell") == 1
    read = read_files(files)
    assert not read.places  # both bibliographies have the papers of both runs
    assert len(read.bibliography.entries) in (2, 3)  # two places may have the same best paper


def test_a_folder_in_place_of_a_draft_and_two_bibliographies_of_one_name_are_named(tmp_path: Path) -> None:
    folder = citewell("manuscript", str(tmp_path))
    assert folder.returncode == 2
    assert "is a directory" in " ".join(folder.stderr.replace("│", " ").split())
    for name in ("draft.md", "a/refs.bib", "b/refs.bib"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    bibs = [argument for name in "ab" for argument in ("--bib", str(tmp_path / name / "refs.bib"))]
    twice = citewell("manuscript", str(tmp_path / "draft.md"), *bibs)
    assert (twice.returncode, "--bib" in twice.stderr) == (2, True)


def test_a_paragraph_in_latin_1_is_read(running: Running) -> None:
    arguments = ["--address", running.stack.addresses["recommender"], "--no-rerank", "--title", b"M\xfcller"]
    for text, given in (("-", b"F\xfcr Parser TARGETCIT gilt das."), (b"F\xfcr Parser TARGETCIT gilt das.", b"")):
        run = subprocess.run(
            [sys.executable, "-m", "citewell.cli", "recommend", text, *arguments], input=given, capture_output=True
        )
        assert run.returncode == 0, run.stderr
