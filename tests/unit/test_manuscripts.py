"""Drafts: the places found, their contexts, and the problems reported."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.manuscripts.applying import Choice, apply_choices
from citewell.manuscripts.bibliography import read_bibtex
from citewell.manuscripts.drafts import Draft, Format, UnreadableDraft, read_files, read_text
from citewell.manuscripts.flow import Source
from citewell.scholarly.contexts import count_targets
from tests.unit.word_files import word_file

LATEX = r"""\documentclass{article}
\title{Parsing \emph{in the wild}}
\begin{document}
\begin{abstract}We parse $x$.\end{abstract}
Grammars are old~\citep{knuth1968}. % \cite{?} in a comment
Learned parsers need none \cite{?}, and others~\citet[see][p. 3]{knuth1968, unknown} agree.
\verb|\cite{}| is code. \textbf{Bold claims \cite{}} need support.
\input{sections/more}
\end{document}
"""


MORE = "More work exists [CITATION]."


BIB = "@article{knuth1968, title={Semantics of Context-Free Languages}, year=1968}"


def files(**more: bytes) -> dict[str, bytes]:
    return {"draft.tex": LATEX.encode(), "sections/more.tex": MORE.encode(), "refs.bib": BIB.encode(), **more}


def at(draft: Draft, sources: dict[str, bytes]) -> list[str]:
    """The text of the files at the reported places."""
    cited = [place.citation for place in draft.places]
    return [sources[one.file].decode()[one.offset : one.offset + one.length] for one in cited]


def test_latex_places_are_found_where_they_stand() -> None:
    draft = read_files(files())
    assert at(draft, files()) == [
        r"\cite{?}",
        r"\citet[see][p. 3]{knuth1968, unknown}",
        r"\cite{}",
        "[CITATION]",
    ]
    assert (draft.title, draft.abstract) == ("Parsing in the wild", "We parse x.")
    assert [(place.citation.file, place.line, place.column) for place in draft.places][-1] == (
        "sections/more.tex",
        1,
        18,
    )
    assert draft.places[1].own_keys == ("knuth1968",)
    assert not draft.problems


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (r"\parencites(see)(and more)[12]{knuth1968}[cf.][15]{gone}", ("knuth1968", "gone")),
        (r"\cites{knuth1968, a}{gone}", ("knuth1968", "a", "gone")),
        (r"\Textcites*{knuth1968}[3]{}", ("knuth1968", "")),
        ("\\autocites[1]{knuth1968}%\n  [2]{gone}", ("knuth1968", "gone")),
        (r"\footcites[see \emph{there}]{?}", ("?",)),
        (r"\cites{}", ()),
        (r"\cite<see>[p. 3]{gone}", ("gone",)),
    ],
)
def test_citations_with_several_groups_of_keys_are_read_whole(command: str, keys: tuple[str, ...]) -> None:
    text = rf"Grammars are old {command} [sic] and \emph{{good}}."
    draft = read_files(files(**{"draft.tex": LATEX.replace("We parse $x$.", text).encode()}))
    [place] = [each for each in draft.places if each.line == 4 and "OTHERCIT" not in each.context[:20]]
    cited = place.citation
    assert (cited.keys, cited.length) == (keys, len(command))
    assert place.own_keys == tuple(key for key in keys if key == "knuth1968")
    assert "Grammars are old TARGETCIT [sic] and good." in place.context


def test_known_keys_in_several_groups_are_no_open_place() -> None:
    assert not read_text(r"As \textcites[3]{smith}[4]{doe} say.", None).places


@pytest.mark.parametrize(
    ("place", "own", "expected"),
    [
        (r"\parencites(see)()[12]{a}[15]{?}", ("a",), r"\parencites(see)()[12]{a}[15]{new}"),
        (r"\cites{?}{a}", ("a",), r"\cites{new}{a}"),
        (r"\cites[1]{?, a}[2]{}[3]{b}", ("a", "b"), r"\cites[1]{a, new}[3]{b}"),
        ("\\cites{a}%\n{}", ("a",), "\\cites{a}%\n{new}"),
        (r"\cites", (), r"\cites{new}"),
    ],
)
def test_a_choice_goes_into_the_group_that_misses_it(place: str, own: tuple[str, ...], expected: str) -> None:
    written = apply_choices({"d.tex": f"x {place} y"}, [Choice("d.tex", 2, len(place), own, "new")])
    assert written["d.tex"].startswith(f"x {expected} y")


def test_a_context_has_one_target_and_names_other_citations() -> None:
    first = read_files(files()).places[0]
    assert "Learned parsers need none TARGETCIT , and others OTHERCIT agree." in first.context
    assert "Grammars are old OTHERCIT ." in first.context
    assert "in a comment" not in first.context


def test_without_a_bibliography_every_real_key_is_known() -> None:
    draft = read_text(r"As \cite{smith} and \cite{?} say.", None)
    assert [place.citation.keys for place in draft.places] == [("?",)]


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        ("\\begin{document}\nfine \\cite{?}\n{ open\n\\end{document}\n", 4, "closing"),
        ("\\begin{document}\n\\input{gone} and \\cite{?}\n\\end{document}\n", 2, "names a file that was not sent"),
    ],
)
def test_broken_latex_is_told_by_line_and_the_rest_is_read(broken: str, line: int, says: str) -> None:
    draft = read_text(broken, Format.LATEX)
    assert len(draft.places) == 1
    assert any(problem.line == line and says in problem.message.lower() for problem in draft.problems), draft.problems


NAMING = "\\documentclass{article}\n%s\\begin{document}\nAs \\cite{old} and \\cite{?} say.\n%s\\end{document}\n"


@pytest.mark.parametrize(
    ("draft", "bib", "line", "says"),
    [
        (
            NAMING % ("", "\\bibliography{refs,lost}\n"),
            BIB,
            4,
            r"\bibliography{lost} names a .bib file that was not sent",
        ),
        (NAMING % ("", "\\bibliography{refs}\n"), "\0", 4, r"\bibliography{refs} names a .bib file that was not sent"),
        (NAMING % ("\\addbibresource[x=y]{lost.bib}\n", ""), BIB, 2, r"\addbibresource{lost.bib} names a .bib file"),
        (NAMING % ("\n\\addbibresource{refs.bib}\n", ""), "no BibTeX", 3, "names refs.bib, which has no entry"),
        (
            NAMING % ("", "\\bibliography{refs}\n"),
            "@misc{knuth1968, title={open\n",
            4,
            "names refs.bib, which has no entry",
        ),
    ],
)
def test_a_bibliography_that_is_missing_or_broken_is_told_where_it_is_named_and_the_rest_is_answered(
    draft: str, bib: str, line: int, says: str
) -> None:
    read = read_files({"draft.tex": draft.encode(), "refs.bib": bib.encode()}, "draft.tex")
    told = [problem for problem in read.problems if says in problem.message]
    assert [(problem.file, problem.line) for problem in told] == [("draft.tex", line)]
    assert [place.citation.keys for place in read.places] == [("?",)], "old may be in what is missing"
    assert "old" in read.used_keys, "no new key may clash with it"


def test_a_bibliography_that_is_there_is_found_with_and_without_its_suffix_and_folder() -> None:
    draft = NAMING % ("", "\\bibliography{bib/refs, more.bib,\\jobname}\n")
    bibs = {"paper/bib/refs.bib": BIB.encode(), "more.bib": b"@misc{old, title={Old}}"}
    read = read_files({"paper/draft.tex": draft.encode(), **bibs}, "paper/draft.tex")
    assert read.problems == []
    flat = read_files({"draft.tex": draft.encode(), "refs.bib": BIB.encode(), "more.bib": b"@misc{old}"}, "draft.tex")
    assert flat.problems == [], "a browser sends files without their folders"


def test_the_front_matter_names_bibliographies() -> None:
    text = "---\ntitle: A\nbibliography:\n  - refs.bib\n  - lost.bib\n---\nAs @old and [@?] say.\n"
    draft = read_files({"draft.md": text.encode(), "refs.bib": BIB.encode()}, "draft.md")
    assert [(each.line, each.message.split(";")[0]) for each in draft.problems] == [
        (5, "bibliography: lost.bib names a .bib file that was not sent or is binary")
    ]
    assert [place.citation.keys for place in draft.places] == [("?",)]
    one = read_files({"draft.md": b"---\nbibliography: 'lost.bib'\n---\nAs [@?] says.\n"})
    assert [(each.line, each.column) for each in one.problems] == [(2, 15)]


def test_the_key_of_a_broken_entry_is_no_open_place() -> None:
    bib = "@misc{broken, title={open\n@misc{fine, title={Fine}}\n"
    draft = read_files({"draft.tex": rb"See \cite{broken}, \cite{fine}, \cite{none}.", "refs.bib": bib.encode()})
    assert [place.citation.keys for place in draft.places] == [("none",)]
    (problem,) = draft.problems
    assert (problem.file, problem.line) == ("refs.bib", 1)
    assert "Unexpected block start" in problem.message


def test_files_of_the_preamble_are_read_for_the_title_and_missed_by_line() -> None:
    draft = "\\input{meta}\n\\input{macros}\n\\begin{document}As \\cite{?} says.\\end{document}"
    meta = b"\\title{From afar}\\newcommand{\\x}{\\cite{}}"
    read = read_files({"main.tex": draft.encode(), "meta.tex": meta}, "main.tex")
    assert read.title == "From afar"
    assert [(each.file, each.line) for each in read.problems] == [("main.tex", 2)]
    assert len(read.places) == 1


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (r"\input sections/more", "sections/more.tex"),
        (r"\import{sections/}{more}", "sections/more.tex"),
        (r"\subimport{sections}{more.tex}", "sections/more.tex"),
        (r"\InputIfFileExists{sections/more}{}{}", "sections/more.tex"),
    ],
)
def test_files_are_included_by_any_command(command: str, file: str) -> None:
    draft = read_files(files(**{"draft.tex": LATEX.replace(r"\input{sections/more}", f"{command}\n").encode()}))
    assert (draft.places[-1].citation.file, draft.problems) == (file, [])
    assert "ections" not in draft.places[-1].context


@pytest.mark.parametrize(
    "code",
    [
        r"\url{http://a/b%20c}",
        r"\href{http://a/b%20c}{text}",
        r"\footnote{\url{http://a/%7Eb_c}}",
        r"\lstinline|{ [?]|",
        r"\lstinline[language=C]!} [?]!",
        r"\mintinline{python}|}|",
    ],
)
def test_addresses_and_code_within_lines_break_nothing(code: str) -> None:
    draft = read_text(rf"\documentclass{{a}}\begin{{document}}A {code} b \cite{{?}} c.\end{{document}}", None)
    assert ([place.citation.keys for place in draft.places], draft.problems) == ([("?",)], [])
    assert draft.places[0].context.endswith("b TARGETCIT c.")
    assert "http" not in draft.places[0].context


def test_marks_in_arguments_are_places_and_headings_have_one_text() -> None:
    text = r"\textbf{Bold [?]} x\footnote{In \emph{notes [CITATION]}.}"
    text += r" \section[Short]{Long \cite{?}}\caption[A]{B TARGETCIT}"
    draft = read_text(rf"\begin{{document}}{text}\end{{document}}", None)
    assert len(draft.places) == 4
    assert draft.places[2].context == "Bold OTHERCIT x In notes OTHERCIT . Long TARGETCIT B OTHERCIT"


@pytest.mark.parametrize(
    "text",
    [
        r"It costs $5 \cite{?}.",
        "It costs $5, or $6 and $7.\n\nTrees \\cite{?}.",
        "It costs\n$5.\n \nTrees $a \\text{ for $b$ } c$ \\cite{?}.",
    ],
)
def test_a_formula_without_an_end_is_told_and_costs_its_paragraph_only(text: str) -> None:
    draft = read_text(rf"\begin{{document}}{text} And \cite{{?}}.\end{{document}}", None)
    assert len(draft.places) == 2
    [problem] = draft.problems
    assert "does not end in this paragraph" in problem.message
    assert problem.line == (2 if text.startswith("It costs\n") else 1)


@pytest.mark.parametrize(
    "code", [r"\verb*|{ [?]|", r"\if0 [?] \cite{?} \fi", r"\if 01 \cite{?} \else x\fi", r"\verb+$ %+"]
)
def test_starred_code_and_disabled_branches_have_no_places(code: str) -> None:
    draft = read_text(rf"\begin{{document}}A {code} b \cite{{?}}.\end{{document}}", None)
    assert (len(draft.places), draft.problems) == (1, [])
    assert draft.places[0].context.endswith("b TARGETCIT .")


def test_measures_of_environments_are_no_prose() -> None:
    text = r"\begin{wrapfigure}{r}{5cm}A \cite{?}\end{wrapfigure}\begin{longtable}{p{3cm}|l}b & c\end{longtable}"
    assert read_text(text, Format.LATEX).places[0].context == "A TARGETCIT b c"


def test_a_broken_line_separates_words() -> None:
    assert read_text(r"Trees\\grow\\[2pt]tall \cite{?}.", None).places[0].context == "Trees grow tall TARGETCIT ."


@pytest.mark.parametrize("key", ["?", "TODO", "xxx", "TBD", "CITE", "citation"])
def test_placeholders_are_open_places_also_without_a_bibliography(key: str) -> None:
    assert len(read_text(rf"Trees grow \cite{{{key}}}.", None).places) == 1


def test_titles_and_abstracts_have_no_thanks_notes_and_citations() -> None:
    text = r"\title{Routes\thanks{By X.}\footnote{Or not.}\\ in \emph{the} wild \cite{a}}\begin{document}"
    draft = read_text(rf"{text}\begin{{abstract}}As \cites{{a}}{{b}} say.\end{{abstract}}\end{{document}}", None)
    assert (draft.title, draft.abstract) == ("Routes in the wild", "As say.")


def test_a_citation_in_a_formula_leaves_no_trace_of_the_parser() -> None:
    draft = read_text(r"As $x = \text{by \cite{a}}$ and \cite{?} say.", Format.LATEX)
    assert draft.places[0].context == "As x = by OTHERCIT and TARGETCIT say."


def test_code_has_no_places_and_its_braces_break_nothing() -> None:
    code = r"\begin{lstlisting}[language=C]" + "\nif (a[?]) { \\cite{}\n" + r"\end{lstlisting} "
    minted = r"\begin{minted}{python} x = '\cite{?} }' [?]\end{minted} % \begin{comment}"
    draft = read_text("\\begin{document}\n" + code + minted + "\nWords \\cite{?} here.\\end{document}", None)
    assert [(place.line, place.citation.keys) for place in draft.places] == [(5, ("?",))]
    assert draft.problems == []


def test_layout_is_no_prose_and_bibliography_items_define_their_keys() -> None:
    text = (
        r"\begin{document}\pagestyle{empty}As \cite{knuth} and \cite{?} on page~\pageref{a} say."
        r"\bibliographystyle{plain}"
        r"\begin{thebibliography}{9}\bibitem[Knuth(1968)]{knuth} D. Knuth.\end{thebibliography}\end{document}"
    )
    draft = read_text(text, None)
    assert [place.citation.keys for place in draft.places] == [("?",)]
    assert not {"empty", "plain", "knuth"} & set(draft.places[0].context.split())


def test_a_file_that_includes_itself_is_read_once() -> None:
    draft = read_files({"a.tex": rb"\begin{document}\input{a} \cite{}\end{document}"})
    assert len(draft.places) == 1
    assert "into itself" in draft.problems[0].message


def test_groups_nested_too_deeply_are_told() -> None:
    draft = read_text("\\begin{document}" + "{" * 5000 + "}" * 5000, Format.LATEX)
    assert "nested" in draft.problems[0].message


def test_a_broken_entry_of_a_bibliography_is_told_and_the_others_count() -> None:
    bibliography = read_bibtex([Source("refs.bib", "@book{x, title={open\n" + BIB)])
    assert list(bibliography.entries) == ["knuth1968"]
    assert bibliography.problems[0].line == 1


@pytest.mark.parametrize(
    "text",
    [
        "\\cite{knuth1968,%\n  other}",
        "\\cite{knuth1968, % the first\n  % \\cite{?}\n  other}",
        "\\newcommand{\\see}[1]{see \\cite{#1}}",
        "\\newcommand\\todo{\\cite{?}}",
        "\\def\\see#1{see \\cite{#1}}",
        "\\iffalse old \\iftrue \\cite{} \\fi \\cite{?} [?] \\fi",
        "\\iffalse % \\fi \n { \\cite{} $A \\iff B$ \\fi",
    ],
)
def test_what_is_cited_already_or_never_typeset_is_no_place(text: str) -> None:
    latex = f"\\begin{{document}}One \\cite{{?}} two {text} three \\cite{{gone}}.\\end{{document}}"
    draft = read_files({"a.tex": latex.encode(), "a.bib": f"{BIB}\n@misc{{other, title={{X}}}}".encode()})
    assert at(draft, {"a.tex": latex.encode()}) == ["\\cite{?}", "\\cite{gone}"]
    assert not draft.problems


def test_the_other_branch_of_iffalse_is_read() -> None:
    draft = read_text("\\begin{document}\\iffalse [?] \\else \\cite{} \\fi\\end{document}", Format.LATEX)
    assert len(draft.places) == 1


MARKDOWN = """As @fig-plot, @tbl:one and \\@ref(fig:x) show, @knuth1968 [@knuth1968, p. 3; @sec-x] did, see
[me](http://example.org/@me) and https://example.org/@me [mail a@b.org].

"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("[@?]", "[@new]"),
        ("[see @knuth1968, p. 3; @?]", "[see @knuth1968, p. 3; @new]"),
        ("[@gone; @fig-x; -@lost, p. 1; @knuth1968]", "[@new; @fig-x; @knuth1968]"),
        ("[?]", "[@new]"),
        ("@gone", "@new"),
        ("-@gone", "-@new"),
    ],
)
def test_a_choice_in_markdown_keeps_notes_and_references_to_figures(place: str, expected: str) -> None:
    text = f"{MARKDOWN}So {place} is it.\n"
    draft = read_files({"a.md": text.encode(), "a.bib": BIB.encode()})
    [found] = draft.places
    one = found.citation
    assert text[one.offset : one.offset + one.length] == place
    choice = Choice("a.md", one.offset, one.length, found.own_keys, "new")
    assert apply_choices({"a.md": text}, [choice]) == {"a.md": text.replace(f"So {place}", f"So {expected}")}


