"""The variables of `\\set`: the values of `:name`, and the few that control the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemill.errors import InvalidValue

_NAME = re.compile(r"[A-Za-z_0-9\x80-\U0010ffff]+")
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_TRUE, _FALSE = ("on", "true", "yes", "1", "t", "y"), ("off", "false", "no", "0", "f", "n")


def truth(text: str, name: str) -> bool:
    """Parse a boolean in one of its spellings."""
    value = text.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidValue(f'unrecognized value "{text}" for "{name}": Boolean expected', hint="Write on or off.")


class ShellVariables:
    """The variables by name. ON_ERROR_STOP and ECHO control the shell and accept only valid values."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(sorted(self._values.items()))

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def set(self, name: str, value: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidValue(f'invalid variable name: "{name}"')
        if name == "ON_ERROR_STOP":
            value = "on" if truth(value or "on", name) else "off"
        elif name == "ECHO" and value not in ("none", "queries"):
            raise InvalidValue(f'unrecognized value "{value}" for "ECHO"', hint="Write none or queries.")
        self._values[name] = value

    def unset(self, name: str) -> None:
        self._values.pop(name, None)

    def is_on(self, name: str) -> bool:
        return self._values.get(name) == "on"

    def lookup(self, name: str, quote: str) -> str | None:
        """The replacement of `:name`, `:'name'` or `:"name"`."""
        value = self._values.get(name)
        if value is None or not quote:
            return value
        if quote == '"':
            return '"' + value.replace('"', '""') + '"'
        return literal(value)


def literal(text: str) -> str:
    """The text as an SQL string literal."""
    doubled = text.replace("'", "''")
    return " E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"


def identifier(name: str) -> str:
    """The name as an SQL identifier, quoted if necessary."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
