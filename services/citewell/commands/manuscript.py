"""`citewell manuscript`: what to cite at every open place of a draft."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from citewell.client import Options
from citewell.client.options import options_to_message
from citewell.commands.asking import BeforeOption, dated
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.manuscripts.applying import BIBLIOGRAPHY, Choice, apply_choices
from citewell.manuscripts.bibliography import DraftKeys, to_bibtex, to_csl
from citewell.manuscripts.drafts import files_of_latex, read_files
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import answers as answers_of
from citewell.runtime.errors import InvalidField
from citewell.scholarly.decoding import decoded
from citewell.scholarly.papers import Paper
from citewell.types.messages import paper_from_message

BIBLIOGRAPHY_FILE = f"{BIBLIOGRAPHY}.bib"
_A_FILE: dict[str, Any] = {"exists": True, "dir_okay": False}


@calls_services(timeout=600.0)
def manuscript(
    target: Target,
    draft: Annotated[
        Path,
        typer.Argument(help="A .tex, .md, .txt, .docx or .zip file. LaTeX includes are read beside it.", **_A_FILE),
    ],
    bib: Annotated[
        list[Path] | None, typer.Option(help="A .bib file of the draft; may be repeated.", **_A_FILE)
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, max=100, help="How many papers a place.")] = 3,
    before: BeforeOption = "",
    rerank: Annotated[bool, typer.Option(help="Let the reranker read the best candidates.")] = True,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Also answer sentences that look as if they lack a citation.")
    ] = False,
    min_need: Annotated[
        float, typer.Option(min=0, max=1, help="How likely such a sentence must need one; 0 = the default threshold.")
    ] = 0.0,
    apply: Annotated[
        Path | None,
        typer.Option(
            help="Writes a copy of the draft into this new folder, with the best paper cited at each marked place, "
            "and citewell.bib with its entries. Sentences found by --suggest are not changed."
        ),
    ] = None,
    bibtex: Annotated[Path | None, typer.Option(help="Writes BibTeX of all suggested papers to this file.")] = None,
    csl: Annotated[Path | None, typer.Option(help="Writes CSL-JSON of all suggested papers to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows what to cite at each place where a citation is missing: \\cite{}, \\cite{?}, unknown keys, [?], \\[@?]."""
    files = _files(draft, bib or [])
    if apply and (draft.suffix in (".docx", ".zip") or apply.exists()):
        raise InvalidField("--apply", apply, "a new folder, for a draft in LaTeX, Markdown or plain text")
    options = options_to_message(Options(top_k=top_k, rerank=rerank, full=True, filter=dated(before)))
    request = messages.RecommendManuscriptRequest(
        files=[messages.ManuscriptFile(name=name, content=content) for name, content in files.items()],
        main=draft.name if draft.suffix != ".zip" else "",
        options=options,
        suggest=suggest,
        min_need=min_need,
    )
    console = Console(highlight=False, stderr=as_json)
    answers = target.run(_ask(request, target, console, as_json=as_json))
    papers = _papers(answers)
    read = read_files(files, request.main)
    keys = dict(zip(papers, DraftKeys(read.bibliography, read.used_keys).of(list(papers.values())), strict=True))
    for path, text in (
        (bibtex, to_bibtex(list(papers.values()), list(keys.values()))),
        (csl, json.dumps(to_csl(list(papers.values()), list(keys.values())), indent=2, ensure_ascii=False)),
    ):
        if path:
            path.write_text(text, encoding="utf-8")
    if apply:
        choices = [
            Choice(
                answer.file,
                answer.offset,
                answer.length,
                tuple(answer.own_keys),
                keys[answer.result.response.items[0].paper.id],
            )
            for answer in answers
            if answer.result.response.items and not answer.HasField("suggested")
        ]
        chosen = {choice.key for choice in choices} - read.bibliography.entries.keys()
        added = {key: papers[paper_id] for paper_id, key in keys.items() if key in chosen}
        texts = {name: decoded(content) for name, content in files.items()}
        written = apply_choices({name: text for name, (text, _) in texts.items()}, choices)
        chosen_before = written.pop(BIBLIOGRAPHY_FILE, "")
        for name, text in written.items():
            (apply / name).parent.mkdir(parents=True, exist_ok=True)
            (apply / name).write_bytes(text.encode("utf-8" if texts[name][1] is None else "latin-1"))
        entries = filter(None, (chosen_before.strip(), to_bibtex(list(added.values()), list(added)).strip()))
        (apply / BIBLIOGRAPHY_FILE).write_text("\n\n".join([*entries, ""]), encoding="utf-8")
        console.print(f"{len(choices)} places cited in {escape(str(apply))}; citewell.bib has {len(added)} new entries")


