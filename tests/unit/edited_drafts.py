"""Drafts that look real, random edits of them, and what must hold of the result whatever the edits were."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping

import docx

from citewell.manuscripts.applying import Choice, apply_choices
from citewell.manuscripts.drafts import Draft, Format, UnreadableDraft, flow_of, read_files, read_text
from citewell.manuscripts.flow import Citation, Source
from citewell.manuscripts.need import NeedModel, read_need_model
from citewell.manuscripts.word import read_word
from citewell.scholarly.contexts import count_targets

KINDS = ("latex", "markdown", "plain", "word")

LATEX = r"""\documentclass[11pt]{article}
\usepackage[utf8]{inputenc}
\usepackage{natbib} % \cite{} in a comment
\newcommand{\ours}{\textsc{Wayfinder}}
\addbibresource[glob=false]{refs.bib}\input{macros}
\title{Routing \emph{without} Maps: a Study}
\author{A. Writer\thanks{Supported by nobody.}}
\begin{document}
\maketitle
\begin{abstract}
We route parcels with $n \le 10^6$ stops. See~\citep{dijkstra1959} for the classic.
\end{abstract}
\section{Introduction}\label{sec:intro}
Shortest paths are old~\citep[see][p.~3]{dijkstra1959, ?}, and learned heuristics are recent \cite{}.
\ours{} needs none --- as Figure~\ref{fig:one} shows, 50\% of routes are ``short'' \citet{unknown2020}.
Na\"{\i}ve search costs $O(|V|^2)$; \textbf{bold claims \cite{?}} need support\footnote{Or not \citep{gone}.}.
\begin{itemize}
  \item Contraction hierarchies have been widely adopted in practice [?].
  \item[b)] Hub labels [CITATION] trade memory for time: \[ \sum_{i=1}^{n} x_i = 1 \]
