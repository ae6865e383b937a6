"""The arguments of a backslash command, read as in psql: words, quotes, variables, and backquotes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from tidemill.cli.shell.splitter import Lookup
from tidemill.errors import SyntaxError_

# The output of a command becomes part of one line; more than this is a mistake.
MOST_SHELL_BYTES = 1 << 20
SHELL_SECONDS = 60.0

_PART = re.compile(
    r"""
    (?P<blank>    \s+ )
  | '(?P<single>  (?:[^'\\]|\\.|'')* )'
  | "(?P<double>  (?:[^"]|"")* )"
  | `(?P<shell>   [^`]* )`
  | :(?P<quote>['"]?)(?P<name>[A-Za-z_0-9\x80-\U0010ffff]+)(?P=quote)
  | (?P<plain>    [^\s'"`:]+ | : )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))|''", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "b": "\b", "r": "\r", "f": "\f"}


def shell_answer(command: str) -> str:
    """The output of a command of the operating system, without its last line end."""
    done = subprocess.run(
        ["/bin/sh", "-c", command], stdout=subprocess.PIPE, timeout=SHELL_SECONDS, check=False
    )
    return done.stdout[:MOST_SHELL_BYTES].decode(errors="replace").removesuffix("\n")


def arguments(
    rest: str, lookup: Lookup, shell: Callable[[str], str] = shell_answer, *, keep_quotes: bool = False
) -> list[str]:
    """The arguments. `keep_quotes` keeps double quotes, because they have a meaning in a pattern of names
    (`\\d "A b"`)."""
    out: list[str] = []
    current: str | None = None
    at = 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None:
            raise SyntaxError_(f"unterminated quoted string: {rest[at:]}")
        at = found.end()
        if found["blank"] is not None:
            if current is not None:
                out.append(current)
            current = None
            continue
        current = (current or "") + _value(found, lookup, shell, keep_quotes)
    if current is not None:
        out.append(current)
    return out


def _value(found: re.Match[str], lookup: Lookup, shell: Callable[[str], str], keep_quotes: bool) -> str:
    if found["single"] is not None:
        return _ESCAPE.sub(_escaped, found["single"])
    if found["double"] is not None:
        return found.group() if keep_quotes else found["double"].replace('""', '"')
    if found["shell"] is not None:
        return shell(found["shell"])
    if found["name"] is not None:
        value = lookup(found["name"], found["quote"])
        return found.group() if value is None else value
    return found["plain"]


def _escaped(found: re.Match[str]) -> str:
    hexadecimal, octal, letter = found.groups()
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    if octal:
        return chr(int(octal, 8))
    return _LETTERS.get(letter, letter) if letter else "'"
