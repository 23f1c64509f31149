"""The language server as an editor uses it: over pipes, with a real recommender behind it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from pytest_lsp import LanguageClient, make_test_lsp_client

from citewell.manuscripts.bibliography import read_bibtex
from citewell.manuscripts.flow import Source
from tests.e2e.conftest import Running


@pytest_asyncio.fixture
async def editor(running: Running, tmp_path: Path) -> AsyncIterator[LanguageClient]:
    """A headless editor. It stores the edits that the server requests in `edits`."""
    client = make_test_lsp_client()
    client.edits = []

    @client.feature(lsp.WORKSPACE_APPLY_EDIT)
    def apply(params: lsp.ApplyWorkspaceEditParams) -> lsp.ApplyWorkspaceEditResult:
        client.edits.append(params.edit)
        return lsp.ApplyWorkspaceEditResult(applied=True)

    address = running.stack.addresses["recommender"]
    # A long timeout: this tests the answers, not the speed of a busy machine.
    arguments = ["-m", "citewell.cli", "lsp", "--address", address, "--timeout", "20"]
    await client.start_io(sys.executable, *arguments)
    await client.initialize_session(
        lsp.InitializeParams(capabilities=lsp.ClientCapabilities(), root_uri=tmp_path.as_uri())
    )
    yield client
    await client.shutdown_session()
    await client.stop()


def _open(client: LanguageClient, path: Path, text: str, language: str) -> tuple[str, lsp.Position]:
    """Opens a draft whose cursor is at the "|"."""
    cursor = text.index("|")
    text = text.replace("|", "")
    path.write_text(text)
    item = lsp.TextDocumentItem(path.as_uri(), language, 1, text)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
    before = text[:cursor]
    return item.uri, lsp.Position(before.count("\n"), len(before) - before.rfind("\n") - 1)


async def _complete(client: LanguageClient, uri: str, at: lsp.Position) -> list[lsp.CompletionItem]:
    answer = await client.text_document_completion_async(lsp.CompletionParams(lsp.TextDocumentIdentifier(uri), at))
    assert isinstance(answer, lsp.CompletionList)
    return list(answer.items)


async def test_a_citation_is_completed_explained_and_put_into_the_bibliography(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{|}")
    title = running.queries[0].query.title
    text = f"\\title{{{title}}}\n\\begin{{document}}\n{context}\n\\bibliography{{refs}}\n\\end{{document}}\n"
    uri, at = _open(editor, tmp_path / "draft.tex", text, "latex")
    items = await _complete(editor, uri, at)
    assert len(items) == 8
    assert items == sorted(items, key=lambda item: str(item.sort_text))
    first = items[0]
    assert isinstance(first.text_edit, lsp.TextEdit)
    assert isinstance(first.documentation, lsp.MarkupContent)
    assert str(first.detail) in first.documentation.value
    # The user writes the key; the editor asks for hover text on it.
    written = text.replace("|", first.label)
    editor.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(2, uri), [lsp.TextDocumentContentChangeWholeDocument(written)]
        )
    )
    inside = lsp.Position(at.line, at.character + 1)
    hover = await editor.text_document_hover_async(lsp.HoverParams(lsp.TextDocumentIdentifier(uri), inside))
    assert hover is not None
    assert isinstance(hover.contents, lsp.MarkupContent)
    assert str(first.detail) in hover.contents.value
    where = lsp.Range(inside, inside)
    actions = await editor.text_document_code_action_async(
        lsp.CodeActionParams(lsp.TextDocumentIdentifier(uri), where, lsp.CodeActionContext([]))
    )
    assert actions
    action = actions[0]
    assert isinstance(action, lsp.CodeAction)
    assert action.title == f"Add {first.label} to refs.bib"
    assert _added(action.edit, tmp_path) == [(first.label, first.detail)]
    # Accepting a completion adds the entry through a command.
    command = first.command
    assert isinstance(command, lsp.Command)
    await editor.workspace_execute_command_async(lsp.ExecuteCommandParams(command.command, command.arguments))
    assert _added(editor.edits[-1], tmp_path) == [(first.label, first.detail)]


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
async def test_in_the_middle_of_a_key_the_whole_key_is_replaced(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    cited = "\\parencites[see][]{old}\n  [3]{smi|th2020, more}"
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", cited)
    uri, at = _open(editor, tmp_path / "draft.tex", context, "latex")
    first, *_ = await _complete(editor, uri, at)
    assert isinstance(first.text_edit, lsp.TextEdit)
    edited = first.text_edit.range
    assert (edited.start.line, edited.end.line, edited.start.character, edited.end.character) == (
        at.line,
        at.line,
        at.character - len("smi"),
        at.character + len("th2020"),
    )


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
async def test_an_entry_that_is_not_saved_yet_is_added_once_and_for_its_own_draft(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{|}")
    text = f"{context}\n\\bibliography{{refs}}\n"
    uri, at = _open(editor, tmp_path / "draft.tex", text, "latex")
    other, _ = _open(editor, tmp_path / "other.tex", text.replace("refs", "others"), "latex")
    first, *_ = await _complete(editor, uri, at)
    assert first.command is not None
    run = lsp.ExecuteCommandParams(first.command.command, first.command.arguments)
    await editor.workspace_execute_command_async(run)
    assert next(item.label for item in await _complete(editor, uri, at)) == first.label
    await editor.workspace_execute_command_async(run)
    assert [_added(edit, tmp_path) for edit in editor.edits] == [[(first.label, first.detail)]]
    # What was suggested in one draft says nothing about the same key in another.
    of_other = lsp.ExecuteCommandParams(first.command.command, [other, first.label])
    await editor.workspace_execute_command_async(of_other)
    assert len(editor.edits) == 1


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
async def test_a_title_in_the_making_and_a_draft_without_a_file_do_not_stop_completions(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{|}")
    far = "More words stand below the title. " * 200
    draft = f"\\title{{Half\n\\begin{{document}}\n{far}\n\n{context}\n\\end{{document}}\n"
    assert await _complete(editor, *_open(editor, tmp_path / "half.tex", draft, "latex"))
    for language in ("latex", "plaintext"):
        uri = f"untitled:{language}"
        text = context if language == "latex" else context.replace("\\cite{|}", "[@|]")
        cursor = text.index("|")
        item = lsp.TextDocumentItem(uri, language, 1, text.replace("|", ""))
        editor.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        assert await _complete(editor, uri, lsp.Position(text.count("\n", 0, cursor), cursor))


def _added(edit: Any, folder: Path) -> list[tuple[str, str]]:
    """The entries that an edit adds to refs.bib."""
    create, change = edit.document_changes
    assert create.uri == (folder / "refs.bib").as_uri()
    entries = read_bibtex([Source("refs.bib", change.edits[0].new_text)]).entries
    return [(entry.key, entry.title) for entry in entries.values()]


async def test_markdown_is_completed_and_open_places_are_reported(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    context = running.queries[1].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "[@|]")
    uri, at = _open(editor, tmp_path / "draft.md", f"# A draft\n\n{context}\n\nAlso [@?].\n", "markdown")
    assert len(await _complete(editor, uri, at)) == 8
    await editor.workspace_execute_command_async(lsp.ExecuteCommandParams("citewell.check", [uri]))
    lines = [each.range.start.line for each in editor.diagnostics[uri]]
    assert lines == [2, 4]


async def test_elsewhere_and_in_broken_drafts_nothing_is_offered(editor: LanguageClient, tmp_path: Path) -> None:
    uri, at = _open(editor, tmp_path / "plain.tex", "No citation here| at all {{{ \\cite", "latex")
    params = lsp.CompletionParams(lsp.TextDocumentIdentifier(uri), at)
    assert await editor.text_document_completion_async(params) is None


async def test_a_completion_that_is_typed_over_is_cancelled(
    running: Running, editor: LanguageClient, tmp_path: Path
) -> None:
    context = running.queries[0].query.context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{|}")
    uri, at = _open(editor, tmp_path / "draft.tex", context, "latex")
    params = lsp.CompletionParams(lsp.TextDocumentIdentifier(uri), at)
    before = running.answered()
    for number in range(20):
        editor.protocol.send_request("textDocument/completion", params, msg_id=f"typed-{number}")
        editor.cancel_request(lsp.CancelParams(f"typed-{number}"))
    assert await _complete(editor, uri, at)
    assert before < running.answered_at_rest() < before + 10, "what was typed over is not asked for"


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
async def test_without_a_service_the_editor_is_told_and_goes_on(running: Running, tmp_path: Path) -> None:
    client = make_test_lsp_client()
    await client.start_io(sys.executable, "-m", "citewell.cli", "lsp", "--address", "127.0.0.1:1", "--timeout", "1")
    await client.initialize_session(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
    uri, at = _open(client, tmp_path / "draft.tex", "Trees \\cite{|} grow.", "latex")
    assert await _complete(client, uri, at) == []
    assert any("citewell" in message.message for message in client.log_messages)
    await client.shutdown_session()
    await client.stop()
