"""PostgreSQL's regular expressions (AREs) in Python, with its syntax and its rules for choosing a match.

Called by `sql.local`, and by `sql.functions` where Spark's engine would give a different answer: Spark takes
the first alternative that fits, PostgreSQL the longest. `compile_regex` compiles a pattern once;
`CompiledRegex.find` returns matches and their groups.
"""

from __future__ import annotations

from tidemill.sql.regex.compiled import CompiledRegex, Match, compile_regex

__all__ = ["CompiledRegex", "Match", "compile_regex"]
