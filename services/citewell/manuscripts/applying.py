"""Writes chosen citation keys into a copy of a draft."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from citewell.manuscripts import named_bibliographies
from citewell.manuscripts.cite_commands import MULTIPLE, key_groups
from citewell.manuscripts.markdown import keys_in, with_key
from citewell.manuscripts.named_bibliographies import active, named_in_latex

BIBLIOGRAPHY = "citewell"
"""Name of the bibliography that holds the chosen entries."""
_COMMAND = re.compile(r"\\[a-zA-Z]+\*?")
_COMMENT_LINE = re.compile(r"(?<!\\)%[^\n]*")
_END = "\\end{document}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to cite at a place: where it stands (code points), which of its keys stay, and the key to add."""

    file: str
    offset: int
    length: int
    own_keys: tuple[str, ...]
    key: str


def apply_choices(files: Mapping[str, str], choices: Iterable[Choice]) -> dict[str, str]:
    """The files with the choices in them; LaTeX drafts also name the new bibliography.

    A draft that names no bibliography gets one at its end, unless it writes its own by `thebibliography`.
    """
    written = dict(files)
    for choice in sorted(
        choices, key=lambda each: each.offset, reverse=True
    ):  # from the end, so that earlier offsets stay valid
        text = written[choice.file]
        place = text[choice.offset : choice.offset + choice.length]
        cited = _cited(place, choice.own_keys, choice.key, PurePosixPath(choice.file).suffix.lower())
        written[choice.file] = text[: choice.offset] + cited + text[choice.offset + choice.length :]
    latex = {name: text for name, text in written.items() if name.lower().endswith((".tex", ".ltx"))}
    if any(map(_names_it, latex.values())):  # of an earlier choice
        return written
    named = {name: _with_bibliography(text) for name, text in latex.items()}
    if named == latex:
        named = {name: _with_new_bibliography(text) for name, text in latex.items()}
    return written | named


def _cited(place: str, own_keys: tuple[str, ...], key: str, suffix: str) -> str:
    keys = (*own_keys, key)
    name = _COMMAND.match(place)
    if name and name[0].strip("\\*") in MULTIPLE:
        return _in_groups(place, frozenset(own_keys), key)
    if name:
        # The command with its notes stays; the last group holds the keys.
        return place[: _start_of_keys(place)] + "{" + ", ".join(keys) + "}"
    if suffix in (".tex", ".ltx"):
        return "\\cite{" + ", ".join(keys) + "}"
    return with_key(place, own_keys, key) if keys_in(place) else f"[@{key}]"


def _in_groups(command: str, own_keys: frozenset[str], key: str) -> str:
    """A command with several groups of keys, with `key` in the first group that misses one.

    Further groups without an own key go, with their notes.
    """
    groups = list(key_groups(command))
    if not groups:
        return f"{command.rstrip()}{{{key}}}"
    written, done, chosen = "", 0, False
    for start, end in groups:
        told = [each.strip() for each in _COMMENT_LINE.sub("", command[start + 1 : end - 1]).split(",")]
        kept = [each for each in told if each in own_keys]
        if len(kept) == len(told):
            written += command[done:end]
        elif not chosen:
            written += f"{command[done:start]}{{{', '.join([*kept, key])}}}"
            chosen = True
        elif kept:
            written += f"{command[done:start]}{{{', '.join(kept)}}}"
        done = end
    return written


def _start_of_keys(command: str) -> int:
    """Where the last group of a citation command begins; the end of its name if it has none ("\\cite x")."""
    depth = 0
    if command.endswith("}"):
        for at in range(len(command) - 1, -1, -1):
            depth += {"}": 1, "{": -1}.get(command[at], 0)
            if depth == 0:
                return at
    name = _COMMAND.match(command)
    return name.end() if name else len(command)


def _names_it(text: str) -> bool:
    """Whether a LaTeX file names the new bibliography already."""
    return any(name.removesuffix(".bib") == BIBLIOGRAPHY for name in named_in_latex(text))


def _with_bibliography(text: str) -> str:
    """A LaTeX file whose first command that names a bibliography names the new one, too."""
    if match := next(active(named_bibliographies.BIBLIOGRAPHY, text), None):
        return f"{text[: match.end() - 1]},{BIBLIOGRAPHY}{text[match.end() - 1 :]}"
    if match := next(active(named_bibliographies.RESOURCE, text), None):
        return f"{text[: match.end()]}\n\\addbibresource{{{BIBLIOGRAPHY}.bib}}{text[match.end() :]}"
    return text


def _with_new_bibliography(text: str) -> str:
    """A LaTeX file with a bibliography of its own at its end."""
    end = text.rfind(_END)
    if end < 0 or "\\begin{thebibliography}" in text:
        return text
    return f"{text[:end]}\\bibliographystyle{{plain}}\n\\bibliography{{{BIBLIOGRAPHY}}}\n{text[end:]}"
