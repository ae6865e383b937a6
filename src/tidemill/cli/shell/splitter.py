"""The splitter: lines of input to statements and backslash commands, as in psql. Pure, without I/O.

`Splitter.feed` is a generator, because a command in a line (`\\set x 1 \\\\ SELECT :x;`) must take effect
before the rest of the line is read. Incomplete input stays in `buffer`, and `state` says what is missing; the
prompt shows it. The lexical rules are those of the server's scanner (`tidemill.sql.tokens`), extended to
incomplete text and to `:name` for variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

# The text of a variable by its form: plain (""), as a literal ("'") or as an identifier ('"'). None: the
# variable does not exist, and the text is not changed.
Lookup = Callable[[str, str], str | None]


class SplitterState(Enum):
    """What the input waits for; the value is the sign in the prompt."""

    START = "="
    MORE = "-"
    STRING = "'"
    IDENTIFIER = '"'
    DOLLAR = "$"
    PARENTHESIS = "("
    COMMENT = "*"


@dataclass(frozen=True, slots=True)
class ShellStatement:
    """A complete statement without its semicolon."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A backslash command: its name without the backslash, and its unparsed arguments."""

    name: str
    rest: str


Event = ShellStatement | Command

# Commands whose argument is the rest of the line, including backslashes and quotes.
WHOLE_LINE = frozenset({"!", "copy", "h", "help"})

