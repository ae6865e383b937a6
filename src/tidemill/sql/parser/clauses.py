"""Syntax checks on the tokens of a query body, for errors that sqlglot accepts and PostgreSQL does not.

`sqlglot_parser` calls `check` on every body, before sqlglot parses it. sqlglot 30.30 silently accepts: a
trailing comma; clauses in any order (`HAVING` before `WHERE`); empty `GROUP BY`; JOIN without ON (as a cross
join); ORDER BY before UNION; `LIMIT 1, 2`; a string as a table name or label; `FROM t` without SELECT;
`SELECT AS STRUCT`. `check` raises the syntax errors that PostgreSQL raises, at the same token.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import LimitExceeded, SyntaxError_, TidemillError, Unsupported
from tidemill.sql.names import RESERVED, RESERVED_FUNCTION_OR_TYPE, words
from tidemill.sql.tokens import Token, TokenKind, closes_distinct_on, syntax_error

# sqlglot takes time exponential in the nesting of ARRAY[...] (it tries each as a type first): 9 ms at 8,
# 0.4 s at 12. PostgreSQL has at most 6 dimensions.
MAX_ARRAY_NESTING = 8

_CLAUSES = {
    "from": 1,
    "where": 2,
    "group": 3,
    "having": 4,
    "window": 5,
    "order": 6,
    "limit": 7,
    "offset": 7,
    "fetch": 7,
}
_FROM, _GROUP, _ORDER, _LIMIT = 1, 3, 6, 7
_SET_OPERATIONS = frozenset({"union", "intersect", "except"})
# After these words the clause must continue, ...
_WANTS_MORE = frozenset(
    {"where", "having", "and", "or", "limit", "offset", "window", "union", "intersect", "except"}
)
# ... and none of these continues it.
_CANNOT_START = words(
    """
    from where group having window order limit offset fetch union intersect except for on using as and
    or then else end when returning into asc desc
    """
)
# Reserved words that something must follow inside parentheses too: SUBSTRING(a FROM 1 FOR ).
_INNER_WANTS = words("from for in placing when then else like ilike not is on using distinct")
# A comma after these has nothing before it.
_NO_COMMA_AFTER = words(
    """
    select from by where on and or not having limit offset when then else in like ilike is join distinct
    """
)
# Of each word of CASE, the ones that it may come after.
_CASE_AFTER: dict[str, tuple[str, ...]] = {
    "case": (),
    "when": ("case", "then"),
    "then": ("when",),
    "else": ("then",),
    "end": ("then", "else"),
}
# Where VALUES is the word of the grammar and no column's name.
_BEFORE_VALUES = words("( ) union intersect except all distinct")
# Words that may follow a NOT after an operand.
_NEGATED = words("in like ilike similar between")
# Non-reserved words that an expression follows.
_NO_OPERAND = words("by between escape groups range recursive rows values zone")
_CLOSING = frozenset({")", "]", ",", ";"})


# Casts of other databases that give NULL for what cannot be converted.
_TRYING = frozenset({"try_cast", "safe_cast"})


class _Frame:
    """One level of parentheses (or the body itself)."""

    __slots__ = ("array", "clause", "commas", "elements", "joins", "ons", "select", "values", "worded")

    def __init__(self, array: bool = False, elements: bool = False) -> None:
        self.select = False  # a SELECT: FROM and the rest are its clauses, not those of EXTRACT or TRIM
        self.clause = 0  # the rank of the last clause word seen, 0 in the select list
        self.joins = 0  # JOINs that need ON or USING ...
        self.ons = 0  # ... and those seen; nested joins may give them all at the end
        self.array = array  # opened by ARRAY[
        self.elements = array or elements  # inside ARRAY[, where a bare [ opens the next dimension
        self.commas = self.worded = False  # a call's arguments so far: f(a, b), or SUBSTRING(a FROM b)
        self.values = False  # between VALUES and the clause after its rows


def check(text: str, tokens: Sequence[Token]) -> None:
    """Raises for the errors above; `tokens` ends with END."""
    _Check(text, tokens).run()


class _Check:
    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._frames = [_Frame()]
        self._arrays = 0
        # For each open CASE, the last of its words that was seen: sqlglot does not miss a THEN.
        self._cases: list[str] = []

    def run(self) -> None:
        previous = Token(TokenKind.END, "", 0, 0)
        for at, token in enumerate(self._tokens):
            kind, value, _, _ = token
            if kind is TokenKind.SYMBOL:
                self._symbol(at, value, previous)
            elif kind is TokenKind.WORD and not self._is_label(at):
                self._word(at, value, previous)
            elif kind is TokenKind.END:
                self._end_joins(at)
                if len(self._frames) > 1:
                    raise self._error(at)
            previous = token

    def _is_label(self, at: int) -> bool:
        """Whether the word at `at` follows AS or a dot. Then it is a name, even if it is a keyword."""
        return at > 0 and (
            self._tokens[at - 1][:2] == (TokenKind.WORD, "as")
            or self._tokens[at - 1][:2] == (TokenKind.SYMBOL, ".")
        )

    def _error(self, at: int) -> TidemillError:
        token = self._tokens[at]
        return syntax_error(self._text, token.start, token.end)

    def _symbol(self, at: int, value: str, previous: Token) -> None:
        if value in ("(", "["):
            array = value == "[" and previous.key == "array" and previous.kind is TokenKind.WORD
            elements = value == "[" and self._frames[-1].elements and previous.key in ("[", ",")
            if value == "[" and not (array or elements or _ends_operand(previous)):
                raise self._error(at)
            self._frames.append(_Frame(array, elements))
            self._arrays += array
            if self._arrays > MAX_ARRAY_NESTING:
                raise LimitExceeded(
                    f"number of nested ARRAY constructors exceeds the limit ({MAX_ARRAY_NESTING})",
                    position=previous.start + 1,
                )
            following = self._tokens[at + 1]
            if following.key in (",", "from") and following.kind in (TokenKind.SYMBOL, TokenKind.WORD):
                raise self._error(at + 1)
        elif value in (")", "]"):
            self._end_joins(at)
            if len(self._frames) == 1:
                raise self._error(at)
            self._arrays -= self._frames.pop().array
        elif value == ",":
            self._wants_more(at)
            if (
                previous.kind is TokenKind.WORD
                and previous.key in _NO_COMMA_AFTER
                and not self._is_label(at - 1)
            ):
                raise self._error(at)
            frame = self._frames[-1]
            self._arguments(at, frame, comma=True)
            if frame.values and self._tokens[at + 1].key != "(":
                raise self._error(at + 1)
            if frame.select and frame.clause == _LIMIT:
                raise SyntaxError_(
                    "LIMIT #,# syntax is not supported",
                    hint="Use separate LIMIT and OFFSET clauses.",
                    position=self._tokens[at].start + 1,
                )
            if frame.clause == _FROM:
                self._end_joins(at)
                self._relation(at)
        elif value not in ("*", ":", ";") and not self._is_written_out(at):
            self._wants_more(at)

    def _is_written_out(self, at: int) -> bool:
        """Whether the operator at `at` is inside OPERATOR(pg_catalog.~), where no operand follows it."""
        begin = at - 3 if at > 2 and self._tokens[at - 1][:2] == (TokenKind.SYMBOL, ".") else at - 1
        return begin > 0 and [t[:2] for t in self._tokens[begin - 1 : begin + 1]] == [
            (TokenKind.WORD, "operator"),
            (TokenKind.SYMBOL, "("),
        ]

    def _arguments(self, at: int, frame: _Frame, comma: bool) -> None:
        """sqlglot accepts SUBSTRING(a, b FROM c), a mixture of both argument syntaxes."""
        if comma:
            frame.commas = True
        else:
            frame.worded = True
        if frame.commas and frame.worded and not frame.select:
            raise self._error(at)

    def _wants_more(self, at: int, but: Sequence[str] = ()) -> None:
        following = self._tokens[at + 1]
        kind, value, _, _ = following
        if (
            kind is TokenKind.END
            or (kind is TokenKind.SYMBOL and value in _CLOSING)
            or (kind is TokenKind.WORD and value in _CANNOT_START and value not in but)
        ):
            raise self._error(at + 1)

    def _relation(self, at: int) -> None:
        """Checks that a relation can start after FROM, JOIN or a comma between relations."""
        following = self._tokens[at + 1]
        if following.kind in (
            TokenKind.STRING,
            TokenKind.NUMBER,
            TokenKind.PARAM,
            TokenKind.BITS,
            TokenKind.END,
        ) or (
            following.kind is TokenKind.WORD and following.key in ("values", "select", "with", *_CANNOT_START)
        ):
            raise self._error(at + 1)

    def _end_joins(self, at: int) -> None:
        frame = self._frames[-1]
        if frame.joins != frame.ons:
            raise self._error(at)

    def _word(self, at: int, value: str, previous: Token) -> None:
        frame = self._frames[-1]
        following = self._tokens[at + 1].key
        if value in _CLAUSES or value in _SET_OPERATIONS or value == "select":
            frame.values = False
        if value in _WANTS_MORE or (value == "by" and previous.key in ("group", "order", "partition")):
            self._wants_more(at)
        if value in _INNER_WANTS:
            after = self._tokens[at + 1]
            if after.kind is TokenKind.SYMBOL and after.key in (")", "]"):
                raise self._error(at + 1)
        if value in _CASE_AFTER:
            self._case(at, value)
        if value == "as":
            after = self._tokens[at + 1]
            if after.kind not in (TokenKind.WORD, TokenKind.QUOTED) and after.key != "(":
                raise self._error(at + 1)
        elif value in ("any", "some"):
            if following != "(":
                raise self._error(at + 1)
        elif value == "not":
            if (
                _ends_operand(previous)
                and following not in _NEGATED
                and not closes_distinct_on(self._tokens, at - 1)
            ):
                raise self._error(at + 1)
        elif value in _TRYING and following == "(":
            raise Unsupported(
                f"{value.upper()} is not supported",
                detail="CAST fails where a value cannot be converted.",
                hint="For NULL instead, look at the value first: CASE WHEN x ~ '^[0-9]+$' THEN x::int END.",
                position=self._tokens[at].start + 1,
            )
        elif value == "variadic" and (frame.select or previous.key not in ("(", ",")):
            raise self._error(at)
        elif value == "over" and previous.key == ")":
            after = self._tokens[at + 1]
            if (
                following != "("
                and after.kind is not TokenKind.QUOTED
                and (after.kind is not TokenKind.WORD or following in RESERVED)
            ):
                raise self._error(at + 1)
        elif value == "select":
            frame.select, frame.clause = True, 0
            if following == "as" or following in _SET_OPERATIONS:
                raise self._error(at + 1)
            if following == "distinct":
                self._wants_more(at + 1, but=("on",))
        elif value == "values" and (previous.kind is TokenKind.END or previous.key in _BEFORE_VALUES):
            frame.values = True
            if following != "(":
                raise self._error(at + 1)
        elif value == "join":
            self._join(at)
        elif value in ("on", "using") and (frame.joins or frame.clause == _FROM):
            frame.ons += 1
            if frame.ons > frame.joins:
                raise self._error(at)
            if value == "on":
                self._wants_more(at)
            elif following != "(" or self._tokens[at + 2].key == ")":
                raise self._error(at + (1 if following != "(" else 2))
        elif value in ("rollup", "cube", "grouping") and frame.clause == _GROUP:
            if following in ("(", "sets") and previous.key not in ("by", ",", "("):
                raise self._error(at)
        elif value in _SET_OPERATIONS:
            self._end_joins(at)
            if frame.select and frame.clause >= _ORDER:
                raise self._error(at)
            frame.clause = frame.joins = frame.ons = 0
        elif value == "from" and not frame.select and len(self._frames) == 1 and previous.key != "distinct":
            raise self._error(at)
        elif value in ("from", "for", "placing") and not frame.select and previous.key != "distinct":
            self._arguments(at, frame, comma=False)
        elif value == "from" and previous.key == "rows" and following == "(" and frame.select:
            raise Unsupported(
                "ROWS FROM is not supported",
                hint="unnest() takes several arrays; other functions can be joined by WITH ORDINALITY.",
                position=self._tokens[at].start + 1,
            )
        elif value in _CLAUSES and frame.select:
            self._clause(at, value, previous, following)
        elif value == "into" and frame.select and not frame.clause:
            raise Unsupported(
                "SELECT INTO is not supported",
                hint="Use CREATE TABLE AS.",
                position=self._tokens[at].start + 1,
            )
        elif value == "for" and frame.select:
            if following not in ("update", "share", "no", "key"):
                raise self._error(at)
            raise Unsupported(
                "locking rows with FOR UPDATE or FOR SHARE is not supported",
                detail="Readers and writers do not wait for each other.",
                position=self._tokens[at].start + 1,
            )

    def _case(self, at: int, value: str) -> None:
        if value == "case":
            self._cases.append(value)
            return
        if not self._cases or self._cases[-1] not in _CASE_AFTER[value]:
            raise self._error(at)
        if value == "end":
            self._cases.pop()
        else:
            self._cases[-1] = value

    def _join(self, at: int) -> None:
        frame = self._frames[-1]
        back = at - 1
        while back >= 0 and self._tokens[back].key in ("left", "right", "full", "inner", "outer"):
            back -= 1
        if (
            back < 0
            or self._tokens[back].kind is not TokenKind.WORD
            or self._tokens[back].key not in ("cross", "natural")
        ):
            frame.joins += 1
        self._relation(at)

    def _clause(self, at: int, value: str, previous: Token, following: str) -> None:
        frame = self._frames[-1]
        if (value in ("group", "order") and following != "by") or (
            value == "from" and previous.key == "distinct"
        ):
            return  # WITHIN GROUP, a column named so, IS DISTINCT FROM
        rank = _CLAUSES[value]
        self._end_joins(at)
        if rank < frame.clause or (rank == frame.clause and rank != _LIMIT):
            raise self._error(at)
        frame.clause = rank
        frame.joins = frame.ons = 0
        if value == "from":
            self._relation(at)
        elif value == "fetch":
            self._fetch(at)

    def _fetch(self, at: int) -> None:
        """FETCH { FIRST | NEXT } [n] { ROW | ROWS } { ONLY | WITH TIES }"""
        at += 1
        if self._tokens[at].key not in ("first", "next"):
            raise self._error(at)
        depth = 0
        while not (self._tokens[at].kind is TokenKind.WORD and self._tokens[at].key in ("only", "ties")):
            kind, value, _, _ = self._tokens[at]
            if kind is TokenKind.SYMBOL:
                depth += (value in ("(", "[")) - (value in (")", "]"))
            if kind is TokenKind.END or depth < 0:
                raise self._error(at)
            at += 1


def _ends_operand(token: Token) -> bool:
    """Whether `token` can end an expression: then an operator follows."""
    if token.kind is TokenKind.WORD:
        if token.value in ("end", "null", "true", "false"):
            return True
        return not (
            token.value in RESERVED or token.value in RESERVED_FUNCTION_OR_TYPE or token.value in _NO_OPERAND
        )
    return token.value in (")", "]") if token.kind is TokenKind.SYMBOL else token.kind is not TokenKind.END
