"""The .bib file beside a draft, as the language server reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pygls.workspace import TextDocument

from citewell.editor.bibliography_file import BibliographyFiles, path_of_bibliography
from citewell.editor.server import bibliography_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\\bibliography{refs,more}", "refs.bib"),
        ("\\addbibresource[x=y]{bib/refs.bib}", "bib/refs.bib"),
        ("---\nbibliography: refs.bib\n---\n", "refs.bib"),
        ("% \\bibliography{old}\n\\bibliography{refs}", "refs.bib"),
        ("100\\% of \\bibliography{refs}", "refs.bib"),
        ("% \\addbibresource{old.bib}", "only.bib"),
        ("---\nbibliography:\n  - refs.bib\n  - more.bib\n---\n", "refs.bib"),
        ('---\nbibliography: ["my refs.bib"] # mine\n---\n', "my refs.bib"),
        ("---\nbibliography: refs\n---\n", "refs.bib"),
        ("---\nbibliography: refs.json\n---\n", "only.bib"),
        ("Our sources\nbibliography: none", "only.bib"),
        ("No name here.", "only.bib"),
    ],
)
def test_the_file_that_the_draft_names_or_the_only_one(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "only.bib").touch()
    assert path_of_bibliography(tmp_path / "draft.tex", text) == tmp_path / name


MAIN = "\\begin{document}\\input{chapters/one}\n%\\input{chapters/two}\n\\bibliography{refs}\\end{document}"


@pytest.mark.parametrize(
    ("draft", "text", "bibliography"),
    [
        ("chapters/one.tex", "One.", "refs.bib"),
        ("chapters/one.tex", "\\bibliography{refs}", "refs.bib"),
        ("chapters/two.tex", "Not included.", "chapters/references.bib"),
        ("chapters/two.tex", "% !TeX root = ../book.tex\nTwo.", "refs.bib"),
        ("chapters/two.tex", "% !TeX root = ../gone.tex\nTwo.", "chapters/references.bib"),
        ("chapters/one.tex", "\\begin{document}A draft of its own.", "chapters/references.bib"),
        ("chapters/one.md", "One.", "chapters/references.bib"),
    ],
)
def test_a_chapter_has_the_bibliography_of_its_main_file(
    tmp_path: Path, draft: str, text: str, bibliography: str
) -> None:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "book.tex").write_text(MAIN)
    (tmp_path / "refs.bib").touch()
    (tmp_path / "more.bib").touch()
    assert path_of_bibliography(tmp_path / draft, text).resolve() == tmp_path / bibliography


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///c%3A/Users/a%20b/draft.tex", "c:/Users/a b/references.bib"),
        ("file:///home/a%23b/draft;1.tex", "/home/a#b/references.bib"),
        ("file://server/share/draft.tex", "//server/share/references.bib"),
        ("untitled:Untitled-1", "references.bib"),
    ],
)
def test_the_file_lies_beside_the_draft_on_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bibliography_path(TextDocument(uri, "No name here.")).as_posix() == path


def test_a_file_is_parsed_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path, files = tmp_path / "refs.bib", BibliographyFiles()
    assert files.read(path).entries == {}
    path.write_text("@misc{a, title={A}}\n")
    first = files.read(path)
    assert list(first.entries) == ["a"]
    assert files.read(path) is first
    path.write_text("@misc{a, title={A}}\n@misc{b, title={B}}\n")
    assert list(files.read(path).entries) == ["a", "b"]
    path.unlink()
    assert files.read(path).entries == {}