\end{itemize}
\begin{figure}[t]\centering\includegraphics[width=.5\linewidth]{one.pdf}\caption{One
\cite{a,b}.}\label{fig:one}\end{figure}
\begin{table}\begin{tabular}{l|r} A & B \\ \hline x & 1 \end{tabular}\end{table}
\begin{verbatim}
\cite{not} [?]
\end{verbatim}
\begin{lstlisting}[language=C]
if (a[?]) { % \cite{}
\end{lstlisting}
\verb|\cite{}| is code. \autocite*[cf.][]{x} and \parencites(see)()[1]{a}[2]{?}
\nocite{*} and \citeauthor{dijkstra1959}.
\input{sections/related}
\begin{thebibliography}{9}\bibitem[D(1959)]{dijkstra1959} E. Dijkstra. A note. 1959.\end{thebibliography}
\bibliographystyle{plain}\bibliography{refs, lost}
\end{document}
"""
RELATED = "\\section{Related work}\nGoal-directed search [?] and Δ-stepping \\cite{delta} run in parallel.\n"
BIB = '@article{dijkstra1959, title={A Note on {Two} Problems}, year=1959}\n@misc{a, title = "A"}\n'
MARKDOWN = """---
title: "Routing without maps"
bibliography: [refs.bib, lost.bib]
abstract: |
  We route parcels, see [@dijkstra1959].
---

# Introduction

Shortest paths are old [see @dijkstra1959, p. 3; @unknown], and learned heuristics are recent [@].
As @smith2020 says *bold claims* [@?] need support[^1] -- really [?].

> Quoted words of others -@doe99 stay quoted `[@code]`.

1. Contraction hierarchies have been widely adopted in practice [CITATION].
2. Hub labels @{weird.key} trade memory for time; a@b.example is a mail address.

| A | B [@t] |
|---|--------|
| x | [?]    |

```python
x = "[@fence]"
```

[^1]: Or not [@gone].

Setext heading [?]
==================
Naïve 𝒮earch costs $O(|V|^2)$ TARGETCIT. <b>[@html]</b>
"""
PLAIN = """Routing without maps

Abstract
We route parcels with a million stops.

Introduction
Shortest paths are old [?], and learned heuristics are recent [ CITATION NEEDED ].
Contraction hierarchies have been widely adopted in practice. Hub labels TARGETCIT trade memory for time OTHERCIT.
Naïve 𝒮earch costs a lot [??]\r\nand [@?] more [citation].

References
[1] E. Dijkstra. A note on two problems. 1959.
"""
WORD = (
    ("Title", "Routing without maps"),
    ("Heading 1", "Abstract"),
    ("Normal", "We route parcels [?]."),
    ("Heading 1", "Introduction"),
    ("Normal", "Shortest paths are old [CITATION], and heuristics & 𝒮earch are recent <[?]>."),
    ("List Bullet", "Contraction hierarchies have been widely adopted in practice. TARGETCIT"),
)
PIECES = (
    *("{", "}", "[", "]", "$", "$$", "%", "\\", "&", "#", "_", "^", "~", "`", "```", "|", "@", "?", '"', "'", "<", ">"),
    *("\\cite{", "\\cite{}", "\\cite", "\\citep[", "\\citet[see][p. 3]{k,?}", "\\cite{a%\n,b}", "[@", "[@?]", "[?]"),
    *("[CITATION]", "TARGETCIT", "OTHERCIT", "-@key", "@{k}", "[-@a; see @b, p. 1]", "\\begin{x}", "\\end{x}"),
    *(
        "\\end{document}",
        "\\begin{document}",
        "\\begin{verbatim}",
        "\\verb|",
        "\\[",
        "\\]",
        "\\(",
        "\\item",
        "\\input{",
    ),
    *(
        "\\input{draft}",
        "\\input{sections/related}",
        "\\bibitem{",
        "\\bibliography{",
        "\\begin{lstlisting}",
        "\\end{lstlisting}",
        "bibliography: ",
        "\\title{",
        "\\'",
        "\\^",
        "\\\\",
        '\\"{',
        "\\left(",
    ),
    *("\n", "\n\n", "\r\n", "\r", "\t", "    ", "\n---\n", "# ", "> ", "- ", "| ", "<!-- ", "\u00a0", "\u2028", "\x0b"),
    *("é", "e\u0301", "𝒮", "\u200d", "\ufeff", "\ud7ff", "\x00", "\x1b", "ﬁ", "İ", "\u0130", "ẞ", "中"),
    *("\\bibliography{", "\\begin{lstlisting}", "\\end{lstlisting}", "bibliography: "),
    "Recent work has proposed many methods. ",
)


def edited(text: str, edits: int, rng: random.Random) -> str:
    """The text after so many random edits: letters and pieces of markup in, parts out, doubled, swapped, cut off."""
    for _ in range(edits):
        start = rng.randint(0, len(text))
        end = min(len(text), start + int(rng.expovariate(1 / 12)))
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                text = text[:start] + rng.choice(PIECES) + text[start:]
            case 4 | 5:
                text = text[:start] + text[end:]
            case 6:
                text = text[:start] + rng.choice(PIECES) + text[end:]
            case 7:
                text = text[:end] + text[start:]
            case 8:
                there = rng.randint(0, len(text))
                text = text[:there] + text[start:end] + text[there:]
            case _:
                letter = chr(rng.choice((rng.randint(0, 0x2FF), rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF))))
                text = text[:start] + letter + text[end:] if rng.random() < 0.95 else text[:start]
    return text


def check_edited(kind: str, edits: int, seed: int) -> None:
    """Reads a draft ("latex", "markdown", "plain" or "word") after random edits; raises if a rule is broken."""
    rng = random.Random(seed)
    model = read_need_model()
    match kind:
        case "latex":
            files = {"draft.tex": LATEX, "sections/related.tex": RELATED, "refs.bib": BIB}
            name = rng.choice(("draft.tex",) * 4 + ("sections/related.tex", "refs.bib"))
            files[name] = edited(files[name], edits, rng)
            _check_files(files, "draft.tex", model)
        case "markdown":
            _check_files({"draft.md": edited(MARKDOWN, edits, rng), "refs.bib": BIB}, "draft.md", model)
        case "plain":
            text = edited(PLAIN, edits, rng)
            _check(read_text(text, Format.PLAIN, model), {"": text}, Format.PLAIN)
        case _:
            _check_word(edits, rng, model)


def _check_files(files: dict[str, str], main: str, model: NeedModel) -> None:
    sent = {name: text.encode("utf-8", "surrogatepass") for name, text in files.items()}
    try:
        draft = read_files(sent, main, suggest=model)
    except UnreadableDraft:
        if b"\0" not in sent[main]:  # no other reason is among these edits
            raise
        return
    _check(draft, {name: _decoded(content) for name, content in sent.items()}, _FORMATS[main])


_FORMATS = {"draft.tex": Format.LATEX, "draft.md": Format.MARKDOWN}


def _decoded(content: bytes) -> str:
    return content.decode("utf-8-sig")


def _check_word(edits: int, rng: random.Random, model: NeedModel) -> None:
    content = _word_file()
    if rng.random() < 0.2:  # damaged bytes
        damaged = bytearray(content)
        for _ in range(edits):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        content = bytes(damaged)
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        text = parts["word/document.xml"].decode()
        start = text.index("<w:body>")  # before it there are only declarations
        parts["word/document.xml"] = (text[:start] + edited(text[start:], edits, rng)).encode("utf-8", "surrogatepass")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
        content = packed.getvalue()
    try:
        draft = read_files({"draft.docx": content}, suggest=model)
    except UnreadableDraft:
        return
    _check(draft, {"draft.docx": read_word("draft.docx", content)[0].text}, Format.WORD)


_words: list[bytes] = []


def _word_file() -> bytes:
    if not _words:
        document = docx.Document()
        for style, text in WORD:
            document.add_paragraph(text, style)
        written = io.BytesIO()
        document.save(written)
        _words.append(written.getvalue())
    return _words[0]


def _check(draft: Draft, texts: Mapping[str, str], format_: Format) -> None:
    for place in draft.places:
        cited = place.citation
        text = texts[cited.file]
        marker = text[cited.offset : cited.offset + cited.length]
        assert count_targets(place.context) == 1, place
        before = text[: cited.offset]
        assert (place.line, place.column) == (before.count("\n") + 1, len(before) - before.rfind("\n")), place
        if place.need is None:
            _check_marker(marker, cited, format_)
        else:
            assert marker[0].isupper(), marker
            assert marker[-1] in ".!?", marker
            assert place.insert_at == cited.offset + cited.length - 1
            assert 0.66 <= place.need <= 1
    for problem in draft.problems:
        assert 1 <= problem.line <= texts[problem.file].count("\n") + 1, problem
        assert problem.column >= 1, problem
        assert problem.message, problem
    _check_applied(draft, texts)


def _check_marker(marker: str, cited: Citation, format_: Format) -> None:
    """What stands at a place is a marker: read alone, it is one citation with the same keys and nothing else."""
    found = _read_alone(marker, "", format_)
    if found != [(0, cited.length, cited.keys)] and format_ is Format.LATEX:
        # A command that lacks its last argument is read so only where a group ends behind it.
        found = _read_alone(marker, "{", format_)
    assert found == [(0, cited.length, cited.keys)], (marker, found)


def _read_alone(marker: str, opening: str, format_: Format) -> list[tuple[int, int, tuple[str, ...]]]:
    text = opening + marker + ("}" if opening else "")
    pieces = flow_of(Source("", text), format_).pieces
    return [(each.offset - len(opening), each.length, each.keys) for each in pieces if isinstance(each, Citation)]


def _check_applied(draft: Draft, texts: Mapping[str, str]) -> None:
    """Choices change their places and nothing else, whatever the draft looks like."""
    marked = [place for place in draft.places if place.need is None]
    choices = [
        Choice(place.citation.file, place.citation.offset, place.citation.length, place.own_keys, "newkey")
        for place in marked
    ]
    written = apply_choices(texts, choices)
    for name, text in texts.items():
        own = sorted(
            ((place.citation.offset, place.citation.length) for place in marked if place.citation.file == name),
        )
        if not own:
            continue
        first, (last, length) = own[0][0], own[-1]
        bare = _without_new_bibliography(written[name])
        assert bare.startswith(text[:first])
        assert bare.endswith(text[last + length :])
        assert written[name].count("newkey") >= len(own)


def _without_new_bibliography(text: str) -> str:
    """Takes back the one command by which a written draft names the new bibliography."""
    for added, instead in (
        (",citewell}", "}"),
        ("\n\\addbibresource{citewell.bib}", ""),
        ("\\bibliographystyle{plain}\n\\bibliography{citewell}\n", ""),
    ):
        if added in text:
            return text.replace(added, instead, 1)
    return text
