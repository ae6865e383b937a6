"""Our tokens as sqlglot's tokens, for the query bodies that its parser reads.

`sqlglot_parser` calls `sqlglot_tokens` on the tokens of one body. A word or operator gets sqlglot's token
type only if PostgreSQL knows it. The grammar of other dialects in the stock parser (QUALIFY, PIVOT, SEMI
JOIN, `==`, `??`, `LIKE` under other names) is therefore out of reach. Where sqlglot misreads PostgreSQL's
syntax, the tokens are rewritten to a form that it reads correctly; a comment at each such place names the
case.

A lowered token keeps its offsets in the text, and its index among our tokens in `col`, so that errors and
nodes refer to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot.dialects.postgres import Postgres
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token as GlotToken
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import Unsupported
from tidemill.sql.names import RESERVED, RESERVED_FUNCTION_OR_TYPE, needs_quotes, words
from tidemill.sql.parser.typename import INTERVAL_FIELDS, TYPE_WORDS, type_end
from tidemill.sql.tokens import Token, TokenKind, closes_distinct_on, syntax_error

_KEYWORDS: dict[str, TokenType] = dict(Postgres.Tokenizer.KEYWORDS)
_SINGLE: dict[str, TokenType] = dict(Postgres.Tokenizer.SINGLE_TOKENS)

# The words of PostgreSQL's query grammar that sqlglot's parser knows by token type (the others it knows by
# their text).
_QUERY_WORDS = {
    "some": TokenType.ANY,
    "user": TokenType.CURRENT_USER,
    "current_role": TokenType.CURRENT_USER,
    **{
        word: _KEYWORDS[word.upper()]
        for word in words(
            """
        all and any array as asc between case collate cross cube current_catalog current_date
        current_schema current_time current_timestamp current_user delete desc distinct else end escape
        except exists false fetch filter first for from full having ilike in inner insert intersect into
        is isnull join lateral left like limit localtime localtimestamp natural next not notnull null
        offset on only operator or ordinality outer over overlaps range recursive returning right rollup
        row rows select session_user table tablesample then true union unknown unnest update using
        values variadic when where window with
        """
        )
    },
}
_TYPE_WORDS = {
    word: _KEYWORDS[word.upper()] for word in TYPE_WORDS if word.upper() in _KEYWORDS and word != "double"
}
# Before the name of a call that sqlglot shall not know: no text can hold it. `tree` takes it away.
PLAIN_CALL = "\x00"
# The functions for which sqlglot may create special nodes: those that PostgreSQL has under the same name
# (pg_proc of version 18), and calls with special syntax. Functions of other dialects (`nvl`, `if`, `len`,
# ...) stay plain calls, which the binder refuses by name.
_FUNCTIONS = words(
    """
    abs acos any any_value array array_agg array_append array_cat array_length array_prepend
    array_to_string ascii asin atan atan2 avg bit_and bit_length bit_or bit_xor bool_and bool_or btrim
    case cast cbrt ceil ceiling chr coalesce concat concat_ws cos count cume_dist current_database
    current_date current_schema current_schemas current_time current_timestamp current_user degrees
    dense_rank div exists exp extract first_value floor gen_random_uuid greatest grouping host lag
    last_value lead least left ln localtime localtimestamp lower lpad ltrim max md5 min now nth_value
    ntile nullif overlay percent_rank pi position pow power radians rank repeat replace reverse right
    round row_number rpad rtrim session_user sha256 sha384 sha512 sign sin split_part sqrt starts_with
    stddev stddev_pop stddev_samp string_agg strpos substr substring sum tan to_hex translate trim trunc
    unnest upper var_pop variadic version
    """
)
_KNOWN_FUNCTIONS = frozenset(
    name.lower()
    for table in (
        PostgresParser.FUNCTIONS,
        PostgresParser.FUNCTION_PARSERS,
        PostgresParser.NO_PAREN_FUNCTION_PARSERS,
    )
    for name in table
)
_FOREIGN_FUNCTIONS = _KNOWN_FUNCTIONS - _FUNCTIONS
# Of `_FUNCTIONS`, grammar: in quotes they are the names of functions that PostgreSQL does not have.
GRAMMAR_CALLS = words(
    """
    any array case cast coalesce current_date current_time current_timestamp exists greatest grouping least
    localtime localtimestamp nullif trim variadic
    """
)


def _is_foreign(name: str) -> bool:
    """Whether a function's name in quotes must be hidden from sqlglot, which knows names in any case and with
    quotes too: `"AND"(a, b)` would be AND."""
    folded = name.lower()
    if folded != name:
        return folded in _KNOWN_FUNCTIONS or folded in GRAMMAR_CALLS
    return name in _FOREIGN_FUNCTIONS or name in GRAMMAR_CALLS


_PAIRS = {
    ("group", "by"): _KEYWORDS["GROUP BY"],
    ("order", "by"): _KEYWORDS["ORDER BY"],
    ("partition", "by"): _KEYWORDS["PARTITION BY"],
    ("grouping", "sets"): _KEYWORDS["GROUPING SETS"],
    ("similar", "to"): _KEYWORDS["SIMILAR TO"],
}
_TYPE_PAIRS = {
    ("double", "precision"): _KEYWORDS["DOUBLE PRECISION"],
    ("character", "varying"): _KEYWORDS["CHARACTER VARYING"],
    ("char", "varying"): _KEYWORDS["CHAR VARYING"],
}
_OPERATORS: dict[str, tuple[TokenType, ...]] = {
    **{op: (_SINGLE[op],) for op in words("( ) [ ] , . : + - * / % ^ < > = & | #")},
    **{
        op: (_KEYWORDS[op],)
        for op in words(":: <= >= <> != || -> ->> #> #>> #- @> <@ && ?| ?& ~ ~* ~~ ~~* =>")
    },
    "^@": (_KEYWORDS["^@"],),
    "?": (TokenType.PLACEHOLDER,),
    ":=": (_KEYWORDS["=>"],),  # the old spelling of a named argument
    "<<": (TokenType.LT, TokenType.LT),
    ">>": (TokenType.GT, TokenType.GT),
    "!~": (TokenType.NOT, _KEYWORDS["~"]),
    "!~*": (TokenType.NOT, _KEYWORDS["~*"]),
    "!~~": (TokenType.NOT, _KEYWORDS["~~"]),
    "!~~*": (TokenType.NOT, _KEYWORDS["~~*"]),
}
# What may be written as OPERATOR(pg_catalog.x). PostgreSQL gives it the rank of the pattern operators then,
# which those below `=` here have anyway; the comparisons would be grouped otherwise only within each other.
_QUALIFIED = words("~ ~* !~ !~* ~~ ~~* !~~ !~~* || = <> < > <= >=")
_OID_TYPES = words("oid regclass regtype regproc regprocedure regnamespace regrole regoper regoperator")
_VALUES = frozenset({TokenKind.STRING, TokenKind.NUMBER, TokenKind.PARAM, TokenKind.BITS, TokenKind.QUOTED})
_BEFORE_STRINGS = RESERVED | RESERVED_FUNCTION_OR_TYPE | words("between by escape groups range rows zone")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


def lower(text: str, tokens: Sequence[Token], base: int) -> list[GlotToken]:
    """sqlglot's tokens for `tokens`, which must end with END; `base` is the index of the first among all
    the text's tokens."""
    return _Lowering(text, tokens, base).run()


