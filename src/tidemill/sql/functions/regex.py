"""PostgreSQL's regular expressions translated to Java's, for match tests only.

Whether a string matches does not depend on which match is found. PostgreSQL's longest and Java's first
alternative therefore agree there; for extraction and replacement they do not. Patterns must be constants:
they are translated at bind time. A pattern outside the common subset raises `Unsupported`, and `regexp` uses
`sql.regex` instead.
"""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.functions.tree import Tree

_CLASS_ESCAPES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    # Letters and blanks are Unicode's, digits ASCII's, as in PostgreSQL's C.UTF-8.
    "s": r"[\p{IsWhite_Space}]",
    "S": r"[^\p{IsWhite_Space}]",
    "w": r"[\p{IsAlphabetic}0-9_]",
    "W": r"[^\p{IsAlphabetic}0-9_]",
}
_CHARACTER_ESCAPES = {"n": "\\n", "t": "\\t", "r": "\\r", "f": "\\f"}
_PLAIN_ESCAPED = frozenset(".*+?()[]{}|^$\\/-&~#@!%=:;,<>'\"` _")


def java_regex(pattern: Tree, *, insensitive: bool) -> str:
    """The Java pattern for a constant tree."""
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise Unsupported("a regular expression that is no constant is not supported")
    flags = "(?isu)" if insensitive else "(?s)"
    return flags + _Translator(str(pattern.this)).run()


class _Translator:
    """One pass over the pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self.depth = 0
        # False where a quantifier has nothing to repeat.
        self.atom = False

    def run(self) -> str:
        if self.text.startswith(("***", "(?")):
            self._refuse("embedded options")
        while self.at < len(self.text):
            self._step(self.text[self.at])
        if self.depth:
            raise TidemillError("invalid regular expression: parentheses () not balanced", sqlstate="2201B")
        return "".join(self.out)

    def _step(self, ch: str) -> None:
        if ch == "\\":
            self._escape()
        elif ch == "[":
            self._bracket()
        elif ch == "(":
            if self.text.startswith("(?", self.at) and not self.text.startswith("(?:", self.at):
                self._refuse("lookaround")
            self.depth += 1
            width = 3 if self.text.startswith("(?:", self.at) else 1
            self._emit(self.text[self.at : self.at + width], width, atom=False)
        elif ch == ")":
            if not self.depth:
                raise TidemillError(
                    "invalid regular expression: parentheses () not balanced", sqlstate="2201B"
                )
            self.depth -= 1
            self._emit(")", 1, atom=True)
        elif ch in "*+?":
            self._quantifier(ch, 1)
        elif ch == "{":
            end = self.text.find("}", self.at)
            body = self.text[self.at + 1 : end] if end > 0 else ""
            low, _, high = body.partition(",")
            if not low.isdigit() or (high and not high.isdigit()):
                self._refuse("a brace that is no bound")
            self._quantifier("{" + body + "}", len(body) + 2)
        elif ch == "^":
            self._emit("\\A", 1, atom=False)
        elif ch == "$":
            self._emit("\\z", 1, atom=False)
        elif ch == "|":
            self._emit("|", 1, atom=False)
        elif ch == ".":
            self._emit(".", 1, atom=True)
        else:
            self._emit(_quoted(ch), 1, atom=True)

    def _quantifier(self, text: str, width: int) -> None:
        if not self.atom:
            raise TidemillError("invalid regular expression: quantifier operand invalid", sqlstate="2201B")
        after = self.text[self.at + width : self.at + width + 1]
        if after and after in "?":
            # Whether there is a match does not depend on lazy or greedy quantifiers.
            width += 1
        elif after and after in "*+{":
            raise TidemillError("invalid regular expression: quantifier operand invalid", sqlstate="2201B")
        self._emit(text, width, atom=False)

    def _escape(self) -> None:
        nxt = self.text[self.at + 1 : self.at + 2]
        if nxt in _CLASS_ESCAPES and nxt:
            self._emit(_CLASS_ESCAPES[nxt], 2, atom=True)
        elif nxt in _CHARACTER_ESCAPES and nxt:
            self._emit(_CHARACTER_ESCAPES[nxt], 2, atom=True)
        elif nxt and nxt in _PLAIN_ESCAPED:
            self._emit(_quoted(nxt), 2, atom=True)
        elif nxt == "":
            raise TidemillError("invalid regular expression: invalid escape \\ sequence", sqlstate="2201B")
        else:
            self._refuse(f"escape \\{nxt}")

    def _bracket(self) -> None:
        i = self.at + 1
        negated = self.text.startswith("^", i)
        i += negated
        items: list[str] = []
        first = True
        while True:
            ch = self.text[i : i + 1]
            if ch == "":
                raise TidemillError("invalid regular expression: brackets [] not balanced", sqlstate="2201B")
            if ch == "]" and not first:
                break
            if ch == "[" and self.text[i + 1 : i + 2] in (":", ".", "="):
                self._refuse("a character class name")
            if ch == "\\":
                i += 1
                ch = self.text[i : i + 1]
                if ch in _CHARACTER_ESCAPES and ch:
                    items.append(_CHARACTER_ESCAPES[ch])
                elif ch == "d":
                    items.append("0-9")
                elif ch and ch in _PLAIN_ESCAPED:
                    items.append(_quoted(ch))
                else:
                    self._refuse(f"escape \\{ch} in brackets")
            elif ch == "-" and not first and self.text[i + 1 : i + 2] not in ("]", ""):
                items.append("-")
            else:
                items.append(_quoted(ch))
            first = False
            i += 1
        self._emit(f"[{'^' if negated else ''}{''.join(items)}]", i + 1 - self.at, atom=True)

    def _emit(self, text: str, width: int, *, atom: bool) -> None:
        self.out.append(text)
        self.at += width
        self.atom = atom

    def _refuse(self, what: str) -> None:
        raise Unsupported(f"{what} in a regular expression is not supported")


def _quoted(ch: str) -> str:
    """One literal character, inside and outside brackets. Letters and digits must not be quoted."""
    return ch if ch.isalnum() or ord(ch) > 127 or ch in " _" else f"\\{ch}"
