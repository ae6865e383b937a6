"""The nodes of a parsed pattern, and the match length that each prefers.

`Prefer` is PostgreSQL's greediness attribute: a part without one takes the rest. A part is `messy` when the
division of the text inside it matters: it has groups, back references, or both preferences. A run of parts
that are not messy is matched as a whole, the longest or the shortest that fits.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Prefer(Enum):
    NONE = 0
    LONGER = 1
    SHORTER = 2


@dataclass(slots=True, eq=False)
class RegexNode:
    """`prefers` is the part's own preference, `mixed` whether both occur in it."""

    prefers: Prefer = Prefer.NONE
    mixed: bool = False
    captures: bool = False
    refers: bool = False

    @property
    def messy(self) -> bool:
        return self.mixed or self.captures or self.refers


@dataclass(slots=True, eq=False)
class Empty(RegexNode):
    pass


@dataclass(slots=True, eq=False)
class Chars(RegexNode):
    """One character out of a set."""

    plain: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    classes: tuple[Callable[[str], bool], ...] = ()
    negated: bool = False
    insensitive: bool = False
    # A negated set does not take a newline where newlines divide lines.
    no_newline: bool = False
    known: dict[str, bool] = field(default_factory=dict)

    def has(self, ch: str) -> bool:
        found = self.known.get(ch)
        if found is None:
            found = self.known[ch] = self._has(ch)
        return found

    def _has(self, ch: str) -> bool:
        if self.no_newline and ch == "\n":
            return False
        variants = {ch, *_variants(ch)} if self.insensitive else {ch}
        inside = any(
            v in self.plain or any(a <= v <= b for a, b in self.ranges) or any(c(v) for c in self.classes)
            for v in variants
        )
        return inside is not self.negated


def _variants(ch: str) -> set[str]:
    return {v for v in (ch.lower(), ch.upper(), ch.title()) if len(v) == 1}


@dataclass(slots=True, eq=False)
class Sequence(RegexNode):
    """Parts in sequence. Runs of parts that are not messy are a separate `Sequence`."""

    parts: tuple[RegexNode, ...] = ()


@dataclass(slots=True, eq=False)
class Choice(RegexNode):
    branches: tuple[RegexNode, ...] = ()


@dataclass(slots=True, eq=False)
class Repeat(RegexNode):
    """`most` None: without end."""

    inner: RegexNode = field(default_factory=Empty)
    least: int = 0
    most: int | None = None


@dataclass(slots=True, eq=False)
class Group(RegexNode):
    inner: RegexNode = field(default_factory=Empty)
    number: int = 0


@dataclass(slots=True, eq=False)
class BackReference(RegexNode):
    """The text of a group's match, repeated. `pattern` is the group's own: it bounds the possible matches."""

    number: int = 0
    pattern: RegexNode = field(default_factory=Empty)
    insensitive: bool = False


@dataclass(slots=True, eq=False)
class RegexPosition(RegexNode):
    """A condition on the position: ^ $ and word boundaries."""

    test: Callable[[str, int], bool] = lambda text, at: True


@dataclass(slots=True, eq=False)
class LookAround(RegexNode):
    """Lookahead, or lookbehind."""

    inner: RegexNode = field(default_factory=Empty)
    behind: bool = False
    negated: bool = False


def combine(first: RegexNode | None, *others: RegexNode) -> tuple[Prefer, bool, bool, bool]:
    """The attributes of parts in sequence: the first preference counts."""
    parts = [p for p in (first, *others) if p is not None]
    wishes = {p.prefers for p in parts} - {Prefer.NONE}
    prefers = next((p.prefers for p in parts if p.prefers is not Prefer.NONE), Prefer.NONE)
    mixed = len(wishes) > 1 or any(p.mixed for p in parts)
    return prefers, mixed, any(p.captures for p in parts), any(p.refers for p in parts)


def group_numbers(node: RegexNode) -> set[int]:
    if isinstance(node, Group):
        return {node.number} | group_numbers(node.inner)
    if isinstance(node, Sequence):
        return set().union(*map(group_numbers, node.parts))
    if isinstance(node, Choice):
        return set().union(*map(group_numbers, node.branches))
    return group_numbers(node.inner) if isinstance(node, Repeat) else set()


# --- classes of characters, as PostgreSQL's C.UTF-8 has them: letters by Unicode, digits by ASCII


def _alpha(ch: str) -> bool:
    return ch.isalpha() or unicodedata.category(ch) == "Nl"


def _digit(ch: str) -> bool:
    return "0" <= ch <= "9"


def _space(ch: str) -> bool:
    return ch.isspace() and ch not in "\x1c\x1d\x1e\x1f"


def _print(ch: str) -> bool:
    return unicodedata.category(ch) not in ("Cc", "Cs", "Cn", "Zl", "Zp")


CLASSES: dict[str, Callable[[str], bool]] = {
    "alpha": _alpha,
    "digit": _digit,
    "alnum": lambda ch: _alpha(ch) or _digit(ch),
    "word": lambda ch: _alpha(ch) or _digit(ch) or ch == "_",
    "space": _space,
    "blank": lambda ch: ch == "\t" or unicodedata.category(ch) == "Zs",
    "upper": lambda ch: ch.isupper(),
    "lower": lambda ch: ch.islower(),
    "punct": lambda ch: unicodedata.category(ch)[0] in "PS",
    "xdigit": lambda ch: ch in "0123456789abcdefABCDEF",
    "cntrl": lambda ch: unicodedata.category(ch) == "Cc",
    "print": _print,
    "graph": lambda ch: _print(ch) and not _space(ch),
    "ascii": lambda ch: ch < "\x80",
}


def is_word(ch: str) -> bool:
    return CLASSES["word"](ch)
