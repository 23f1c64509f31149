"""`citewell lsp`: completion of citations in editors."""

from __future__ import annotations

from typing import Annotated

import typer

from citewell.commands.calls import Target, calls_services
from citewell.editor.server import EditorSettings, serve


@calls_services(timeout=0.45)
def lsp(
    target: Target,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, max=50, help="Papers that a completion offers.")] = 8,
    rerank: Annotated[bool, typer.Option(help="Let the reranker read the best candidates; slower.")] = False,
    feedback: Annotated[
        bool, typer.Option(help="Report accepted completions, if the service records feedback.")
    ] = True,
    share_text: Annotated[
        bool, typer.Option("--share-text", help="Let such a service keep the text around them, too.")
    ] = False,
) -> None:
    """Speaks the Language Server Protocol over standard input and output; editors start it.

    LaTeX, Markdown and plain text: completion after \\cite{ and [@, hover, a code action that adds the BibTeX entry.
    """
    serve(target.client("recommender"), EditorSettings(top_k, rerank, target.timeout, feedback, share_text))