async def _ask(
    request: messages.RecommendManuscriptRequest, target: Target, console: Console, *, as_json: bool
) -> list[messages.RecommendManuscriptResponse]:
    answers: list[messages.RecommendManuscriptResponse] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    async with target.channel("recommender") as channel:
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task("places answered", total=None)
            stub = RecommenderServiceStub(channel)
            async with aclosing(answers_of(stub.RecommendManuscript, request, "manuscript")) as ready:
                async for answer in ready:
                    if answer.HasField("outline"):
                        bars.update(task, total=answer.outline.places)
                        _print_outline(answer.outline, console)
                    else:
                        answers.append(answer)
                        bars.advance(task)
                    if as_json:
                        typer.echo(MessageToJson(answer, preserving_proto_field_name=True, indent=None))
                    elif answer.HasField("result"):
                        _print_place(answer, console)
    return answers


def _print_outline(outline: messages.ManuscriptOutline, console: Console) -> None:
    suggested = f", {outline.suggested} of them suggested" if outline.suggested else ""
    places = "place" if outline.places == 1 else "places"
    console.print(f"[bold]{escape(outline.title or 'no title found')}[/bold]: {outline.places} {places}{suggested}")
    if not outline.places:
        console.print(r"mark a place with \cite{} or \[?] where a citation is missing, or try --suggest")
    if outline.places_left_out:
        console.print(f"[yellow]{outline.places_left_out} more places are left out[/yellow]")
    for problem in outline.problems:
        where = f"{problem.file}:{problem.line}:{problem.column}"
        console.print(f"[yellow]{escape(where)}[/yellow] {escape(problem.message)}")


def _print_place(answer: messages.RecommendManuscriptResponse, console: Console) -> None:
    before, _, after = answer.context.partition("TARGETCIT")
    where = f"{answer.file}:{answer.line}:{answer.column}"
    need = f" [magenta]suggested, {answer.suggested.need:.0%}[/magenta]" if answer.HasField("suggested") else ""
    text = f"…{escape(before[-60:])}[reverse] ? [/reverse]{escape(after[:40])}…"
    console.print(f"\n[cyan]{escape(where)}[/cyan]{need} {text}")
    if answer.result.HasField("error"):
        console.print(f"     [red]{answer.result.error.reason}[/red]: {escape(answer.result.error.message)}")
    elsewhere = {each.paper_id: ", ".join(each.keys) for each in answer.cited_elsewhere}
    for item in answer.result.response.items:
        year = str(item.paper.published.year or "")
        cited = (
            f" [green]cited elsewhere as {escape(elsewhere[item.paper.id])}[/green]"
            if item.paper.id in elsewhere
            else ""
        )
        console.print(f"{item.rank:>3}  {escape(item.paper.title)} [dim]{escape(item.paper.id)} {year}[/dim]{cited}")
        for span in item.evidence[:1]:
            console.print(f"     [italic]“{escape(span.text)}”[/italic]")


def _files(draft: Path, bibs: list[Path]) -> dict[str, bytes]:
    """The draft, what it includes, and its bibliographies, by their paths below its folder."""
    files = {draft.name: draft.read_bytes()}
    latex = draft.suffix.lower() in (".tex", ".ltx")
    if latex:
        files |= _beside(draft, draft.parent.rglob("*.tex"))
    for path in bibs:
        if path.name in files:
            raise InvalidField("--bib", path, "a file whose name no other file of the draft has")
        files[path.name] = path.read_bytes()
    if not bibs:
        files |= _beside(draft, draft.parent.rglob("*.bib") if latex else draft.parent.glob("*.bib"))
    if not latex:
        return files
    wanted = files_of_latex(files, draft.name) | {path.name for path in bibs}
    return {name: content for name, content in files.items() if name in wanted}


def _beside(draft: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    """The files by their paths below the draft's folder. Emacs's locks are links to nothing, and are left out."""
    return {path.relative_to(draft.parent).as_posix(): path.read_bytes() for path in sorted(paths) if path.is_file()}


def _papers(answers: list[messages.RecommendManuscriptResponse]) -> dict[str, Paper]:
    """The suggested papers, in the order of the places."""
    ordered = sorted(answers, key=lambda answer: answer.place)
    return {item.paper.id: paper_from_message(item.paper) for each in ordered for item in each.result.response.items}
