"""`citewell`: each subcommand is a module of citewell.commands or citewell.lab.commands, imported when it is called."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from citewell import __version__
from citewell.commands.failing import EXIT_CODES, WRONG_USAGE, fail, told
from citewell.runtime.errors import CitewellError, InvalidField
from citewell.runtime.settings import UnknownSetting


@dataclass(frozen=True, slots=True)
class Entry:
    """A subcommand: what it does, the package its module lies in, and the extra that brings what it imports."""

    help: str
    package: str = "citewell.commands"
    extra: str = "embedded"


def _of_the_lab(help: str) -> Entry:
    return Entry(help, "citewell.lab.commands", "lab")


COMMANDS = {
    "up": Entry("Start the five services and the page for writers on this machine, and watch over them."),
    "down": Entry("Stop the services that `up` started."),
    "status": Entry("Show which services serve, where, and what they hold."),
    "demo": Entry("Show the whole system at work on an invented corpus, and stop everything again."),
    "recommend": Entry("Recommend what to cite at a marked place, and say why."),
    "explain": Entry("Explain why one paper stands where it stands for a query."),
    "manuscript": Entry("Show what to cite at each open place of a draft, and write it into a copy."),
    "lsp": Entry("Complete citations in editors (Language Server Protocol).", extra="editor"),
    "publish": Entry("Publish papers or retractions, one JSON object per line."),
    "load": Entry("Load a corpus of papers and citation contexts from files."),
    "bulk": Entry("Build a ledger of a large corpus with Spark; `load --bulk` loads it."),
    "follow": Entry("Publish the papers of files as they come into a folder."),
    "demo-corpus": Entry("Invent a corpus whose right answers are known."),
    "doctor": Entry("Check the environment, and the profiles against the ledger."),
    "rebuild": Entry("Fill a second view (another encoder, other α and β) while the first one serves; switch; drop."),
    "dead-letters": Entry("List events that can never be applied, and publish them again."),
    "replay": Entry("Deliver a range of the log again."),
    "restore": Entry("Adopt a ledger that was restored from a backup."),
    "migrate": Entry("Bring the ledger's tables to the schema of this version."),
    "topics": Entry("Create or check the Kafka topics."),
    "service-config": Entry("Print the gRPC service config that clients should use."),
    "evaluate": _of_the_lab("Measure retrieval and reranking on a data set."),
    "train": _of_the_lab("Train the models that ship, all of them on your own corpus, or a rival."),
    "report": _of_the_lab("Print the papers' tables: rivals and ours, measured in one run."),
    "export": _of_the_lab("Export a trained reranker for serving, or feedback as a data set."),
}


class _Deferred(TyperCommand):
    """A subcommand that is imported when it is called: `citewell --help` stays fast and needs no extra."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return _load(str(self.name), self._entry).make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _Deferred(cmd_name, COMMANDS[cmd_name]) if cmd_name in COMMANDS else None


def _load(name: str, entry: Entry) -> Any:
    module_name = name.replace("-", "_")
    module = importlib.import_module(f"{entry.package}.{module_name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer()
        app.command()(getattr(module, module_name))
    app._add_completion = False  # a subcommand has none of its own
    return typer.main.get_command(app)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False)


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _citewell(version: bool = typer.Option(False, "--version", help="Prints the version.")) -> None:
    """Tells a writer what to cite at a marked place in a draft, shows why, and stays current as papers appear."""
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """The console script. Errors of services and settings are one line: what is wrong, and what to do."""
    try:
        app()
    except CitewellError as error:
        if isinstance(error, InvalidField) and error.field.startswith("--"):  # no service was asked
            fail(error.message, WRONG_USAGE)
        fail(told(error))
    except ModuleNotFoundError as error:
        entry = next((COMMANDS[word] for word in sys.argv[1:] if word in COMMANDS), Entry(""))
        fail(f"the package {error.name!r} is not installed: pip install 'citewell[{entry.extra}]'")
    except UnknownSetting as error:
        fail(str(error), WRONG_USAGE)
    except OSError as error:
        if error.filename is None:
            raise
        fail(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
