"""Turns a draft's files into its places: finds the main file and its format, and collects problems."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType

from citewell.manuscripts.bibliography import Bibliography, read_bibtex
from citewell.manuscripts.flow import MISSING_KEYS, Citation, Flow, Place, Problem, Source, places
from citewell.manuscripts.latex import read_latex
from citewell.manuscripts.markdown import read_markdown
from citewell.manuscripts.need import NeedModel
from citewell.manuscripts.plain import read_plain
from citewell.manuscripts.sent_files import SentFiles
from citewell.manuscripts.suggesting import suggested_places
from citewell.manuscripts.word import NOTES, TEXT, read_word
from citewell.scholarly.decoding import decoded

MAX_BYTES = 2_000_000
"""Limit for all text of a draft: about forty times a long paper. Parsing that much takes some seconds."""
MAX_UNPACKED_BYTES = 50_000_000
"""Limit for an unpacked .docx or .zip. Its directory states the size, so it is checked before unpacking."""
MAX_WORD_XML_BYTES = 10_000_000
"""Limit for the XML of a Word document's text: it is held in memory as a tree."""
MAX_PLACES = 500
"""The most places of a draft that are answered; further ones are only counted."""


class Format(Enum):
    """The format of a draft."""

    LATEX = "latex"
    MARKDOWN = "markdown"
    PLAIN = "plain"
    WORD = "word"


_FORMATS = {
    ".tex": Format.LATEX,
    ".ltx": Format.LATEX,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".rmd": Format.MARKDOWN,
    ".qmd": Format.MARKDOWN,
    ".txt": Format.PLAIN,
    ".docx": Format.WORD,
}


class UnreadableDraft(Exception):
    """A draft that cannot be answered. `field` is the wrong part of the request, `wanted` what would be right."""

    def __init__(self, field: str, value: object, wanted: str) -> None:
        super().__init__(f"{field} is {value}; expected {wanted}")
        self.field, self.value, self.wanted = field, value, wanted


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft's title, abstract, open places and problems."""

    main: str
    title: str
    abstract: str
    places: list[Place]
    """The marked places in reading order, then the suggested sentences, the most needy first."""
    left_out: int
    """The number of places beyond MAX_PLACES."""
    bibliography: Bibliography
    used_keys: frozenset[str]
    """Keys that the draft defines, or cites without a place being open for them."""
    problems: list[Problem]


def read_text(text: str, format_: Format | None, suggest: NeedModel | None = None) -> Draft:
    """Reads a draft that was sent as one text. With `suggest`, sentences that it finds are places too."""
    if len(text) > MAX_BYTES:
        raise UnreadableDraft("text", f"{len(text)} characters", f"at most {MAX_BYTES}")
    format_ = format_ or _guessed(text)
    if format_ is Format.WORD:
        raise UnreadableDraft("format", "MANUSCRIPT_FORMAT_DOCX", "a .docx among files instead of text")
    source = Source("", text)
    return _draft(source, {"": source}, flow_of(source, format_), None, suggest)


def read_files(
    files: Mapping[str, bytes], main: str = "", format_: Format | None = None, suggest: NeedModel | None = None
) -> Draft:
    """Reads a draft sent as files: LaTeX with its included files and .bib files, or one file of another kind."""
    files = _unpacked(files)
    name = _main(files, main)
    format_ = format_ or _FORMATS.get(PurePosixPath(name).suffix.lower(), Format.PLAIN)
    sources, problems = _sources(files, name, format_)
    bibliographies = [source for source in sources.values() if source.name.lower().endswith(".bib")]
    bibliography = read_bibtex(bibliographies) if bibliographies else None
    if format_ is Format.WORD:
        try:
            source, flow = read_word(name, files[name])
        except ValueError as error:
            raise UnreadableDraft(f"files[{name!r}]", error, "a .docx file") from None
        if len(source.text) > MAX_BYTES:
            raise UnreadableDraft(f"files[{name!r}]", f"{len(source.text)} characters of text", f"at most {MAX_BYTES}")
        sources[name] = source
    else:
        flow = flow_of(sources[name], format_, sources)
    flow.problems = [*problems, *flow.problems]
    return _draft(sources[name], sources, flow, bibliography, suggest)


def flow_of(source: Source, format_: Format, sources: Mapping[str, Source] = MappingProxyType({})) -> Flow:
    """Reads one file and the files that it includes."""
    match format_:
        case Format.LATEX:
            return read_latex(source, sources)
        case Format.MARKDOWN:
            return read_markdown(source)
        case _:
            return read_plain(source)


def files_of_latex(files: Mapping[str, bytes], main: str) -> set[str]:
    """The files that belong to a LaTeX draft: those that it includes, and the .bib files that it names.

    A draft that names no .bib file has all of them.
    """
    bibliographies = {name: Source(name, "") for name in files if name.lower().endswith(".bib")}
    texts = {name: Source(name, decoded(files[name])[0]) for name in files if name not in bibliographies}
    flow = flow_of(texts[main], Format.LATEX, texts)
    sent = SentFiles(bibliographies, main)
    named = [sent.find(each.name, ".bib") for each in flow.bibliographies]
    return flow.files | ({each.name for each in named if each} if flow.bibliographies else bibliographies.keys())


