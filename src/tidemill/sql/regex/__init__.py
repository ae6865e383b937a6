"""PostgreSQL's regular expressions (AREs) in Python: its syntax, and its choice of the match.

Called by `sql.functions` for what Spark's engine would answer otherwise (it takes the first alternative that
fits where PostgreSQL takes the longest), and by `sql.local`. `compile_regex` reads a pattern once;
`CompiledRegex.find` gives matches and their groups."""

from __future__ import annotations

from tidemill.sql.regex.compiled import CompiledRegex, Match, compile_regex

__all__ = ["CompiledRegex", "Match", "compile_regex"]
