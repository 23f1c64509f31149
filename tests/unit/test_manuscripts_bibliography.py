"""Bibliographies of drafts: keys of new entries, papers that a draft has already, BibTeX and CSL-JSON."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from citewell.manuscripts.bibliography import DraftKeys, new_keys, read_bibtex, to_bibtex, to_csl
from citewell.manuscripts.flow import Source
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import ExternalId, Paper
from tests.servers.missing import missing

PAPERS = [
    Paper(id="p1", title="The {Great} Parser", authors=("Ana Müller",), published=PartialDate(2020, 5)),
    Paper(
        id="p2", title="The Great Parser", authors=("Müller, Ana",), published=PartialDate(2020), venue="Proc. of X & Y"
    ),
    Paper(id="p3", title="Semantics of context free language", external_ids=(ExternalId("doi", "10.1234/ABC"),)),
]


def test_new_keys_are_stable_and_clash_with_none() -> None:
    assert new_keys(PAPERS, ["Muller2020great"]) == ["muller2020greata", "muller2020greatb", "anonymoussemantics"]
    assert new_keys(PAPERS[:1], []) == ["muller2020great"]


def test_a_paper_keeps_its_key_in_the_whole_draft_and_one_in_the_bibliography_has_its_own() -> None:
    keys = DraftKeys(read_bibtex([Source("a.bib", "@misc{own, doi={10.1234/abc}}\n@misc{muller2020great, title={X}}")]))
    assert keys.of(PAPERS[:1]) == ["muller2020greata"]
    assert keys.of([PAPERS[1], PAPERS[2], PAPERS[0]]) == ["muller2020greatb", "own", "muller2020greata"]


def test_bibtex_out_is_read_back_as_the_same_papers() -> None:
    keys = new_keys(PAPERS, [])
    bibliography = read_bibtex([Source("out.bib", to_bibtex(PAPERS, keys))])
    assert not bibliography.problems
    assert list(bibliography.entries) == keys
    assert bibliography.keys_of(PAPERS[2]) == [keys[2]]
    # Two papers with one title cannot be distinguished by it: both entries are named.
    assert bibliography.keys_of(PAPERS[1]) == keys[:2]


def test_a_paper_is_recognised_by_doi_arxiv_id_or_title() -> None:
    told = (
        "@misc{d, doi={https://doi.org/10.1234/abc}}\n@misc{a, eprint={2001.00001v2}, archiveprefix={arXiv}}\n"
        "@misc{t, title={Semantics of {Context-Free} \\emph{Languages}}}\n"
    )
    bibliography = read_bibtex([Source("x.bib", told)])
    arxiv = Paper(id="p", title="Other", external_ids=(ExternalId("arxiv", "2001.00001"),))
    assert bibliography.keys_of(PAPERS[2]) == ["d", "t"]
    assert bibliography.keys_of(arxiv) == ["a"]


def test_csl_json() -> None:
    item = to_csl(PAPERS, ["a", "b", "c"])[0]
    assert (item["id"], item["title"], item["issued"]) == ("a", "The {Great} Parser", {"date-parts": [[2020, 5]]})


def test_bibtex_reads_every_entry_whatever_braces_and_names_it_has(tmp_path: Path) -> None:
    """By BibTeX itself, which counts braces and splits names."""
    bibtex = shutil.which("bibtex")
    if bibtex is None:
        missing("no bibtex here: install TeX (Debian: apt-get install texlive-latex-base)")
    authors = ("Research and Development Team", "A, B, C, D, E", "AND", "Müller, Jörg", "Li \\ Wei {x")
    papers = [Paper("1", "An open { brace", authors=authors, venue="J }"), Paper("2", "Second", authors=("A B",))]
    (tmp_path / "citewell.bib").write_text(to_bibtex(papers, ["one", "two"]))
    (tmp_path / "a.aux").write_text("\\citation{one,two}\n\\bibstyle{plain}\n\\bibdata{citewell}\n")
    run = subprocess.run([bibtex, "a"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    written = (tmp_path / "a.bbl").read_text()
    assert "Second" in written
    assert "Research and Development Team" in " ".join(written.split())
