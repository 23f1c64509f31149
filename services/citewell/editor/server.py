"""The language server's features: completion, hover, a code action and diagnostics."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from citewell import __version__
from citewell.client import AsyncCitewell, CitewellError, Item, Options, Query
from citewell.client.results import STAGE_NAMES
from citewell.editor.bibliography_file import BibliographyFiles, path_of_bibliography
from citewell.editor.choices import ChoiceReports, Suggestion
from citewell.editor.typing_place import TypingPlace, typing_place
from citewell.manuscripts.bibliography import Bibliography, new_keys, to_bibtex
from citewell.manuscripts.drafts import Format, read_text
from citewell.manuscripts.need import NeedModel, read_need_model
from citewell.scholarly.limits import MAX_ABSTRACT, MAX_TITLE
from citewell.scholarly.papers import Paper

ADD_ENTRY = "citewell.addEntry"
CHECK = "citewell.check"
SUGGEST = "citewell.suggest"
MAX_REMEMBERED = 500
_BETWEEN_KEYS = " \t\r\n,;@{}[]()"
_FORMATS = {"latex": Format.LATEX, "tex": Format.LATEX, "plaintex": Format.LATEX, "markdown": Format.MARKDOWN}
_SUFFIXES = {".tex": Format.LATEX, ".md": Format.MARKDOWN, ".qmd": Format.MARKDOWN, ".rmd": Format.MARKDOWN}


@dataclass(frozen=True, slots=True)
class EditorSettings:
    """Settings of the language server's queries."""

    top_k: int = 8
    rerank: bool = False
    """Let the reranker read the best candidates. Writers who type want an answer at once, so it is off by default."""
    seconds: float = 0.45
    """Seconds the recommender may take. If time runs out, the answer comes without the reranker."""
    feedback: bool = True
    """Report accepted completions to a service that records feedback."""
    share_text: bool = False
    """Let such a service keep the text around them."""


class CitewellServer(LanguageServer):
    """Asks a recommender for the citation that is being typed."""

    def __init__(self, client: AsyncCitewell, settings: EditorSettings) -> None:
        super().__init__("citewell", __version__)
        self._client, self.settings = client, settings
        self._known: OrderedDict[tuple[str, str], Suggestion] = OrderedDict()
        """By the draft's URI and the key."""
        self._added: dict[Path, dict[str, str]] = {}
        """Papers by their keys that were added to .bib files, which the editor may not have saved yet."""
        self.reports = ChoiceReports(client, enabled=settings.feedback, share_text=settings.share_text)
        self._titles: dict[str, tuple[int, str, str]] = {}
        self._bibliographies = BibliographyFiles()

    def format_of(self, document: TextDocument) -> Format:
        """The format of a document."""
        by_language = _FORMATS.get((document.language_id or "").lower())
        return by_language or _SUFFIXES.get(Path(document.path or "").suffix.lower(), Format.PLAIN)

    async def suggestions(self, document: TextDocument, place: TypingPlace) -> list[tuple[str, Item]]:
        """Keys and papers for a place, best first. Papers in the bibliography keep their keys."""
        title, abstract = self._about(document)
        options = Options(
            top_k=self.settings.top_k + len(place.keys), rerank=self.settings.rerank, full=True, allow_partial=True
        )
        query = Query(place.context, title, abstract)
        # The file is read in a thread while the recommender works; it is parsed only if it has changed.
        answer, bibliography = await asyncio.gather(
            self._client.recommend(query, options, timeout=self.settings.seconds),
            asyncio.to_thread(self.bibliography_of, document),
        )
        added = self._added.get(bibliography_path(document), {})
        added = {key: paper for key, paper in added.items() if key not in bibliography.entries}
        papers = [item.paper for item in answer.items]
        keys = new_keys(papers, [*bibliography.entries, *added])
        found = []
        for key, item in zip(keys, answer.items, strict=True):
            known = bibliography.keys_of(item.paper) or [key for key, paper in added.items() if paper == item.paper.id]
            if place.keys.isdisjoint(known):
                found.append((known[0] if known else key, item))
        found = found[: self.settings.top_k]
        shown = tuple(item.paper.id for _, item in found)
        for key, item in found:
            self._known[document.uri, key] = Suggestion(item, answer, shown, query)
            self._known.move_to_end((document.uri, key))
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found

    def bibliography_of(self, document: TextDocument) -> Bibliography:
        """The bibliography of a draft."""
        return self._bibliographies.read(bibliography_path(document))

    def suggestion_of(self, uri: str, key: str) -> Suggestion | None:
        """What was suggested for a draft under a key."""
        return self._known.get((uri, key))

    def item_of(self, uri: str, key: str) -> Item | None:
        """The item that was suggested for a draft under a key."""
        suggestion = self._known.get((uri, key))
        return suggestion.item if suggestion else None

    def needs_entry(self, document: TextDocument, key: str) -> bool:
        """Whether the .bib file has no such entry and was not given one that the editor may not have saved yet."""
        added = self._added.get(bibliography_path(document), {})
        return key not in added and key not in self.bibliography_of(document).entries

    def entry_was_added(self, document: TextDocument, key: str, paper: Paper) -> None:
        """Remembers an entry that the editor has put into the .bib file."""
        self._added.setdefault(bibliography_path(document), {})[key] = paper.id

    def _about(self, document: TextDocument) -> tuple[str, str]:
        """Title and abstract. They rarely change, so they are parsed again only after a hundred changes."""
        version = document.version or 0
        read, title, abstract = self._titles.get(document.uri, (-1000, "", ""))
        if abs(version - read) >= 100:
            draft = read_text(document.source[:20_000], self.format_of(document))
            # While `\\title{` has no closing bracket yet, the whole draft reads as its title.
            title = draft.title if len(draft.title) <= MAX_TITLE else ""
            abstract = draft.abstract[:MAX_ABSTRACT]
            self._titles[document.uri] = (version, title, abstract)
        return title, abstract