class _Lowering:
    """One pass over one body."""

    def __init__(self, text: str, tokens: Sequence[Token], base: int) -> None:
        self._text = text
        self._tokens = tokens
        self._base = base
        self._out: list[GlotToken] = []
        # For each open parenthesis whether it is CAST's (an AS directly inside is then followed by a type);
        # None for a bracket.
        self._open: list[bool | None] = []
        # The position of the AND of a BETWEEN: the parenthesis around the lower bound closes before it.
        self._lower_bounds: set[int] = set()
        # The position of the operand after the last OPERATOR(...).
        self._after_operator = -1

    def run(self) -> list[GlotToken]:
        tokens, at = self._tokens, 0
        while tokens[at].kind is not TokenKind.END:
            if at in self._lower_bounds:
                self._emit(TokenType.R_PAREN, ")", at)
            kind = tokens[at].kind
            if kind is TokenKind.SYMBOL:
                at = self._symbol(at)
            elif kind is TokenKind.WORD:
                at = self._word(at)
            else:
                self._value(at)
                at += 1
        return self._out

    def _emit(self, kind: TokenType, value: str, at: int) -> None:
        token = self._tokens[at]
        self._out.append(GlotToken(kind, value, 1, self._base + at, token.start, token.end - 1))

    def _value(self, at: int) -> None:
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.NUMBER:
            self._emit(TokenType.NUMBER, "0" + value if value[0] == "." else value, at)
        elif kind is TokenKind.STRING:
            if (
                at
                and at != self._after_operator
                and not self._may_precede_string(at - 1)
                and not closes_distinct_on(self._tokens, at - 1)
            ):
                raise syntax_error(self._text, self._tokens[at].start, self._tokens[at].end)
            self._emit(TokenType.STRING, value, at)
        elif kind is TokenKind.QUOTED:
            if self._tokens[at + 1][:2] == (TokenKind.SYMBOL, "(") and _is_foreign(value):
                self._emit(TokenType.VAR, PLAIN_CALL + value, at)
            else:
                self._name(at)
        elif kind is TokenKind.PARAM:
            self._emit(TokenType.PARAMETER, "$", at)
            self._emit(TokenType.NUMBER, value, at)
        else:
            self._emit(TokenType.BIT_STRING if value[0] == "b" else TokenType.HEX_STRING, value[1:], at)

    def _name(self, at: int) -> None:
        """An identifier, even if it is a keyword. `f(a -> 'k')` and `f((a) -> 'k')` would be read as a
        lambda, so that `f(a -> 'k' || 'x')` would have another meaning. Another pair of parentheses on each
        side prevents this (`tree` removes them)."""
        token_kind, value, _, _ = self._tokens[at]
        quoted = token_kind is TokenKind.QUOTED or needs_quotes(value)
        kind = TokenType.IDENTIFIER if quoted else TokenType.VAR
        following = self._tokens[at + 1]
        if (
            following.key == "->"
            and following.kind is TokenKind.SYMBOL
            and at
            and self._tokens[at - 1].key in ("(", ",")
        ):
            for token in (TokenType.L_PAREN, TokenType.L_PAREN, kind, TokenType.R_PAREN, TokenType.R_PAREN):
                self._emit(token, value, at)
        else:
            self._emit(kind, value, at)

    def _symbol(self, at: int) -> int:
        token = self._tokens[at]
        value = token.value
        if value == "(":
            self._open.append(at > 0 and self._tokens[at - 1][:2] == (TokenKind.WORD, "cast"))
            if self._is_lambda_head(at):
                self._emit(TokenType.L_PAREN, "(", at)
                self._emit(TokenType.L_PAREN, "(", at)
                self._name(at + 1)
                self._emit(TokenType.R_PAREN, ")", at + 2)
                self._emit(TokenType.R_PAREN, ")", at + 2)
                self._open.pop()
                return at + 3
        elif value == "[":
            self._open.append(None)
        elif value in (")", "]") and self._open:
            self._open.pop()
        kinds = _OPERATORS.get(value)
        if kinds is None:
            if value in ("..", ";"):
                raise syntax_error(self._text, token.start, token.end)
            raise Unsupported(f"operator {value} is not supported", position=token.start + 1)
        # Elsewhere sqlglot reads `:name` and `?` as placeholders of client libraries.
        if (value == ":" and (not self._open or self._open[-1] is not None)) or (
            value == "?" and not self._is_operand(at - 1)
        ):
            raise syntax_error(self._text, token.start, token.end)
        # `a < < b` is not a shift.
        if (
            value in "<>"
            and self._tokens[at + 1].key == value
            and self._tokens[at + 1].kind is TokenKind.SYMBOL
        ):
            after = self._tokens[at + 1]
            raise syntax_error(self._text, after.start, after.end)
        for kind in kinds:
            self._emit(kind, value, at)
        if value == "::":
            return self._type(at + 1)
        if value in ("->", "->>") and self._tokens[at + 1].kind in (TokenKind.STRING, TokenKind.NUMBER):
            # sqlglot would make a path of a literal: blanks around a key would be lost, and 1.5 be a key.
            self._emit(TokenType.L_PAREN, "(", at + 1)
            self._value(at + 1)
            self._emit(TokenType.R_PAREN, ")", at + 1)
            return at + 2
        if value == ".":
            after = self._tokens[at + 1]
            if after.kind is TokenKind.WORD and self._is_named(at - 1):
                self._name(at + 1)
                return at + 2
            if (after.kind is not TokenKind.QUOTED and after.key != "*") or not self._is_named(at - 1):
                raise syntax_error(self._text, after.start, after.end)
        return at + 1

    def _is_named(self, at: int) -> bool:
        """Whether the expression that ends at `at` can be followed by a field."""
        if at < 0:
            return False
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.WORD:
            return value not in RESERVED or (at > 0 and self._tokens[at - 1].key == ".")
        return kind is TokenKind.QUOTED or (kind is TokenKind.SYMBOL and value in (")", "]"))

    def _may_precede_string(self, at: int) -> bool:
        """Not a value or a name: sqlglot would join two strings, or take the string for an alias."""
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.WORD:
            return value in _BEFORE_STRINGS
        return kind is TokenKind.SYMBOL and value not in (")", "]", ".")

    def _is_frame(self, at: int) -> bool:
        """Whether the BETWEEN at `at` belongs to a window's frame."""
        return self._tokens[at - 1].kind is TokenKind.WORD and self._tokens[at - 1].key in (
            "rows",
            "range",
            "groups",
        )

    def _is_operand(self, at: int, *also: str) -> bool:
        """Whether the token at `at` can end an expression, or is one of the words `also`."""
        if at < 0:
            return False
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.SYMBOL:
            return value in (")", "]")
        if kind is not TokenKind.WORD or value not in RESERVED or value in also:
            return True
        return value in ("end", "null", "true", "false") or value.startswith(
            ("current_", "local", "session_")
        )

    def _is_lambda_head(self, at: int) -> bool:
        tokens = self._tokens
        return (
            tokens[at + 1].kind in (TokenKind.WORD, TokenKind.QUOTED)
            and tokens[at + 2][:2] == (TokenKind.SYMBOL, ")")
            and tokens[at + 3][:2] == (TokenKind.SYMBOL, "->")
        )

    def _word(self, at: int) -> int:
        value = self._tokens[at].key
        following = self._tokens[at + 1]
        pair = (value, following.key)
        if pair in _PAIRS and following.kind is TokenKind.WORD:
            self._emit(_PAIRS[pair], f"{value} {following.key}".upper(), at)
            return at + 2
        if value == "as":
            self._emit(TokenType.ALIAS, "AS", at)
            if self._open and self._open[-1]:
                return self._type(at + 1)
            # A label may be any word, also a reserved one.
            if following.kind is TokenKind.WORD and following.key not in ("not", "materialized"):
                self._name(at + 1)
                return at + 2
            return at + 1
        if value == "operator" and following[:2] == (TokenKind.SYMBOL, "(") and self._is_operand(at - 1):
            return self._qualified_operator(at)
        if value == "array" and following.key not in ("[", "("):
            raise syntax_error(self._text, following.start, following.end)
        if value in TYPE_WORDS:
            end = self._typed_literal(at)
            if end is not None:
                return end
        if value == "between" and self._is_operand(at - 1, "not") and not self._is_frame(at):
            return self._between(at)
        kind = _QUERY_WORDS.get(value)
        if kind is not None:
            # sqlglot also uses the text: SOME(SELECT ...) and ANY(SELECT ...) would give different trees.
            self._emit(kind, "ANY" if value == "some" else value.upper(), at)
        elif value in _FOREIGN_FUNCTIONS and following[:2] == (TokenKind.SYMBOL, "("):
            self._emit(TokenType.VAR, PLAIN_CALL + value, at)
        elif value in RESERVED:
            # The word is not valid at any position of a query (ASYMMETRIC, CHECK, ...), but sqlglot accepts
            # it by its text or as a name: `tree` refuses it as a name.
            self._emit(TokenType.VAR, value, at)
        else:
            self._plain(at)
        return at + 1

    def _qualified_operator(self, at: int) -> int:
        """`OPERATOR(pg_catalog.~)` as `~`: only pg_catalog has operators."""
        tokens = self._tokens
        end = at + 2
        if tokens[end].kind in (TokenKind.WORD, TokenKind.QUOTED) and tokens[end + 1][:2] == (
            TokenKind.SYMBOL,
            ".",
        ):
            if tokens[end].key != "pg_catalog":
                raise Unsupported(
                    f"operators of schema {tokens[end].value} are not supported",
                    position=tokens[end].start + 1,
                )
            end += 2
        operator, close = tokens[end], tokens[end + 1]
        if operator.kind is not TokenKind.SYMBOL or operator.value not in _QUALIFIED:
            raise syntax_error(self._text, operator.start, operator.end)
        if close[:2] != (TokenKind.SYMBOL, ")"):
            raise syntax_error(self._text, close.start, close.end)
        for kind in _OPERATORS[operator.value]:
            self._emit(kind, operator.value, end)
        self._after_operator = end + 2
        return end + 2

    def _between(self, at: int) -> int:
        """Parentheses around the lower bound (`tree` removes them): sqlglot does not require the AND after
        it, so that `a BETWEEN 1 2 = b` would be accepted.
        """
        tokens = self._tokens
        self._emit(TokenType.BETWEEN, "BETWEEN", at)
        at += 1
        if tokens[at][:2] in ((TokenKind.WORD, "symmetric"), (TokenKind.WORD, "asymmetric")):
            self._emit(TokenType.VAR, tokens[at].key, at)
            at += 1
        if tokens[at].kind is TokenKind.WORD and tokens[at].key in ("select", "with", "values", "table"):
            raise syntax_error(self._text, tokens[at].start, tokens[at].end)
        depth = 0
        end = at
        while True:
            kind, value, start, stop = tokens[end]
            if kind is TokenKind.SYMBOL or kind is TokenKind.WORD:
                if not depth and value == "and":
                    break
                if not depth and value in (",", ")", "]", "between"):
                    raise syntax_error(self._text, start, stop)
                depth += (value in ("(", "[", "case")) - (value in (")", "]", "end"))
            elif kind is TokenKind.END:
                raise syntax_error(self._text, start, stop)
            end += 1
        self._emit(TokenType.L_PAREN, "(", at)
        self._lower_bounds.add(end)
        return at

    def _plain(self, at: int) -> None:
        following = self._tokens[at + 1]
        if following.key == "->" and following.kind is TokenKind.SYMBOL:
            self._name(at)
        else:
            self._emit(TokenType.VAR, self._tokens[at].key, at)

    def _typed_literal(self, at: int) -> int | None:
        """`date '2020-01-01'` as `'2020-01-01'::date`: sqlglot splits and rewrites the text of intervals,
        and tries type names in ways that take exponential time when they nest (`date(date(date(...`)."""
        tokens = self._tokens
        if at and (tokens[at - 1][:2] == (TokenKind.SYMBOL, ".") or tokens[at - 1].kind in _VALUES):
            return None
        end = type_end(tokens, at)
        if end is None or tokens[end].kind is not TokenKind.STRING:
            return None
        if tokens[at].key == "interval":
            if end != at + 1:
                raise Unsupported("interval precision is not supported", position=tokens[at].start + 1)
            return self._interval(at)
        self._emit(TokenType.STRING, tokens[end].value, end)
        self._emit(TokenType.DCOLON, "::", at)
        self._type(at)
        return end + 1

    def _interval(self, at: int) -> int:
        """`interval '5' day` as `'5 day'::interval`; other uses of fields (which cut off parts of the
        value) are refused."""
        value, field = self._tokens[at + 1], self._tokens[at + 2]
        text = value.value
        end = at + 2
        if field.kind is TokenKind.WORD and field.key in INTERVAL_FIELDS:
            if not _WHOLE.fullmatch(text) or self._tokens[at + 3][:2] == (TokenKind.WORD, "to"):
                raise Unsupported(
                    "interval fields are not supported but after a whole number",
                    hint="Write the units inside the string: interval '1 day 2 hours'.",
                    position=field.start + 1,
                )
            text, end = f"{text} {field.key}", at + 3
        self._emit(TokenType.STRING, text, at + 1)
        self._emit(TokenType.DCOLON, "::", at)
        self._emit(TokenType.INTERVAL, "interval", at)
        return end

    def _type(self, at: int) -> int:
        """Emit the type name at `at`; `[3]` and `ARRAY` become `[]` (sqlglot reads `x::int[3]` as a
        subscript and drops ARRAY)."""
        tokens = self._tokens
        end = type_end(tokens, at)
        if end is None:
            raise syntax_error(self._text, tokens[at].start, tokens[at].end)
        while at < end:
            kind, value, _, _ = tokens[at]
            pair = (value, tokens[at + 1].key)
            if kind is TokenKind.WORD and pair in _TYPE_PAIRS:
                self._emit(_TYPE_PAIRS[pair], " ".join(pair).upper(), at)
                at += 1
            elif kind is TokenKind.WORD and value == "array":
                if tokens[at + 1].key != "[" or at + 1 == end:
                    self._emit(TokenType.L_BRACKET, "[", at)
                    self._emit(TokenType.R_BRACKET, "]", at)
            elif kind is TokenKind.WORD and value in _OID_TYPES:
                # sqlglot has special nodes for these, and does not build arrays from them; from a qualified
                # name it does.
                if tokens[at + 1].key == "[" and at + 1 < end and tokens[at - 1].key != ".":
                    self._emit(TokenType.VAR, "pg_catalog", at)
                    self._emit(TokenType.DOT, ".", at)
                self._emit(TokenType.VAR, value, at)
            elif kind is TokenKind.WORD:
                self._emit(_TYPE_WORDS.get(value, _QUERY_WORDS.get(value, TokenType.VAR)), value, at)
            elif kind is TokenKind.SYMBOL:
                self._emit(_OPERATORS[value][0], value, at)
                if value == "[" and tokens[at + 1].kind is TokenKind.NUMBER:
                    at += 1
            else:
                self._value(at)
            at += 1
        if tokens[at][:2] == (TokenKind.SYMBOL, "("):
            # Not a modifier that PostgreSQL knows; sqlglot would read any expression as one.
            raise syntax_error(self._text, tokens[at].start, tokens[at].end)
        return at
