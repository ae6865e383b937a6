"""Completion candidates for SQL: from the text around the cursor and the known names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.cli.shell.keywords import KEYWORDS
from tidemill.cli.shell.names import Names
from tidemill.cli.shell.variables import identifier

# How much text before the cursor is examined: typing must stay fast in a statement of megabytes.
MOST_TEXT = 20_000
# The maximum number of candidates.
MOST_OFFERED = 500

_TOKEN = re.compile(r"""'(?:[^']|'')*'? | "(?:[^"]|"")*"? | --[^\n]* | [^\W\d][\w$]* | \S""", re.VERBOSE)
_LAST = re.compile(r"""(?:(?P<quoted>"[^"]*)|(?P<word>[^\W\d][\w$]*))?$""")
_BEFORE_RELATION = {
    "from",
    "join",
    "into",
    "update",
    "table",
    "subscribe",
    "view",
    "source",
    "describe",
    "copy",
    "truncate",
}
_BETWEEN = {"to", "only", "exists", "if", "not", "lateral"}
_ENDS_LIST = {
    "where",
    "group",
    "order",
    "having",
    "limit",
    "on",
    "using",
    "set",
    "select",
    "values",
    "union",
    "as",
    "returning",
}
_SETTINGS_AFTER = {"set", "show", "reset"}
_ROLES_AFTER = {"role", "owner", "user", "grantee"}
_QUALIFIED = re.compile(r"""((?:[^\W\d][\w$]*|"[^"]*")\s*\.\s*)+$""")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replacement for the last `length` characters. `what` describes it."""

    text: str
    length: int
    what: str


def candidates(text: str, names: Names) -> list[Candidate]:
    """The candidates for SQL, best first. None within a string or a comment."""
    text = text[-MOST_TEXT:]
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    if tokens and text.endswith(tokens[-1]) and (tokens[-1].startswith("--") or _open_string(tokens[-1])):
        return []
    last = _LAST.search(text)
    begun = last.group() if last is not None else ""
    before = text[: len(text) - len(begun)]
    qualified = _QUALIFIED.search(before)
    if qualified is not None:
        parts = [_plain(part.strip()) for part in re.split(r"\.", qualified.group()) if part.strip()]
        return _offered(_after_dot(parts, text, names), begun)
    return _offered(_free(before, text, names), begun)


def _open_string(token: str) -> bool:
    return token.startswith("'") and (len(token) < 2 or not token.endswith("'"))


Offer = tuple[str, str]


def _after_dot(parts: list[str], text: str, names: Names) -> Iterable[Offer]:
    """After `x.`: the columns of a relation or alias x, or the relations of a schema x."""
    owner = parts[-1]
    schema = parts[-2] if len(parts) > 1 else None
    mentioned = dict(mentions(text, names))
    if schema is None and owner in mentioned:
        yield from ((column, "column") for column in names.columns_of(*mentioned[owner]))
    else:
        yield from ((column, "column") for column in names.columns_of(schema, owner))
    yield from ((name, "relation") for place, name in sorted(names.relations) if place == owner)


def _free(before: str, text: str, names: Names) -> Iterable[Offer]:
    words = [match.group().lower() for match in _TOKEN.finditer(before)]
    while words and words[-1] in _BETWEEN:
        words.pop()
    if words and (words[-1] in _BEFORE_RELATION or _in_from_list(words)):
        yield from ((name, "relation") for name in sorted(names.visible))
        yield from ((name, "schema") for name in names.schemas)
        if words[-1] in _BEFORE_RELATION and words[-1] not in ("table", "view", "source"):
            return
    if words[-1:] and words[-1] in _SETTINGS_AFTER and (len(words) == 1 or words[-2] in (";", "system")):
        yield from ((name, "setting") for name in names.settings)
    if words[-1:] and words[-1] in _ROLES_AFTER:
        yield from ((name, "role") for name in names.roles)
    if words[-1:] == ["database"]:
        yield from ((name, "database") for name in names.databases)
    seen: set[str] = set()
    for alias, relation in mentions(text, names):
        for column in names.columns_of(*relation):
            if column not in seen:
                seen.add(column)
                yield column, "column"
        yield alias, "alias"
    yield from ((word, "keyword") for word in sorted(KEYWORDS))
    yield from ((name, "function") for name in names.functions)
    yield from ((name, "relation") for name in sorted(names.visible))


def _in_from_list(words: list[str]) -> bool:
    """True after a comma in FROM a, b."""
    if words[-1] != ",":
        return False
    for word in reversed(words):
        if word == "from":
            return True
        if word in _ENDS_LIST or word in "()":
            return False
    return False


def mentions(text: str, names: Names) -> list[tuple[str, tuple[str | None, str]]]:
    """The relations that the statement names, as (alias or name, (schema, name)). Includes those after the
    cursor, but only in the statement that contains it."""
    tokens = [match.group() for match in _TOKEN.finditer(text.rpartition(";")[2])]
    out: list[tuple[str, tuple[str | None, str]]] = []
    known = {name for _, name in names.relations}
    i = 0
    while i < len(tokens):
        name = _plain(tokens[i])
        if name not in known or not _is_name(tokens[i]):
            i += 1
            continue
        schema = _plain(tokens[i - 2]) if i >= 2 and tokens[i - 1] == "." else None
        i += 1
        alias = name
        if i < len(tokens) and tokens[i].lower() == "as":
            i += 1
        if i < len(tokens) and _is_name(tokens[i]) and tokens[i].upper() not in KEYWORDS:
            alias = _plain(tokens[i])
            i += 1
        out.append((alias, (schema, name)))
    return out


def _is_name(token: str) -> bool:
    return token.startswith('"') or token[0].isalpha() or token[0] == "_"


def _plain(token: str) -> str:
    return token.strip('"').replace('""', '"') if token.startswith('"') else token.lower()


def _offered(offers: Iterable[Offer], begun: str) -> list[Candidate]:
    wanted = begun.lstrip('"').lower()
    out: list[Candidate] = []
    seen: set[str] = set()
    for name, what in offers:
        if not name.lower().startswith(wanted) or name in seen:
            continue
        if what == "keyword":
            text = name if not begun or begun.isupper() else name.lower()
        elif begun.startswith('"'):
            text = '"' + name.replace('"', '""') + '"'
        else:
            text = identifier(name)
        seen.add(name)
        if text != begun:
            out.append(Candidate(text, len(begun), what))
        if len(out) >= MOST_OFFERED:
            break
    return out
