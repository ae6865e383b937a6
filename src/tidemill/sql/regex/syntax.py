"""The parser of AREs (PostgreSQL manual, 9.7.3).

Options come from the caller's flags and from the start of the pattern; the pattern wins. An invalid pattern
raises PostgreSQL's error (2201B).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.errors import TidemillError
from tidemill.sql.regex.brackets import read_bracket
from tidemill.sql.regex.nodes import (
    CLASSES,
    BackReference,
    Chars,
    Choice,
    Empty,
    Group,
    LookAround,
    Prefer,
    RegexNode,
    RegexPosition,
    Repeat,
    Sequence,
    combine,
    is_word,
)

# PostgreSQL's limit of a bound in braces.
MAX_BOUND = 255
# Parentheses within each other: each costs a few Python frames.
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class RegexOptions:
    """`lines`: ^ and $ match at newlines too; `dot_newline`: . and [^x] match a newline."""

    insensitive: bool = False
    expanded: bool = False
    literal: bool = False
    lines: bool = False
    dot_newline: bool = True

    def with_letters(self, letters: str) -> RegexOptions:
        found = self
        for letter in letters:
            change = _LETTERS.get(letter)
            if change is None:
                raise error("invalid embedded option")
            found = replace(found, **change)
        return found


_LETTERS: dict[str, dict[str, bool]] = {
    "c": {"insensitive": False},
    "i": {"insensitive": True},
    "m": {"lines": True, "dot_newline": False},
    "n": {"lines": True, "dot_newline": False},
    "p": {"lines": False, "dot_newline": False},
    "q": {"literal": True},
    "s": {"lines": False, "dot_newline": True},
    "t": {"expanded": False},
    "w": {"lines": True, "dot_newline": True},
    "x": {"expanded": True},
}


def error(text: str) -> TidemillError:
    return TidemillError(f"invalid regular expression: {text}", sqlstate="2201B")


def parse(pattern: str, options: RegexOptions) -> tuple[RegexNode, int]:
    """The parsed pattern and its number of groups."""
    reader = RegexReader(pattern, options)
    return reader.read(), reader.groups


class RegexReader:
    """One pass over one pattern."""

    def __init__(self, pattern: str, options: RegexOptions) -> None:
        self.text = pattern
        self.at = 0
        self.options = options
        self.groups = 0
        self.depth = 0
        self.done: dict[int, RegexNode] = {}

    def read(self) -> RegexNode:
        if self.text.startswith("***"):
            if self.text[3:4] == "=":
                self.options = replace(self.options, literal=True)
            elif self.text[3:4] != ":":
                raise error("quantifier operand invalid")
            self.at = 4
        if not self.options.literal and self.text.startswith("(?", self.at):
            letters = self.text[self.at + 2 :].partition(")")[0]
            if letters and letters.isalpha():
                self.options = self.options.with_letters(letters)
                self.at += len(letters) + 3
        if self.options.literal:
            return sequence([self.one(ch) for ch in self.text[self.at :]])
        found = self._choice()
        if self.at < len(self.text):
            raise error("parentheses () not balanced")
        return found

    def peek(self, width: int = 1) -> str:
        return self.text[self.at : self.at + width]

    def one(self, ch: str) -> Chars:
        return Chars(plain=frozenset({ch}), insensitive=self.options.insensitive)

    # --- structure

    def _choice(self) -> RegexNode:
        branches = [self._branch()]
        while self.peek() == "|":
            self.at += 1
            branches.append(self._branch())
        if len(branches) == 1:
            return branches[0]
        _, mixed, captures, refers = combine(None, *branches)
        mixed = mixed or any(b.prefers is Prefer.SHORTER for b in branches)
        return Choice(Prefer.LONGER, mixed, captures, refers, tuple(branches))

    def _branch(self) -> RegexNode:
        parts: list[RegexNode] = []
        while True:
            self._skip()
            if not self.peek() or self.peek() == "|" or (self.peek() == ")" and self.depth):
                return sequence(parts)
            parts.extend(self._quantified())

    def _skip(self) -> None:
        """Blanks and comments of the expanded syntax, and (?#...) of both."""
        while True:
            if self.peek(3) == "(?#":
                end = self.text.find(")", self.at)
                if end < 0:
                    raise error("parentheses () not balanced")
                self.at = end + 1
            elif self.options.expanded and self.peek() and self.peek().isspace():
                self.at += 1
            elif self.options.expanded and self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end + 1
            else:
                return

    def _quantified(self) -> list[RegexNode]:
        atom = self._atom()
        self._skip()
        bound = self._bound()
        if bound is None:
            return [atom]
        if isinstance(atom, RegexPosition | LookAround):
            raise error("quantifier operand invalid")
        least, most, prefers = bound
        self._skip()
        if self.peek() in ("*", "+", "?") and self.peek():
            raise error("quantifier operand invalid")
        return repeated(atom, least, most, prefers)

    def _bound(self) -> tuple[int, int | None, Prefer] | None:
        ch = self.peek()
        if ch in ("*", "+", "?") and ch:
            self.at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[ch]
            return least, most, self._lazy(Prefer.LONGER)
        if ch == "{" and self.text[self.at + 1 : self.at + 2].isdigit():
            return self._braces()
        return None

    def _braces(self) -> tuple[int, int | None, Prefer]:
        end = self.text.find("}", self.at)
        if end < 0:
            raise error("braces {} not balanced")
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not low.isdigit() or (high and not high.isdigit()):
            raise error("invalid repetition count(s)")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if least > MAX_BOUND or (most is not None and (most > MAX_BOUND or most < least)):
            raise error("invalid repetition count(s)")
        self.at = end + 1
        wish = self._lazy(Prefer.LONGER)
        # A fixed number of times, {3} or {3}?, has the wish of what is repeated.
        return least, most, wish if comma else Prefer.NONE

    def _lazy(self, usual: Prefer) -> Prefer:
        if self.peek() != "?":
            return usual
        self.at += 1
        return Prefer.SHORTER

    # --- atoms

    def _atom(self) -> RegexNode:
        ch = self.peek()
        if ch == "(":
            return self._parenthesis()
        if ch == ")":
            # Outside of all groups, where nothing is open.
            raise error("parentheses () not balanced")
        if ch in "*+?":
            raise error("quantifier operand invalid")
        if ch == "{" and self.text[self.at + 1 : self.at + 2].isdigit():
            raise error("quantifier operand invalid")
        if ch == "[":
            found, self.at = read_bracket(self.text, self.at, self.options)
            return found
        if ch == "\\":
            return self._escape()
        self.at += 1
        if ch == ".":
            return Chars(negated=True, no_newline=not self.options.dot_newline)
        if ch == "^":
            return RegexPosition(test=_line_start if self.options.lines else _text_start)
        if ch == "$":
            return RegexPosition(test=_line_end if self.options.lines else _text_end)
        return self.one(ch)

    def _parenthesis(self) -> RegexNode:
        for mark, behind, negated in _LOOKS:
            if self.text.startswith(mark, self.at):
                self.at += len(mark)
                return LookAround(inner=self._inside(), behind=behind, negated=negated)
        if self.peek(3) == "(?:":
            self.at += 3
            return self._inside()
        if self.peek(2) == "(?":
            raise error("quantifier operand invalid")
        self.at += 1
        self.groups += 1
        number = self.groups
        inner = self._inside()
        group = Group(inner.prefers, inner.mixed, True, inner.refers, inner, number)
        self.done[number] = group
        return group

    def _inside(self) -> RegexNode:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise error("regular expression is too complex")
        found = self._choice()
        if self.peek() != ")":
            raise error("parentheses () not balanced")
        self.at += 1
        self.depth -= 1
        return found

    def _escape(self) -> RegexNode:
        ch = self.text[self.at + 1 : self.at + 2]
        if not ch:
            raise error("invalid escape \\ sequence")
        if ch in _PLACES:
            self.at += 2
            return RegexPosition(test=_PLACES[ch])
        if ch in _CLASS_LETTERS:
            self.at += 2
            name, negated = _CLASS_LETTERS[ch]
            return Chars(classes=(CLASSES[name],), negated=negated)
        if "1" <= ch <= "9":
            digits = ch
            while (more := self.text[self.at + 1 + len(digits) : self.at + 2 + len(digits)]).isdigit():
                digits += more
            if len(digits) == 1 or int(digits) <= self.groups:
                return self._reference(int(digits), len(digits))
        value, self.at = read_character(self.text, self.at)
        return self.one(value)

    def _reference(self, number: int, width: int) -> RegexNode:
        if number not in self.done:
            raise error("invalid backreference number")
        self.at += 1 + width
        return BackReference(
            refers=True,
            number=number,
            pattern=self.done[number],
            insensitive=self.options.insensitive,
        )


_LOOKS = (("(?=", False, False), ("(?!", False, True), ("(?<=", True, False), ("(?<!", True, True))
_CLASS_LETTERS = {
    "d": ("digit", False),
    "D": ("digit", True),
    "s": ("space", False),
    "S": ("space", True),
    "w": ("word", False),
    "W": ("word", True),
}


def sequence(parts: list[RegexNode]) -> RegexNode:
    """Parts in sequence: runs of parts that are not messy and share a preference become one part."""
    runs: list[list[RegexNode]] = []
    for part in parts:
        if runs and not part.messy and not any(p.messy for p in runs[-1]):
            wishes = {p.prefers for p in (*runs[-1], part)} - {Prefer.NONE}
            if len(wishes) < 2:
                runs[-1].append(part)
                continue
        runs.append([part])
    joined = [run[0] if len(run) == 1 else _row(run) for run in runs]
    if not joined:
        return Empty()
    return joined[0] if len(joined) == 1 else _row(joined)


def _row(parts: list[RegexNode]) -> Sequence:
    prefers, mixed, captures, refers = combine(None, *parts)
    return Sequence(prefers, mixed, captures, refers, tuple(parts))


def repeated(atom: RegexNode, least: int, most: int | None, prefers: Prefer) -> list[RegexNode]:
    """An atom with its quantifier. An atom with groups becomes its repetitions without groups and a last one
    with them, since the groups are those of the last repetition.
    """
    wish = atom.prefers if prefers is Prefer.NONE else prefers
    mixed = atom.mixed or (Prefer.NONE not in (atom.prefers, wish) and atom.prefers is not wish)
    if (least, most) == (1, 1) and (prefers is Prefer.NONE or atom.prefers in (Prefer.NONE, prefers)):
        return [atom]
    if most == 0:
        return [Empty()]
    if atom.captures and least > 0 and not atom.refers:
        rest = None if most is None else most - 1
        if rest == 0:
            return [_preferring(atom, wish)]
        first = Repeat(wish, mixed, False, False, without_groups(atom), least - 1, rest)
        return [_wrapped([first, atom], wish)]
    return [Repeat(wish, mixed, atom.captures, atom.refers, atom, least, most)]


def _wrapped(parts: list[RegexNode], wish: Prefer) -> Sequence:
    row = _row(parts)
    row.prefers = wish
    return row


def _preferring(atom: RegexNode, wish: Prefer) -> RegexNode:
    return atom if wish is atom.prefers else _wrapped([Empty(), atom], wish)


def without_groups(node: RegexNode) -> RegexNode:
    """The same part without groups."""
    if isinstance(node, Group):
        return without_groups(node.inner)
    if not node.captures:
        return node
    if isinstance(node, Sequence):
        return replace(node, captures=False, parts=tuple(map(without_groups, node.parts)))
    if isinstance(node, Choice):
        return replace(node, captures=False, branches=tuple(map(without_groups, node.branches)))
    if isinstance(node, Repeat):
        return replace(node, captures=False, inner=without_groups(node.inner))
    return node


# --- escapes

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "B": "\\",
    "e": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def read_character(text: str, at: int) -> tuple[str, int]:
    """The character of the escape at `at`, and the escape's end."""
    ch = text[at + 1 : at + 2]
    if not ch:
        raise error("invalid escape \\ sequence")
    if ch in _SIMPLE:
        return _SIMPLE[ch], at + 2
    if ch == "c" and text[at + 2 : at + 3]:
        return chr(ord(text[at + 2]) & 0x1F), at + 3
    if ch in "uU":
        return _hex(text, at + 2, 4 if ch == "u" else 8, exact=True)
    if ch == "x":
        return _hex(text, at + 2, 255, exact=False)
    if "0" <= ch <= "7" or ch in "89":
        end = at + 1
        while end < at + 4 and "0" <= text[end : end + 1] <= "7" and text[end : end + 1]:
            end += 1
        if end == at + 1:
            raise error("invalid escape \\ sequence")
        return chr(int(text[at + 1 : end], 8)), end
    if ch.isascii() and ch.isalnum():
        raise error("invalid escape \\ sequence")
    return ch, at + 2


def _hex(text: str, at: int, width: int, *, exact: bool) -> tuple[str, int]:
    end = at
    while end < at + width and text[end : end + 1] and text[end : end + 1] in "0123456789abcdefABCDEF":
        end += 1
    code = int(text[at:end], 16) if end > at and (not exact or end == at + width) else -1
    if not 0 <= code <= 0x10FFFF:
        raise error("invalid escape \\ sequence")
    return chr(code), end


# --- places


def _text_start(text: str, at: int) -> bool:
    return at == 0


def _text_end(text: str, at: int) -> bool:
    return at == len(text)


def _line_start(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"


def _line_end(text: str, at: int) -> bool:
    return at == len(text) or text[at] == "\n"


def _sides(text: str, at: int) -> tuple[bool, bool]:
    return at > 0 and is_word(text[at - 1]), at < len(text) and is_word(text[at])


def word_start(text: str, at: int) -> bool:
    return _sides(text, at) == (False, True)


def word_end(text: str, at: int) -> bool:
    return _sides(text, at) == (True, False)


def _boundary(text: str, at: int) -> bool:
    before, after = _sides(text, at)
    return before is not after


_PLACES: dict[str, Callable[[str, int], bool]] = {
    "A": _text_start,
    "Z": _text_end,
    "m": word_start,
    "M": word_end,
    "y": _boundary,
    "Y": lambda text, at: not _boundary(text, at),
}