def build_server(client: AsyncCitewell, settings: EditorSettings) -> CitewellServer:
    """The server with its features, not yet started."""
    server = CitewellServer(client, settings)

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["{", ",", "@", ";"]))
    async def complete(params: lsp.CompletionParams) -> lsp.CompletionList | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        cursor = document.offset_at_position(params.position)
        place = typing_place(document.source, cursor, server.format_of(document))
        if place is None:
            return None
        try:
            found = await server.suggestions(document, place)
        except CitewellError as error:
            server.window_log_message(lsp.LogMessageParams(lsp.MessageType.Warning, f"citewell: {error.message}"))
            return lsp.CompletionList(is_incomplete=True, items=[])
        start = document.client_position_at_offset(cursor - len(place.typed))
        end = document.client_position_at_offset(cursor + len(place.tail)) if place.tail else params.position
        edited = lsp.Range(start, end)
        items = [_completion(server, document, place, edited, *each) for each in enumerate(found)]
        return lsp.CompletionList(is_incomplete=True, items=items)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        key = _key_at(document, params.position)
        if item := server.item_of(document.uri, key):
            return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, why(item)))
        entry = server.bibliography_of(document).entries.get(key)
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.PlainText, entry.title)) if entry else None

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION)
    def code_actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        document = server.workspace.get_text_document(params.text_document.uri)
        key = _key_at(document, params.range.start)
        item = server.item_of(document.uri, key)
        if item is None or key in server.bibliography_of(document).entries:
            return []
        title = f"Add {key} to {bibliography_path(document).name}"
        return [lsp.CodeAction(title, lsp.CodeActionKind.QuickFix, edit=_entry_edit(document, key, item.paper))]

    @server.command(ADD_ENTRY)
    async def add_entry(uri: str, key: str) -> None:
        document = server.workspace.get_text_document(uri)
        suggestion = server.suggestion_of(document.uri, key)
        if suggestion is None:
            return
        if server.needs_entry(document, key):
            paper = suggestion.item.paper
            told = await server.workspace_apply_edit_async(
                lsp.ApplyWorkspaceEditParams(_entry_edit(document, key, paper))
            )
            if told.applied:
                server.entry_was_added(document, key, paper)
        await server.reports.accepted(suggestion)

    @server.command(CHECK)
    def check(uri: str) -> None:
        publish(uri, None)

    @server.command(SUGGEST)
    def suggest(uri: str) -> None:
        publish(uri, read_need_model())

    def publish(uri: str, model: NeedModel | None) -> None:
        document = server.workspace.get_text_document(uri)
        found = _diagnostics(server, document, model)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, document.version))

    @server.feature(lsp.SHUTDOWN)
    async def shutdown(_: Any) -> None:
        await client.close()

    return server