def test_markdown_places_title_and_abstract() -> None:
    text = (
        "---\ntitle: A draft\nabstract: |\n  We parse.\n---\n\n# Introduction\n\nAs [@knuth1968; see @gone, p. 3] and "
        "@?\nsay, `[@code]` does not.\n\n```\n[@fence]\n```\n\n- a point [@?]\n- another [?]\n"
    )
    sources = {"draft.md": text.encode(), "refs.bib": BIB.encode()}
    draft = read_files(sources)
    assert at(draft, sources) == ["[@knuth1968; see @gone, p. 3]", "[@?]", "[?]"]
    assert (draft.title, draft.abstract) == ("A draft", "We parse.")


@pytest.mark.parametrize(
    ("text", "keys", "context"),
    [
        ("A[^1] b.\n\n[^1]: [@?]\n", ["?"], "A[^1] b. [^1]: TARGETCIT"),
        ("A[^1].\n\n[^1]: One.\n\n    Two [@?] three.\n", ["?"], "A[^1]. [^1]: One. Two TARGETCIT three."),
        ("Word\n:   Meaning.\n\n    More [@?].\n", ["?"], "Word : Meaning. More TARGETCIT ."),
        ("A.\n\n    x[?] = [@?]\n", [], ""),
        ("A <!-- [@?] @gone --> b [@?].", ["?"], "A b TARGETCIT ."),
        ("A <!-- [@?] never closed", [], ""),
        ("<div class='x'>\nIn a box [@?].\n</div>\n", ["?"], "<div class='x'> In a box TARGETCIT . </div>"),
        ("<script>\nx = [@?]\n</script>\n", [], ""),
        ("A^[See @gone on this.] b.", ["gone"], "A^[See TARGETCIT on this.] b."),
        ("As @{gone} says.", ["gone"], "As TARGETCIT says."),
    ],
)
def test_markdown_of_pandoc_is_read_as_pandoc_reads_it(text: str, keys: list[str], context: str) -> None:
    draft = read_files({"d.md": text.encode(), "r.bib": BIB.encode()})
    assert [key for place in draft.places for key in place.citation.keys] == keys
    assert [place.context for place in draft.places] == [context] * len(keys)