def _draft(
    main: Source,
    sources: Mapping[str, Source],
    flow: Flow,
    bibliography: Bibliography | None,
    suggest: NeedModel | None,
) -> Draft:
    missing = _missing_bibliographies(flow, SentFiles(sources, main.name), bibliography or Bibliography())
    keys = _known_keys(flow, None if missing else bibliography)
    found, left_out = places(flow, sources.values(), keys, MAX_PLACES)
    if suggest is not None:
        suggested, more = suggested_places(flow, sources.values(), suggest, MAX_PLACES - len(found))
        found += suggested
        left_out += more
    bibliography = bibliography or Bibliography()
    cited = {key for piece in flow.pieces if isinstance(piece, Citation) for key in piece.keys} - MISSING_KEYS
    return Draft(
        main.name,
        " ".join(flow.title.split()),
        " ".join(flow.abstract.split()),
        found,
        left_out,
        bibliography,
        frozenset(cited if keys is None else keys) | flow.defined_keys,
        [*flow.problems, *missing, *bibliography.problems],
    )


def _known_keys(flow: Flow, bibliography: Bibliography | None) -> frozenset[str] | None:
    """The keys that count as known; None = all, because not every bibliography of the draft is there."""
    if bibliography is None:
        return frozenset(flow.defined_keys) if flow.defined_keys and not flow.bibliographies else None
    return frozenset(bibliography.entries) | bibliography.unread_keys | flow.defined_keys


def _missing_bibliographies(flow: Flow, sent: SentFiles, bibliography: Bibliography) -> list[Problem]:
    """The .bib files that the draft names and that are not there, or have no entry that can be read."""
    problems = []
    for named in flow.bibliographies:
        found = sent.find(named.name, ".bib")
        if found is None:
            told = "names a .bib file that was not sent or is binary"
        elif found.name in bibliography.unread_files:
            told = f"names {found.name}, which has no entry that can be read"
        else:
            continue
        message = f"{named.written} {told}; all keys count as known"
        problems.append(Problem(named.file, named.line, named.column, message))
    return problems


def _guessed(text: str) -> Format:
    if "\\begin{document}" in text or "\\cite" in text:
        return Format.LATEX
    return Format.MARKDOWN if text.startswith(("---\n", "# ")) or "[@" in text else Format.PLAIN


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files, including those inside archives."""
    found: dict[str, bytes] = {}
    for name, content in files.items():
        if name.lower().endswith(".zip"):
            found |= _of_archive(name, content)
        else:
            if name.lower().endswith(".docx"):
                _of_archive(name, content, unpack=False)
            found[name] = content
    return found


def _of_archive(name: str, content: bytes, *, unpack: bool = True) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(each.file_size for each in archive.infolist())
            if size > MAX_UNPACKED_BYTES:
                raise UnreadableDraft(
                    f"files[{name!r}]", f"{size} bytes when unpacked", f"at most {MAX_UNPACKED_BYTES}"
                )
            document = sum(each.file_size for each in archive.infolist() if each.filename in (TEXT, *NOTES))
            if document > MAX_WORD_XML_BYTES:
                raise UnreadableDraft(
                    f"files[{name!r}]", f"{document} bytes of XML in its text", f"at most {MAX_WORD_XML_BYTES}"
                )
            wanted = (".tex", ".ltx", ".bib", ".md", ".markdown", ".rmd", ".qmd", ".txt", ".docx")
            inside = [each for each in archive.infolist() if each.filename.lower().endswith(wanted)] if unpack else []
            # macOS adds a binary file "._name" for each file.
            inside = [each for each in inside if not PurePosixPath(each.filename).name.startswith("._")]
            return {each.filename: archive.read(each) for each in inside}
    except (
        zipfile.BadZipFile,
        ValueError,
        struct.error,
        zlib.error,
        lzma.LZMAError,
        RuntimeError,
        NotImplementedError,
        OSError,
        EOFError,
    ) as error:
        raise UnreadableDraft(f"files[{name!r}]", f"no archive that can be read ({error})", "a .zip or .docx") from None


def _main(files: Mapping[str, bytes], named: str) -> str:
    if named:
        if named not in files:
            raise UnreadableDraft("main", repr(named), f"one of {sorted(files)[:20]}")
        return named
    drafts = [name for name in files if PurePosixPath(name).suffix.lower() in _FORMATS]
    whole = [name for name in drafts if name.lower().endswith(".tex") and b"\\begin{document}" in files[name]]
    candidates = whole or drafts
    if len(candidates) != 1:
        raise UnreadableDraft(
            "main",
            "empty",
            f"the name of the draft: it could be any of {sorted(candidates)[:20]}"
            if candidates
            else "a file that ends in .tex, .md, .txt or .docx",
        )
    return candidates[0]


def _sources(files: Mapping[str, bytes], main: str, format_: Format) -> tuple[dict[str, Source], list[Problem]]:
    """The text files. Text that is not UTF-8 is read as Latin-1 and reported; binary files are refused."""
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    size = 0
    for name, content in files.items():
        if format_ is Format.WORD and name == main:
            continue
        size += len(content)
        if size > MAX_BYTES:
            raise UnreadableDraft("files", f"more than {size} bytes of text", f"at most {MAX_BYTES}")
        if b"\0" in content:
            if name == main:
                raise UnreadableDraft(f"files[{name!r}]", "binary", "a text file")
            problems.append(Problem(name, 1, 1, "a binary file; it was left out"))
            continue
        text, broken = decoded(content)
        if broken is not None:
            line = content.count(b"\n", 0, broken) + 1
            column = broken - (content.rfind(b"\n", 0, broken) + 1) + 1
            problems.append(Problem(name, line, column, "no UTF-8; the file was read as Latin-1"))
        sources[name] = Source(name, text)
    return sources, problems