def bibliography_path(document: TextDocument) -> Path:
    """Where the .bib file of a draft lies, or would lie."""
    # A draft that was never saved has no path. Its name is the last part of its URI.
    return path_of_bibliography(Path(document.path or document.filename or ""), document.source)


def why(item: Item) -> str:
    """A paper and the reasons for it, as Markdown."""
    paper = item.paper
    lines = [
        f"**{paper.title}**",
        ", ".join(filter(None, [", ".join(paper.authors[:4]), str(paper.published), paper.venue])),
    ]
    lines += [
        f"> {evidence.text.replace('TARGETCIT', '[this paper]').replace('OTHERCIT', '[…]')}"
        for evidence in item.evidence
    ]
    if item.words:
        lines.append("Words in common: " + ", ".join(word.word for word in item.words))
    opinions = ", ".join(f"{STAGE_NAMES.get(stage.stage, stage.stage)} #{stage.rank}" for stage in item.stages)
    lines.append(f"{opinions}; cited by {item.in_degree} papers")
    return "\n\n".join(line for line in lines if line)


def _completion(
    server: CitewellServer, document: TextDocument, place: TypingPlace, edited: lsp.Range, number: int,
    found: tuple[str, Item],
) -> lsp.CompletionItem:  # fmt: skip
    key, item = found
    return lsp.CompletionItem(
        label=key,
        label_details=lsp.CompletionItemLabelDetails(description=item.paper.title),
        kind=lsp.CompletionItemKind.Reference,
        detail=item.paper.title,
        documentation=lsp.MarkupContent(lsp.MarkupKind.Markdown, why(item)),
        text_edit=lsp.TextEdit(edited, key),
        # The filter text is what was typed, so editors keep every item; the sort text keeps the recommender's order.
        filter_text=place.typed or key,
        sort_text=f"{number:04}",
        command=lsp.Command("Add the BibTeX entry", ADD_ENTRY, arguments=[document.uri, key]),
    )


def _key_at(document: TextDocument, position: lsp.Position) -> str:
    text, at = document.source, document.offset_at_position(position)
    start = end = at
    while start > 0 and text[start - 1] not in _BETWEEN_KEYS:
        start -= 1
    while end < len(text) and text[end] not in _BETWEEN_KEYS:
        end += 1
    return text[start:end]


def _entry_edit(document: TextDocument, key: str, paper: Paper) -> lsp.WorkspaceEdit:
    """Appends the entry to the draft's .bib file, creating the file if needed."""
    path = bibliography_path(document)
    uri = path.absolute().as_uri()
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.split("\n")
    # Columns are UTF-16 units unless the editor asked for other units; the end of the file is the end of the last line.
    end = lsp.Position(len(lines) - 1, len(lines[-1].encode("utf-16-le")) // 2)
    new = ("" if not text or text.endswith("\n") else "\n") + to_bibtex([paper], [key])
    create = lsp.CreateFile(uri=uri, options=lsp.CreateFileOptions(ignore_if_exists=True))
    change = lsp.TextDocumentEdit(
        lsp.OptionalVersionedTextDocumentIdentifier(uri=uri), [lsp.TextEdit(lsp.Range(end, end), new)]
    )
    return lsp.WorkspaceEdit(document_changes=[create, change])


def _diagnostics(server: CitewellServer, document: TextDocument, model: NeedModel | None) -> list[lsp.Diagnostic]:
    draft = read_text(document.source, server.format_of(document), model)
    found = []
    for place in draft.places:
        start = document.client_position_at_offset(place.citation.offset)
        end = document.client_position_at_offset(place.citation.offset + place.citation.length)
        found.append(
            lsp.Diagnostic(
                lsp.Range(start, end),
                "a citation is missing here"
                if place.need is None
                else f"this sentence looks as if it needs a citation ({place.need:.0%})",
                lsp.DiagnosticSeverity.Information if place.need is None else lsp.DiagnosticSeverity.Hint,
                source="citewell",
            )
        )
    return found


def serve(client: AsyncCitewell, settings: EditorSettings) -> None:
    """Speaks LSP over standard input and output until the editor ends it."""
    build_server(client, settings).start_io()
