"""Writers' programs and writers' troubles: pdflatex, Neovim, drafts that are too much, browsers that go away."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from citewell.recommender.v1 import recommender_pb2 as messages
from tests.e2e.client import DEADLINE, Refusal
from tests.e2e.conftest import Running
from tests.e2e.test_commands import citewell
from tests.long_draft import long_draft
from tests.servers.missing import missing

pytestmark = pytest.mark.parametrize("running", ["embedded"], indirect=True)
NEOVIM = Path(__file__).with_name("neovim.lua")


def test_a_long_draft_compiles_with_what_was_chosen(running: Running, tmp_path: Path) -> None:
    for program in ("pdflatex", "bibtex"):
        if shutil.which(program) is None:
            missing(f"{program} is not installed: apt-get install texlive-latex-base")
    paper, out = tmp_path / "paper", tmp_path / "out"
    paper.mkdir()
    (paper / "draft.tex").write_text(long_draft(running.queries))
    (paper / "refs.bib").write_text("@misc{known, title={A known thing}, year={2001}}\n")
    address = running.stack.addresses["recommender"]
    run = citewell(
        "manuscript", str(paper / "draft.tex"), "--address", address, "--no-rerank", "-k", "1", "--apply", str(out)
    )
    assert run.returncode == 0, run.stderr
    assert "60 places cited" in run.stdout
    for program, *arguments in (
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "draft.tex"],
        ["bibtex", "draft"],
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "draft.tex"],
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "draft.tex"],
    ):
        made = subprocess.run([program, *arguments], cwd=out, capture_output=True, timeout=120)
        assert made.returncode == 0, made.stdout.decode(errors="replace")[-2000:]
    log = (out / "draft.log").read_text(errors="replace")
    assert "undefined" not in log.lower()
    pages = int(log.split("Output written on draft.pdf (")[1].split()[0])
    assert pages >= 20
    assert (out / "draft.bbl").read_text().count("\\bibitem") >= 10


def test_neovim_completes_a_citation(running: Running, tmp_path: Path) -> None:
    if shutil.which("nvim") is None:
        missing("Neovim is not installed: apt-get install neovim")
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{}")
    draft = tmp_path / "draft.tex"
    draft.write_text(f"\\begin{{document}}\n{context}\n\\end{{document}}\n")
    server = [sys.executable, "-m", "citewell.cli", "lsp", "--address", running.stack.addresses["recommender"]]
    told = {"CITEWELL_LSP": json.dumps([*server, "--timeout", "20"]), "CITEWELL_DRAFT": str(draft)}
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-u", "NONE", "-l", str(NEOVIM)]
        if _has_script_option()
        else ["nvim", "--headless", "--clean", "-u", "NONE", "-c", f"luafile {NEOVIM}", "-c", "qa!"],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=120,
    )
    answer = json.loads((done.stdout + done.stderr).strip().splitlines()[-1])
    assert answer["count"] == 8
    assert answer["label"]
    assert answer["detail"]


def _has_script_option() -> bool:
    told = subprocess.run(["nvim", "--help"], capture_output=True, text=True, timeout=60)
    return "  -l " in told.stdout


def _draft_in_json(running: Running, places: int) -> bytes:
    sentence = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "[?]")
    body = json.dumps({"text": "\n\n".join([sentence] * places), "options": {"rerank": False}}).encode()
    return struct.pack(">BI", 0, len(body)) + body


def test_a_browser_that_goes_away_ends_the_work(running: Running) -> None:
    running.client.recommend(running.queries[0].query, messages.Options(rerank=False))
    before = running.answered()
    connection = http.client.HTTPConnection("127.0.0.1", running.stack.ports["http"], timeout=60)
    headers = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
    path = "/citewell.recommender.v1.RecommenderService/RecommendManuscript"
    connection.request("POST", path, _draft_in_json(running, 500), headers)
    assert connection.getresponse().read(2000)  # the outline and a part of the first answers
    connection.close()
    assert 0 < running.answered_at_rest() - before < 400


def test_of_two_thousand_places_the_first_are_answered_and_the_others_counted(running: Running) -> None:
    stream = running.client.recommender.RecommendManuscript(
        messages.RecommendManuscriptRequest(text="A claim [?]. " * 2000, options=messages.Options(rerank=False)),
        timeout=DEADLINE,
    )
    outline = next(stream).outline
    stream.cancel()
    assert (outline.places, outline.places_left_out) == (500, 1500)


def test_a_draft_of_ten_megabytes_is_refused_by_its_size(running: Running) -> None:
    request = messages.RecommendManuscriptRequest(text="x" * 10_000_000)
    with pytest.raises(grpc.RpcError) as error:
        list(running.client.recommender.RecommendManuscript(request, timeout=DEADLINE))
    refusal = Refusal.of(error.value)
    assert (refusal.code, refusal.field) == ("INVALID_ARGUMENT", "text")
    connection = http.client.HTTPConnection("127.0.0.1", running.stack.ports["http"], timeout=60)
    body = json.dumps({"text": "x" * 10_000_000}).encode()
    path = "/citewell.recommender.v1.RecommenderService/RecommendManuscript"
    headers = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
    connection.request("POST", path, struct.pack(">BI", 0, len(body)) + body, headers)
    assert b"resource_exhausted" in connection.getresponse().read()
    connection.close()