def test_titles_and_abstracts_of_markdown_have_no_citations() -> None:
    draft = read_text("# Trees [@a] grow {#sec:trees}\n\n## Abstract\n\nAs [see @a] says.\n", Format.MARKDOWN)
    assert (draft.title, draft.abstract) == ("Trees grow", "As says.")
    draft = read_text("---\ntitle: Trees [@a]\nabstract: |\n  As @knuth says.\n---\n", Format.MARKDOWN)
    assert (draft.title, draft.abstract) == ("Trees", "As says.")


def test_a_place_in_a_table_row_or_in_a_file_included_twice_is_one_place() -> None:
    table = "| A | B [@?] |\n|---|---|\n| x | [?] |\n"
    assert len(read_text(table, Format.MARKDOWN).places) == 2
    twice = {"a.tex": rb"\begin{document}\input{b} and \input{b}\end{document}", "b.tex": b"Some text [?]."}
    assert len(read_files(twice, "a.tex").places) == 1


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (r"\cite[see][p. 3]{a, ?}", r"\cite[see][p. 3]{a, new}"),
        (r"\cite x", r"\cite{a, new}"),
        (r"\cite", r"\cite{a, new}"),
        (r"\citep*{x{y}}", r"\citep*{a, new}"),
    ],
)
def test_a_choice_goes_into_any_form_of_the_command(place: str, expected: str) -> None:
    written = apply_choices({"a.tex": f"So {place} it is."}, [Choice("a.tex", 3, len(place), ("a",), "new")])
    assert written == {"a.tex": f"So {expected} it is."}


