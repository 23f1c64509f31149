"""The .bib file beside a draft, as the language server reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from citewell.editor.bibliography_file import BibliographyFiles, path_of_bibliography


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\\bibliography{refs,more}", "refs.bib"),
        ("\\addbibresource[x=y]{bib/refs.bib}", "bib/refs.bib"),
        ("---\nbibliography: refs.bib\n---\n", "refs.bib"),
        ("No name here.", "only.bib"),
    ],
)
def test_the_file_that_the_draft_names_or_the_only_one(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "only.bib").touch()
    assert path_of_bibliography(tmp_path / "draft.tex", text) == tmp_path / name


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
