"""Bracket expressions: [abc], [^a-z], [[:alpha:]_], [[.hyphen.]]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.sql.regex.nodes import CLASSES, Chars, RegexNode, RegexPosition

if TYPE_CHECKING:
    from tidemill.sql.regex.syntax import RegexOptions

# POSIX names of single characters. A character stands for itself.
_NAMED = {
    "NUL": "\0",
    "tab": "\t",
    "newline": "\n",
    "space": " ",
    "hyphen": "-",
    "period": ".",
    "comma": ",",
    "slash": "/",
    "backslash": "\\",
    "left-square-bracket": "[",
    "right-square-bracket": "]",
    "underscore": "_",
    "asterisk": "*",
    "dollar-sign": "$",
    "percent-sign": "%",
}


def read_bracket(text: str, at: int, options: RegexOptions) -> tuple[RegexNode, int]:
    """The set that starts at `at`, and its end."""
    from tidemill.sql.regex.syntax import word_end, word_start

    for mark, test in (("[[:<:]]", word_start), ("[[:>:]]", word_end)):
        if text.startswith(mark, at):
            return RegexPosition(test=test), at + len(mark)
    return _Bracket(text, at, options).read()


class _Bracket:
    def __init__(self, text: str, at: int, options: RegexOptions) -> None:
        self.text = text
        self.at = at + 1
        self.options = options
        self.plain: set[str] = set()
        self.ranges: list[tuple[str, str]] = []
        self.classes: list[Callable[[str], bool]] = []

    def read(self) -> tuple[RegexNode, int]:
        from tidemill.sql.regex.syntax import error

        negated = self.text.startswith("^", self.at)
        self.at += negated
        first = True
        while first or not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise error("brackets [] not balanced")
            self._item()
            first = False
        found = Chars(
            plain=frozenset(self.plain),
            ranges=tuple(self.ranges),
            classes=tuple(self.classes),
            negated=negated,
            insensitive=self.options.insensitive,
            no_newline=negated and not self.options.dot_newline,
        )
        return found, self.at + 1

    def _item(self) -> None:
        from tidemill.sql.regex.syntax import error

        if self.text.startswith("[:", self.at):
            name = self._named(":]")
            if name not in CLASSES:
                raise error("invalid character class")
            self.classes.append(CLASSES[name])
            return
        letter = self.text[self.at + 1 : self.at + 2]
        if self.text.startswith("\\", self.at) and letter and letter in "dswDSW":
            self._letter(letter)
            return
        low = self._character()
        if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self._character()
            if high < low:
                raise error("invalid character range")
            self.ranges.append((low, high))
        else:
            self.plain.add(low)

    def _letter(self, letter: str) -> None:
        test = CLASSES[{"d": "digit", "s": "space", "w": "word"}[letter.lower()]]
        self.classes.append(test if letter.islower() else lambda ch: not test(ch))
        self.at += 2

    def _character(self) -> str:
        from tidemill.sql.regex.syntax import error, read_character

        for mark, end in (("[.", ".]"), ("[=", "=]")):
            if self.text.startswith(mark, self.at):
                name = self._named(end)
                if len(name) == 1:
                    return name
                if name not in _NAMED:
                    raise error("invalid collating element")
                return _NAMED[name]
        if self.text.startswith("\\", self.at):
            value, self.at = read_character(self.text, self.at)
            return value
        ch = self.text[self.at : self.at + 1]
        if not ch:
            raise error("brackets [] not balanced")
        self.at += 1
        return ch

    def _named(self, end: str) -> str:
        from tidemill.sql.regex.syntax import error

        close = self.text.find(end, self.at + 2)
        if close < 0:
            raise error("brackets [] not balanced")
        name = self.text[self.at + 2 : close]
        self.at = close + 2
        return name