_LETTER = r"A-Za-z_\x80-\U0010ffff"
_PIECE = re.compile(
    rf"""
    (?P<blank>    [ \t\r\n\f\v]+ )
  | (?P<line>     --[^\n]* )
  | (?P<comment>  /\* )
  | (?P<escape>   [eE]' )
  | (?P<string>   (?:[bBxXnN]|[uU]&)?' )
  | (?P<quoted>   (?:[uU]&)?" )
  | (?P<word>     [{_LETTER}][{_LETTER}0-9$]* )
  | (?P<number>   [0-9][0-9_]*(?:\.[0-9_]+)? )
  | (?P<dollar>   \$(?:[{_LETTER}][{_LETTER}0-9]*)?\$ )
  | (?P<variable> :(?P<quote>['"]?)(?P<name>[{_LETTER}0-9]+)(?P=quote) )
  | (?P<colons>   ::|:= )
  | (?P<kept>     \\[;:] )
  | (?P<command>  \\ )
  | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMAND_NAME = re.compile(r"[^\s\\]*")
_COMMAND_REST = re.compile(
    r"""(?: '(?:[^'\\\n]|\\.|'')*'? | "[^"\n]*"? | `[^`\n]*`? | [^'"`\\\n] )*""", re.VERBOSE
)
_ENDS = {
    "'": re.compile(r"(?:[^']++|'')*+'"),
    "e": re.compile(r"(?:[^'\\]++|''|\\.)*+'", re.DOTALL),
    '"': re.compile(r'(?:[^"]++|"")*+"'),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_WAITS = {"'": SplitterState.STRING, "e": SplitterState.STRING, '"': SplitterState.IDENTIFIER}
# The body of a function may be a block of statements. Only there can BEGIN ... END contain semicolons.
_ROUTINES = ("function", "procedure")


class Splitter:
    """Splits the lines it is fed. `buffer` may be read, and set with `replace`."""

    def __init__(self, lookup: Lookup = lambda _name, _quote: None) -> None:
        self._lookup = lookup
        # The pieces of the buffer: appending to one long string would copy it for every word.
        self._parts: list[str] = []
        self._start()

    def _start(self) -> None:
        # What is open: a quote (', e for E', "), the tag of a dollar quote, comments, parentheses, blocks.
        self._quote = ""
        self._tag = ""
        self._comments = 0
        self._parentheses = 0
        self._blocks = 0
        # The first words, to recognize the creation of a function.
        self._words: list[str] = []

    @property
    def buffer(self) -> str:
        """The text since the last statement."""
        return "".join(self._parts)

    @property
    def state(self) -> SplitterState:
        if self._comments:
            return SplitterState.COMMENT
        if self._quote:
            return _WAITS[self._quote]
        if self._tag:
            return SplitterState.DOLLAR
        if self._parentheses:
            return SplitterState.PARENTHESIS
        return SplitterState.MORE if self._parts else SplitterState.START

    def copy(self) -> Splitter:
        """A copy, to try the effect of a text."""
        other = Splitter(self._lookup)
        other.__dict__.update(self.__dict__)
        other._parts, other._words = [*self._parts], [*self._words]
        return other

    def replace(self, text: str) -> None:
        """Set the buffer to this text, without completing a statement or a command in it."""
        self._parts = [text.strip()] if text.strip() else []
        self._start()

    def finish(self) -> ShellStatement | None:
        """At the end of the input: the rest is a statement too, unless it is empty."""
        text = self.buffer.strip()
        self._parts.clear()
        self._start()
        return ShellStatement(text) if text else None

    def feed(self, text: str) -> Iterator[Event]:
        """Yield what `text` completes. The caller includes the line end."""
        at = 0
        # The text of a variable is not expanded again, because it might contain its own name.
        plain_until = 0
        while at < len(text):
            if self._comments or self._quote or self._tag:
                at = self._inside(text, at)
                continue
            found = _PIECE.match(text, at)
            assert found is not None, "every character is a piece"
            piece, kind, end = found.group(), found.lastgroup, found.end()
            if kind == "name" or kind == "quote":  # the inner groups of the match of a variable
                kind = "variable"
            if kind == "variable":
                value = None if at < plain_until else self._lookup(found["name"], found["quote"])
                if value is None:
                    self._parts.append(":")
                    at += 1
                else:
                    plain_until = at + len(value)
                    text = text[:at] + value + text[end:]
                continue
            at = end
            if kind == "blank" or kind == "line":
                if self._parts:
                    self._parts.append(piece)
            elif kind == "command":
                name = _found(_COMMAND_NAME, text, at)
                at += len(name)
                if name.rstrip(";") in WHOLE_LINE:
                    rest = text[at:].split("\n", 1)[0]
                else:
                    rest = _found(_COMMAND_REST, text, at)
                at += len(rest)
                if text.startswith("\\\\", at):
                    at += 2
                yield Command(name.rstrip(";") or name, rest.strip())
            elif piece == ";" and not self._parentheses and not self._blocks:
                statement = self.finish()
                if statement is not None:
                    yield statement
            else:
                self._parts.append(piece[-1] if kind == "kept" else piece)
                self._open(kind or "", piece)

    def _open(self, kind: str, piece: str) -> None:
        """Track what a token opens or closes."""
        if kind == "comment":
            self._comments = 1
        elif kind == "string":
            self._quote = "'"
        elif kind == "escape":
            self._quote = "e"
        elif kind == "quoted":
            self._quote = '"'
        elif kind == "dollar":
            self._tag = piece
        elif kind == "word":
            self._word(piece.lower())
        elif piece == "(":
            self._parentheses += 1
        elif piece == ")" and self._parentheses:
            self._parentheses -= 1

    def _word(self, word: str) -> None:
        if len(self._words) < 4:
            self._words.append(word)
        words = [w for w in self._words if w not in ("or", "replace")]
        if words[:1] == ["create"] and len(words) > 1 and words[1] in _ROUTINES and not self._parentheses:
            if word == "begin" or (word == "case" and self._blocks):
                self._blocks += 1
            elif word == "end" and self._blocks:
                self._blocks -= 1

    def _inside(self, text: str, at: int) -> int:
        """Consume the open quote or comment; return its end, or the end of the text."""
        if self._comments:
            edge = _COMMENT_EDGE.search(text, at)
            end = len(text) if edge is None else edge.end()
            if edge is not None:
                self._comments += 1 if edge.group() == "/*" else -1
        elif self._tag:
            close = text.find(self._tag, at)
            end = len(text) if close < 0 else close + len(self._tag)
            if close >= 0:
                self._tag = ""
        else:
            found = _ENDS[self._quote].match(text, at)
            end = len(text) if found is None else found.end()
            if found is not None:
                self._quote = ""
        self._parts.append(text[at:end])
        return end


def _found(pattern: re.Pattern[str], text: str, at: int) -> str:
    found = pattern.match(text, at)
    return found.group() if found is not None else ""
