"""The key words of a query body that are names in their context, by PostgreSQL's rules.

PostgreSQL puts each key word into a category (`sql.names`). Reserved words can only be labels. The others can
name columns and tables, although some start grammar of their own: `by`, `between`, `insert`, `values`,
`rows`. A word is a name where an expression or a relation starts and the word's own grammar does not follow.
After a relation of FROM it is an alias. At the end of a select list item, any word except those of `AS_LABEL`
is a label without AS.

`sqlglot_parser` calls `mark_names` before all other passes over the tokens. The result has the same tokens in
the same places. Tokens that are names get the kind of a quoted name, so later passes do not read them as
grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sql.names import AS_LABEL, NOT_A_FUNCTION, RESERVED, RESERVED_FUNCTION_OR_TYPE, words
from tidemill.sql.tokens import Token, TokenKind, syntax_error

# Words that are not reserved and that the grammar of queries, or sqlglot, knows.
_GRAMMAR = words(
    """
    between by cube delete escape exists filter first groups if insert next operator ordinality over range
    recursive rollup row rows unknown update values zone
    """
)
_RESERVED = RESERVED | RESERVED_FUNCTION_OR_TYPE
# Words that must be marked as labels: sqlglot takes all others for labels anyway.
_LABELS = (_RESERVED | _GRAMMAR) - AS_LABEL
# Words that sqlglot takes for a label wrongly: the grammar may expect another word there.
_NO_LABELS = AS_LABEL - _RESERVED
# All others are names anyway.
_KEY_WORDS = _RESERVED | _GRAMMAR | AS_LABEL
_BRACKETS = frozenset("()[],")
# Reserved words that are a value, or end one.
_VALUES = words(
    """
    end null true false current_catalog current_date current_role current_schema current_time
    current_timestamp current_user localtime localtimestamp session_user user isnull notnull
    """
)
# Words of `_GRAMMAR` that an expression follows where they are grammar.
_OPENS = words("between by escape groups over range recursive rows zone")
# Words that end a select list; GROUP and ORDER only with BY.
_AFTER_LIST = words(
    "from where group having window order limit offset fetch for union intersect except into returning"
)
_BEFORE_BY = words("group order partition")
_FRAMES = words("rows range groups")
# The words that end an item of ORDER BY before a window's frame.
_BEFORE_FRAME = words("asc desc first last")
_SET_OPERATIONS = words("union intersect except")
# Words that end FROM.
_AFTER_FROM = words("where group having window order limit offset fetch for union intersect except returning")
# The second words of types, by the first.
_IN_TYPES = {
    "precision": words("double"),
    "varying": words("char character bit nchar"),
    "char": words("national"),
    "character": words("national"),
}


# Reserved words that are unlikely to be meant as a name.
_CONNECTING = words("and as for from having in into limit not offset on or select to union using where with")
# Tokens that a name follows.
_BEFORE_NAMES = words("from join into update table only select by where and or on set , (")


def quote_hint(tokens: Sequence[Token], at: int) -> str | None:
    """The hint for a reserved word at `at` where a name is expected; None for anything else."""
    kind, value, _, _ = tokens[at]
    if kind is not TokenKind.WORD or value not in _RESERVED or value in _CONNECTING:
        return None
    following = tokens[at + 1].key
    if (value in _BEFORE_BY and following == "by") or (value in _VALUES and following == "("):
        return None
    return f'"{value}" is a reserved word. To use it as a name, write it in double quotes.'


def hint_at(tokens: Sequence[Token], position: int) -> str | None:
    """`quote_hint` for the error at `position` (1-based) of a query."""
    for at in range(1, len(tokens)):
        if tokens[at].start + 1 == position:
            return quote_hint(tokens, at) if tokens[at - 1].key in _BEFORE_NAMES else None
    return None


class _Level:
    """One level of parentheses, or the body itself."""

    __slots__ = ("cases", "fixed", "from_", "items", "relations", "window")

    def __init__(self, items: bool = False, window: bool = False) -> None:
        self.items = items  # in a select list
        self.from_ = False  # in FROM ...
        self.relations = False  # ... and at a relation, not in the condition of a JOIN
        self.window = window  # the parentheses of a window's definition
        self.fixed = False  # grammar without names to the end: a window's frame, FETCH FIRST
        self.cases = 0  # CASEs that are open


def mark_names(
    text: str, tokens: Sequence[Token], *, items: bool = False, query: bool = False
) -> list[Token]:
    """`tokens`, which must end with END, with names marked. They are those of a `query`, of the `items` of a
    select list, or of an expression. Raises for a word that is used as a name or label and must not be.
    """
    return _Marking(text, tokens, items, query).run()


class _Marking:
    def __init__(self, text: str, tokens: Sequence[Token], items: bool, query: bool) -> None:
        self._text = text
        self._tokens = list(tokens)
        self._levels = [_Level(items)]
        self._query = query

    def run(self) -> list[Token]:
        for at, (kind, value, start, end) in enumerate(self._tokens):
            if kind is TokenKind.SYMBOL:
                if value in _BRACKETS:
                    self._symbol(at, value)
            elif kind is TokenKind.WORD and value in _KEY_WORDS:
                if self._is_name(at, value):
                    self._tokens[at] = Token(TokenKind.QUOTED, value, start, end)
                else:
                    self._word(at, value)
        return self._tokens

    def _symbol(self, at: int, value: str) -> None:
        if value in ("(", "["):
            before = self._tokens[at - 1].key if at else ""
            level = self._levels[-1]
            self._levels.append(_Level(window=before == "over" or (before == "as" and level.window)))
        elif value in (")", "]"):
            if len(self._levels) > 1:
                self._levels.pop()
        elif value == ",":
            level = self._levels[-1]
            level.relations = level.from_

    def _word(self, at: int, value: str) -> None:
        """A word of the grammar: sets the context of the words after it."""
        level = self._levels[-1]
        following = self._tokens[at + 1].key
        if value == "select":
            self._levels[-1] = _Level(items=True)
        elif value == "case":
            level.cases += 1
        elif value == "end":
            level.cases = max(0, level.cases - 1)
        elif value == "from" and level.items and self._before(at) != "distinct":
            level.items, level.from_, level.relations = False, True, True
        elif value == "join":
            level.relations = level.from_
        elif value in ("on", "using"):
            level.relations = False
        elif value in _AFTER_FROM and (value not in _BEFORE_BY or following == "by"):
            level.items = level.from_ = level.relations = False
            level.window = level.window or value == "window"
            level.fixed = value == "fetch"
        if value == "returning":
            level.items = True
        elif value in _FRAMES and level.window:
            level.fixed = True

    def _before(self, at: int) -> str:
        return self._tokens[at - 1].key if at else ""

    def _is_name(self, at: int, value: str) -> bool:
        level = self._levels[-1]
        if level.fixed:
            return False
        before = self._before(at)
        if before == "." and self._tokens[at - 1].kind is TokenKind.SYMBOL:
            return value in RESERVED or value in _OPENS
        if before == "as" and (level.items or level.relations):
            if level.relations and value in _RESERVED:
                raise self._error(at)
            return True
        if self._ends_operand(at - 1):
            return self._is_label(at, value, level)
        return value in _GRAMMAR and self._begins_operand(at, value, before, level)

    def _is_label(self, at: int, value: str, level: _Level) -> bool:
        """Whether the word after an operand is a label."""
        if level.relations:
            if value == "outer":
                raise self._error(at)
            if value == "tablesample" and not self._names(at + 1):
                raise self._error(at + 1)
            return value in _GRAMMAR
        if not level.items or level.cases or (value not in _LABELS and value not in _NO_LABELS):
            return False
        if not self._ends_item(at + 1):
            return False
        if value in _LABELS:
            return True
        before = self._before(at)
        if value in ("over", "filter", "within") and before == ")":
            return False
        if before not in _IN_TYPES.get(value, ()) and not self._is_interval(at):
            raise self._error(at)
        return False

    def _is_interval(self, at: int) -> bool:
        """Whether the word at `at` is a field of INTERVAL '1' DAY, or of a type."""
        begin = at - 1 if self._tokens[at - 1].kind is TokenKind.STRING else at
        return begin > 0 and self._tokens[begin - 1].key in ("interval", "to")

    def _ends_item(self, at: int) -> bool:
        """Whether the item of a select list ends before the token at `at`."""
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.SYMBOL:
            return value in (",", ")")
        if kind is TokenKind.WORD and value in ("group", "order"):
            return self._tokens[at + 1].key == "by"
        return kind is TokenKind.END or (kind is TokenKind.WORD and value in _AFTER_LIST)

    def _begins_operand(self, at: int, value: str, before: str, level: _Level) -> bool:
        """Whether a word of the grammar is a name at the start of an operand or a relation."""
        following = self._tokens[at + 1]
        called = following[:2] == (TokenKind.SYMBOL, "(")
        if called and (value in NOT_A_FUNCTION or value in ("cube", "rollup", "operator", "if")):
            return False
        if following.kind is TokenKind.STRING:
            return False
        match value:
            case "by":
                return before not in _BEFORE_BY
            case "values":
                return (at > 0 or not self._query) and before not in _SET_OPERATIONS
            case "unknown":
                return before not in ("is", "not")
            case "ordinality":
                return before != "with" or not level.from_
            case "recursive":
                return before != "with" or called or following.key == "as"
            case "between":
                return before != "not" or not self._ends_operand(at - 2)
            case "insert" | "update" | "delete" if before == "(":
                # As in WITH x AS (INSERT INTO ...: a separate error.
                return following.kind is TokenKind.SYMBOL or following.kind is TokenKind.END
            case "update":
                return before != "for"
            case "rows" if following.key == "from" and self._tokens[at + 2].key == "(":
                return not level.relations
            case "rows" | "range" | "groups" if level.window and before == "(":
                return following.kind is TokenKind.SYMBOL
            case "rows" | "range" | "groups" if level.window and before in _BEFORE_FRAME:
                return False
            case _:
                return True

    def _ends_operand(self, at: int) -> bool:
        """Whether an expression or relation can end with the token at `at`; -1 is the beginning."""
        if at < 0:
            return False
        kind, value, _, _ = self._tokens[at]
        if kind is TokenKind.SYMBOL:
            return value in (")", "]")
        if kind is not TokenKind.WORD:
            return True
        return value in _VALUES or (value not in _RESERVED and value not in _OPENS)

    def _names(self, at: int) -> bool:
        kind, value, _, _ = self._tokens[at]
        return kind is TokenKind.QUOTED or (kind is TokenKind.WORD and value not in _RESERVED)

    def _error(self, at: int) -> Exception:
        token = self._tokens[at]
        return syntax_error(self._text, token.start, token.end)
