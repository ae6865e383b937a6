"""Regular expression operators and functions: ~, !~, ~*, regexp_* and SIMILAR TO.

Spark tests a constant pattern if it can be translated to Java (`regex`). Python (`sql.regex`) does everything
else: patterns that are not constants, and every function that depends on which match is found. PostgreSQL
takes the longest alternative, Java the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.functions.regex import java_regex
from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import Builder, operator
from tidemill.sql.functions.tree import Tree, call, string
from tidemill.sql.regex import compile_regex
from tidemill.sql.scalar import regexes
from tidemill.types.model import BOOL, INT4, TEXT, Kind, SqlType, array, list_

_TEXTS = array(TEXT)


def _matches(build: Builder, *, insensitive: bool) -> Builder:
    def made(args: Sequence[Tree]) -> Tree:
        if not (isinstance(args[1], exp.Literal) and args[1].is_string):
            return build(args)
        # An invalid pattern raises PostgreSQL's error when the query is bound.
        compile_regex(str(args[1].this))
        try:
            pattern = java_regex(args[1], insensitive=insensitive)
        except TidemillError:
            return build(args)
        return call("rlike", args[0], string(pattern))

    return made


def _install_operators() -> None:
    """The parser turns !~ into NOT ... ~."""
    for symbol, run in (("~", regexes.matches), ("~*", regexes.matches_any_case)):
        for t in (TEXT, SqlType(Kind.CHAR)):
            build = row_function(symbol, (t, TEXT), BOOL, run)
            operator(symbol, (t, TEXT), BOOL, _matches(build, insensitive=symbol == "~*"))


def _overloads(name: str, result: SqlType, run: Callable[..., object], *lists: tuple[SqlType, ...]) -> None:
    for types in lists:
        by_row(name, types, result, run, brief=False)


def _install() -> None:
    two, three = (TEXT, TEXT), (TEXT, TEXT, TEXT)
    _overloads("regexp_like", BOOL, regexes.like, two, three)
    _overloads("regexp_count", INT4, regexes.count, two, (*two, INT4), (*two, INT4, TEXT))
    instr = (TEXT, TEXT, INT4, INT4, INT4, TEXT, INT4)
    _overloads("regexp_instr", INT4, regexes.instr, *(instr[:n] for n in range(2, 8)))
    substr = (TEXT, TEXT, INT4, INT4, TEXT, INT4)
    _overloads("regexp_substr", TEXT, regexes.substr, *(substr[:n] for n in range(2, 7)))
    _overloads("regexp_match", _TEXTS, regexes.match, two, three)
    _overloads("regexp_split_to_array", _TEXTS, regexes.split, two, three)
    _overloads("regexp_replace", TEXT, regexes.replace, three, (*three, TEXT))
    started = (*three, INT4, INT4, TEXT)
    _overloads("regexp_replace", TEXT, regexes.replace_from, *(started[:n] for n in range(4, 7)))
    by_row("substring", two, TEXT, regexes.extract, brief=False)
    by_row("substring", three, TEXT, regexes.similar_extract, brief=False)


# x SIMILAR TO pattern [ESCAPE character], special syntax.
similar = row_function("SIMILAR TO", (TEXT, TEXT), BOOL, regexes.similar)
similar_escape = row_function("SIMILAR TO", (TEXT, TEXT, TEXT), BOOL, regexes.similar_escape)

# regexp_matches(text, pattern [, flags]), by the number of its arguments: all its rows. A list, because
# arrays cannot contain arrays.
MATCHES = {n: row_function("regexp_matches", (TEXT,) * n, list_(_TEXTS), regexes.all_matches) for n in (2, 3)}

_install_operators()
_install()
