"""Every command and option explains itself, and nothing of its text is lost on the way to the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rich.markup import render

from citewell.cli import COMMANDS, _load


def texts(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """The help of a command, its options and its subcommands, as rich gets it."""
    yield name, command.help or ""
    for option in command.params:
        yield f"{name} {option.name}", option.help or ""
    for below, subcommand in getattr(command, "commands", {}).items():
        yield from texts(f"{name} {below}", subcommand)


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.extra != "lab"])
def test_every_option_is_explained_and_no_text_is_taken_for_markup(name: str) -> None:
    for where, text in texts(name, _load(name, COMMANDS[name])):
        assert text, f"{where} has no help"
        assert render(text).plain == text.replace("\\[", "["), f"rich leaves out a part of {where}"
