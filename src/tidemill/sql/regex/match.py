"""The matcher: Henry Spencer's rules, which PostgreSQL's manual documents.

The leftmost start wins. From there the longest match wins, or the shortest if the pattern prefers it. Within
the match each part, from left to right, takes the longest or shortest text that lets the rest match. `ends`
returns where a part can end (cached per position); `divide` finds the groups inside a fixed match.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.errors import LimitExceeded
from tidemill.sql.regex.nodes import (
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
    group_numbers,
)

# The limit of part ends that one search may examine: about a second. Patterns such as (a*)*b over a long text
# exceed it.
MAX_STEPS = 1_000_000

Spans = dict[int, tuple[int, int]]
Ends = tuple[int, ...]


class Search:
    """The search for one pattern in one text."""

    def __init__(self, root: RegexNode, text: str) -> None:
        self.root = root
        self.text = text
        self._known: dict[tuple[int, int], Ends] = {}
        self._steps = 0
        self.spans: Spans = {}

    def find(self, at: int) -> tuple[int, int] | None:
        """The first match at or after `at`; `spans` then has its groups."""
        for start in range(at, len(self.text) + 1):
            for end in self._preferred(self.root, self.ends(self.root, start)):
                self.spans = {}
                if self.divide(self.root, start, end):
                    return start, end
        return None

    def _preferred(self, node: RegexNode, ends: Ends) -> Iterable[int]:
        return ends if node.prefers is Prefer.SHORTER else reversed(ends)

    # --- what a part can match

    def ends(self, node: RegexNode, at: int) -> Ends:
        """All positions where a match of the part from `at` can end, in ascending order."""
        key = (id(node), at)
        found = self._known.get(key)
        if found is None:
            found = self._ends(node, at)
            self._known[key] = found
            self._steps += len(found) + 1
            if self._steps > MAX_STEPS:
                raise LimitExceeded(
                    "regular expression is too complex for this text",
                    hint="Write it with fewer repetitions within repetitions.",
                    sqlstate="54001",
                )
        return found

    def _ends(self, node: RegexNode, at: int) -> Ends:
        text = self.text
        if isinstance(node, Chars):
            return (at + 1,) if at < len(text) and node.has(text[at]) else ()
        if isinstance(node, Sequence):
            places = {at}
            for part in node.parts:
                places = {e for p in places for e in self.ends(part, p)}
                if not places:
                    return ()
            return tuple(sorted(places))
        if isinstance(node, Repeat):
            return self._repeated(node, at)
        if isinstance(node, Choice):
            return tuple(sorted({e for branch in node.branches for e in self.ends(branch, at)}))
        if isinstance(node, Group):
            return self.ends(node.inner, at)
        if isinstance(node, BackReference):
            return self.ends(node.pattern, at)
        if isinstance(node, RegexPosition):
            return (at,) if node.test(text, at) else ()
        if isinstance(node, LookAround):
            return (at,) if self._seen(node, at) is not node.negated else ()
        return (at,) if isinstance(node, Empty) else ()

    def _seen(self, node: LookAround, at: int) -> bool:
        if not node.behind:
            return bool(self.ends(node.inner, at))
        return any(at in self.ends(node.inner, start) for start in range(at, -1, -1))

    def _repeated(self, node: Repeat, at: int) -> Ends:
        inner, most = node.inner, node.most
        if isinstance(inner, Chars):
            end, text = at, self.text
            last = len(text) if most is None else min(len(text), at + most)
            while end < last and inner.has(text[end]):
                end += 1
            return tuple(range(at + node.least, end + 1))
        places = {at}
        for _ in range(node.least):
            places = {e for p in places for e in self.ends(inner, p)}
            if not places:
                return ()
        reached = set(places)
        count = node.least
        while places and (most is None or count < most):
            places = {e for p in places for e in self.ends(inner, p)} - reached
            reached |= places
            count += 1
        return tuple(sorted(reached))

    # --- the groups within a match

    def divide(self, node: RegexNode, start: int, end: int) -> bool:
        """Finds the groups of a part that matches start to end; False if a back reference does not match."""
        if not node.messy:
            return True
        if isinstance(node, Group):
            if not self.divide(node.inner, start, end):
                return False
            self.spans[node.number] = (start, end)
            return True
        if isinstance(node, Sequence):
            return self._in_sequence(node.parts, 0, start, end)
        if isinstance(node, Choice):
            return any(
                end in self.ends(branch, start) and self._kept(branch, start, end) for branch in node.branches
            )
        if isinstance(node, Repeat):
            if node.least == 0 and start == end:
                # A greedy part that can be empty matches once: its groups are then empty, not NULL.
                if node.inner.prefers is not Prefer.SHORTER:
                    self._in_repeat(node, 0, start, end, [])
                return True
            return self._in_repeat(node, 0, start, end, [])
        if isinstance(node, BackReference):
            return self._refers(node, start, end)
        return True

    def _kept(self, node: RegexNode, start: int, end: int) -> bool:
        """`divide`, which leaves no groups if it fails."""
        before = dict(self.spans)
        if self.divide(node, start, end):
            return True
        self.spans = before
        return False

    def _in_sequence(self, parts: tuple[RegexNode, ...], first: int, start: int, end: int) -> bool:
        part = parts[first]
        if first == len(parts) - 1:
            return end in self.ends(part, start) and self._kept(part, start, end)
        for middle in self._preferred(part, self.ends(part, start)):
            if middle > end or not self._reaches(parts, first + 1, middle, end):
                continue
            before = dict(self.spans)
            if self.divide(part, start, middle) and self._in_sequence(parts, first + 1, middle, end):
                return True
            self.spans = before
        return False

    def _reaches(self, parts: tuple[RegexNode, ...], first: int, start: int, end: int) -> bool:
        places = {start}
        for part in parts[first:]:
            places = {e for p in places for e in self.ends(part, p) if e <= end}
        return end in places

    def _in_repeat(
        self, node: Repeat, count: int, start: int, end: int, pieces: list[tuple[int, int]]
    ) -> bool:
        if node.most is not None and count >= node.most:
            return False
        for middle in self._preferred(node.inner, self.ends(node.inner, start)):
            if middle > end or (middle == start and count + 1 > max(node.least, 1)):
                continue
            taken = [*pieces, (start, middle)]
            if middle == end and count + 1 >= max(node.least, 1) and self._all(node.inner, taken):
                return True
            if self._in_repeat(node, count + 1, middle, end, taken):
                return True
        return False

    def _all(self, inner: RegexNode, pieces: list[tuple[int, int]]) -> bool:
        before = dict(self.spans)
        inside = group_numbers(inner)
        for start, end in pieces:
            # Groups are the last repetition's, also those that took no part in it.
            for number in inside:
                self.spans.pop(number, None)
            if not self.divide(inner, start, end):
                self.spans = before
                return False
        return True

    def _refers(self, node: BackReference, start: int, end: int) -> bool:
        span = self.spans.get(node.number)
        if span is None:
            return False
        said, again = self.text[span[0] : span[1]], self.text[start:end]
        return said.lower() == again.lower() if node.insensitive else said == again