def test_markdown_places_are_right_behind_every_kind_of_line_end() -> None:
    text = "---\rtitle: A\r---\rOne\u2028two [?].\x0b\r\n\r\nThree [@?].\u2029\n\nFour [@].\n"
    draft = read_text(text, Format.MARKDOWN)
    assert [text[one.citation.offset :][: one.citation.length] for one in draft.places] == ["[?]", "[@?]", "[@]"]


def test_a_marker_in_two_pieces_is_no_second_target() -> None:
    draft = read_text("`TARGE`TCIT and [@?].", Format.MARKDOWN)
    assert [count_targets(place.context) for place in draft.places] == [1]


@pytest.mark.parametrize("end", ["\\verb", "\\verb*", "\\cite", "\\cite ", "\\begin{verbatim", "\\begin{", "\\^", "\\"])
def test_a_draft_that_ends_in_the_middle_of_a_command_is_read(end: str) -> None:
    text = f"Some text \\cite{{?}} and {end}"
    for place in (places := read_text(text, Format.LATEX).places):
        assert place.citation.offset + place.citation.length <= len(text)
    assert text[places[0].citation.offset :].startswith("\\cite{?}")


def test_many_places_are_counted_and_the_first_are_read() -> None:
    paragraph = "<w:p><w:r><w:t>A claim [?].</w:t></w:r></w:p>"
    for draft in (
        read_text("A claim [?]. " * 2000, Format.PLAIN),
        read_text("A claim \\cite{?}. " * 2000, Format.LATEX),
        read_files({"draft.docx": word_file(paragraph * 2000)}),
    ):
        assert (len(draft.places), draft.left_out) == (500, 1500)


