"""The completer of the prompt: SQL by `context`, commands by their own arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from tidemill.cli.shell.commands import REGISTRY
from tidemill.cli.shell.context import MOST_OFFERED, candidates
from tidemill.cli.shell.display_settings import FORMATS, DisplaySettings
from tidemill.cli.shell.help import statements
from tidemill.cli.shell.names import CatalogNames, Names
from tidemill.cli.shell.variables import identifier

_COMMAND = re.compile(r"\\(?P<name>[^\s\\]*)(?P<blank>\s+)?(?P<rest>[^\\\n]*)$")
_RELATIONS = re.compile(r"d[tvmisE]*[S+]*|sv|dp|z")
_PATHS = frozenset(
    {"i", "include", "ir", "include_relative", "o", "out", "w", "write", "e", "edit", "g", "gx", "cd"}
)
_SWITCH = ("on", "off")


class ShellCompleter(Completer):
    def __init__(self, names: CatalogNames) -> None:
        self._names = names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        found = _COMMAND.search(text.rpartition("\n")[2])
        if found is None or _in_quotes(text[: text.rfind("\\")]):
            for candidate in candidates(text, self._names.current):
                yield Completion(candidate.text, -candidate.length, display_meta=candidate.what)
        elif found["blank"] is None:
            name = found["name"]
            for known in sorted(REGISTRY):
                if known.startswith(name):
                    yield Completion("\\" + known, -len(name) - 1)
        elif found["name"] in _PATHS:
            yield from self._paths.get_completions(Document(found["rest"]), complete_event)
        else:
            yield from _arguments(found["name"], found["rest"], self._names.current)


def _in_quotes(text: str) -> bool:
    return text.count("'") % 2 == 1


def _arguments(name: str, rest: str, names: Names) -> Iterable[Completion]:
    words = rest.split(" ")
    begun = words[-1]
    for offer in offers(name, words[:-1], names)[:MOST_OFFERED]:
        start = rest if name in ("h", "help") else begun
        if offer.lower().startswith(start.lower()):
            yield Completion(offer, -len(start))


def offers(name: str, before: list[str], names: Names) -> list[str]:
    """The candidates for the next argument of a command."""
    if _RELATIONS.fullmatch(name):
        qualified = sorted(f"{identifier(s)}.{identifier(r)}" for s, r in names.relations)
        return sorted(identifier(n) for n in names.visible) + qualified
    if name in ("c", "connect"):
        return list((names.databases, names.roles)[len(before)]) if len(before) < 2 else []
    if name.startswith("dn"):
        return list(names.schemas)
    if name.startswith("df"):
        return list(names.functions)
    if name.startswith(("du", "dg", "password")):
        return list(names.roles)
    if name.startswith("dconfig"):
        return list(names.settings)
    if name in ("h", "help"):
        return list(statements())
    if name in ("x", "timing", "t"):
        return [*_SWITCH, "auto"] if name == "x" else [*_SWITCH]
    if name == "pset":
        choices = {"format": FORMATS, "linestyle": ("ascii", "unicode"), "expanded": (*_SWITCH, "auto")}
        return (
            list(choices.get(before[0], _SWITCH))
            if before
            else sorted(f.name for f in fields(DisplaySettings))
        )
    if name == "set":
        return ["ECHO", "ON_ERROR_STOP"] if not before else []
    return []
