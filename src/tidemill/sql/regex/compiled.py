"""A compiled pattern, and the search for its matches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.caches import cached
from tidemill.sql.regex.match import Search
from tidemill.sql.regex.nodes import RegexNode
from tidemill.sql.regex.syntax import RegexOptions, parse


@dataclass(frozen=True, slots=True)
class Match:
    """`spans[n]` is the position of group n (0: the whole match); None for a group that did not take part."""

    text: str
    spans: tuple[tuple[int, int] | None, ...]

    @property
    def start(self) -> int:
        return self.spans[0][0] if self.spans[0] else 0

    @property
    def end(self) -> int:
        return self.spans[0][1] if self.spans[0] else 0

    def group(self, number: int) -> str | None:
        span = self.spans[number] if number < len(self.spans) else None
        return None if span is None else self.text[span[0] : span[1]]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegex:
    root: RegexNode
    groups: int

    def find(self, text: str, at: int = 0) -> Match | None:
        return self._match(Search(self.root, text), at)

    def all(self, text: str, at: int = 0) -> Iterator[Match]:
        """All matches. After an empty match the search continues one character later."""
        search = Search(self.root, text)
        while at <= len(text):
            found = self._match(search, at)
            if found is None:
                return
            yield found
            at = found.end + (found.end == found.start)

    def _match(self, search: Search, at: int) -> Match | None:
        whole = search.find(at)
        if whole is None:
            return None
        spans = search.spans
        return Match(search.text, (whole, *(spans.get(n) for n in range(1, self.groups + 1))))


@cached(512)
def compile_regex(pattern: str, options: RegexOptions | None = None) -> CompiledRegex:
    root, groups = parse(pattern, options or RegexOptions())
    return CompiledRegex(root, groups)