def test_an_archive_with_damaged_contents_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("draft.tex", "text " * 1000)
    damaged = bytearray(packed.getvalue())
    damaged[45:50] = b"\xff" * 5  # inside the compressed text
    with pytest.raises(UnreadableDraft, match="no archive that can be read"):
        read_files({"draft.zip": bytes(damaged)})


def test_front_matter_that_is_no_yaml_is_told() -> None:
    draft = read_text("---\ntitle: [a\n---\n\n# Real title\n\nText [@?].\n", Format.MARKDOWN)
    assert draft.title == "Real title"
    assert "YAML" in draft.problems[0].message


def test_plain_text() -> None:
    text = "A title\n\nAbstract\nWe parse.\n\nParsers [?] need TARGETCIT and OTHERCIT."
    draft = read_text(text, Format.PLAIN)
    assert (draft.title, draft.abstract, len(draft.places)) == ("A title", "We parse.", 2)
    assert count_targets(draft.places[0].context) == 1


def test_an_archive_is_unpacked_and_a_bomb_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files().items():
            archive.writestr(name, content)
    assert len(read_files({"draft.zip": packed.getvalue()}).places) == 4
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"\0" * 60_000_000)
    for name in ("draft.zip", "draft.docx"):
        with pytest.raises(UnreadableDraft, match="60000000 bytes when unpacked"):
            read_files({name: bomb.getvalue()})


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"draft.tex": b"\0binary"}, "draft.tex"),
        ({"draft.docx": b"no archive"}, "draft.docx"),
        ({"a.tex": b"", "b.tex": b""}, "main"),
        ({"picture.png": b""}, "main"),
        ({"draft.txt": b"x" * 2_000_001}, "files"),
    ],
)
def test_unreadable_drafts_name_the_file(sent: dict[str, bytes], field: str) -> None:
    with pytest.raises(UnreadableDraft, match=field):
        read_files(sent)


