"""The name patterns of `\\d`: `orders`, `sales.*`, `"Big Table"`, `o?ders`; read as in psql."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.cli.shell.variables import literal

_SPECIAL = set(r".\+*?()[]{}|^$")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Regular expressions for the schema and the name; None: any."""

    schema: str | None
    name: str | None

    @property
    def given(self) -> bool:
        return self.schema is not None or self.name is not None

    def conditions(self, schema: str, name: str, visible: str | None) -> list[str]:
        """The pattern as SQL conditions. Without a schema only visible names match (`visible`)."""
        out: list[str] = []
        if self.name is not None:
            out.append(f"{name} ~ {literal(self.name)}")
        if self.schema is not None:
            out.append(f"{schema} ~ {literal(self.schema)}")
        elif visible:
            out.append(visible)
        return out


def parse(text: str) -> Pattern:
    """Parse a pattern. Outside quotes, capital letters are folded, * is any text, ? is any character, and the
    last dot separates schema and name. Other characters stand for themselves."""
    parts: list[str] = [""]
    quoted = False
    i = 0
    while i < len(text):
        c = text[i]
        if c == '"':
            if quoted and text[i + 1 : i + 2] == '"':
                parts[-1] += '"'
                i += 1
            else:
                quoted = not quoted
        elif c == "." and not quoted:
            parts.append("")
        elif c == "*" and not quoted:
            parts[-1] += ".*"
        elif c == "?" and not quoted:
            parts[-1] += "."
        else:
            c = c if quoted else c.lower()
            parts[-1] += "\\" + c if c in _SPECIAL else c
        i += 1
    whole = [f"^({part})$" if part and part != ".*" else None for part in parts]
    if len(parts) == 1:
        return Pattern(None, whole[0])
    # An explicit schema of * is kept: then names that are not visible match too.
    return Pattern(whole[-2] or "^(.*)$", whole[-1])