def test_latin_1_is_read_and_told() -> None:
    draft = read_files({"draft.tex": "Erdős? No: Müller \\cite{?}".encode("latin-1", "replace")})
    assert (len(draft.places), draft.problems[0].line) == (1, 1)


@pytest.mark.parametrize("format_", [Format.LATEX, Format.MARKDOWN, Format.PLAIN])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_edited_drafts_never_crash_and_offsets_hold(format_: Format, data: st.DataObject) -> None:
    text = LATEX + "\n# Head\n\nA [@?] b [?] `c`\n" + MORE
    for _ in range(data.draw(st.integers(0, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        new = data.draw(
            st.one_of(st.text(max_size=8), st.sampled_from(["{", "}", "\\cite{", "$", "[@", "`", "\\begin{x}"]))
        )
        text = text[:start] + new + text[end:]
    draft = read_text(text, format_)
    for place in draft.places:
        assert count_targets(place.context) == 1
        mark = text[place.citation.offset : place.citation.offset + place.citation.length]
        assert mark.startswith(("\\", "[", "@", "-@")) or mark.upper() == "TARGETCIT", mark


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("% \\bibliography{old}\n\\bibliography{refs}\n", "% \\bibliography{old}\n\\bibliography{refs,citewell}\n"),
        ("% \\addbibresource{old.bib}\n", "% \\addbibresource{old.bib}\n"),
        ("\\addbibresource{a.bib} 50\\%", "\\addbibresource{a.bib}\n\\addbibresource{citewell.bib} 50\\%"),
        ("A.\n\\end{document}", "A.\n\\bibliographystyle{plain}\n\\bibliography{citewell}\n\\end{document}"),
        (r"\begin{thebibliography}{9}\end{document}", r"\begin{thebibliography}{9}\end{document}"),
        ("\\bibliography{refs, citewell}", "\\bibliography{refs, citewell}"),
        (
            "\\addbibresource{a.bib}\n\\addbibresource{citewell.bib}",
            "\\addbibresource{a.bib}\n\\addbibresource{citewell.bib}",
        ),
    ],
)
def test_a_written_draft_names_the_new_bibliography_where_latex_sees_it(text: str, wanted: str) -> None:
    assert apply_choices({"a.tex": text}, []) == {"a.tex": wanted}


def test_files_of_macos_in_an_archive_are_no_drafts() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("draft.md", "# T\n\nwe use [@?] here\n")
        archive.writestr("__MACOSX/._draft.md", b"\0\5\26\7")
    draft = read_files({"draft.zip": packed.getvalue()})
    assert (draft.main, len(draft.places), draft.problems) == ("draft.md", 1, [])
