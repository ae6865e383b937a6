"""The single interface to sqlglot's parser: from the tokens of a body to a checked tree.

`query` and the statement parsers call `parse_body` for whole queries, `parse_list` for lists such as
RETURNING, and `parse_scalar` for one expression. The parser is sqlglot's stock PostgreSQL parser, never
subclassed. `clauses` and `sqlglot_tokens` run before it, `tree` after it. Raises `TidemillError` only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import Token as GlotToken
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.parser import clauses
from tidemill.sql.parser.depth import MAX_NESTING, too_complex
from tidemill.sql.parser.key_words import hint_at, mark_names
from tidemill.sql.parser.sqlglot_tokens import lower
from tidemill.sql.parser.tree import accept
from tidemill.sql.tokens import Token, TokenKind, syntax_error

_DIALECT = Postgres()
# sqlglot logs texts that it reads as commands; here such a text raises an error for the client.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
# Nodes that one parse may make, those of attempts it gives up included: a bound on time, should a text be
# found on which sqlglot's backtracking explodes. A parse that is in order makes fewer than three per token.
_NODES_PER_TOKEN = 40
_NODES_AT_LEAST = 2000


def parse_body(text: str, tokens: Sequence[Token], base: int) -> exp.Query | exp.Values:
    """The query that `tokens` (ending with END) spell; `base` is the index of the first among all tokens of
    `text`."""
    try:
        marked = mark_names(text, tokens, query=True)
        clauses.check(text, marked)
        tree = _parse(text, lower(text, marked, base), marked, base)
        if not isinstance(tree, exp.Query | exp.Values):
            raise syntax_error(text, tokens[0].start, tokens[0].end)
        return cast(exp.Query | exp.Values, accept(tree, text, tokens[0].start + 1))
    except SyntaxError_ as error:
        if error.hint is None and error.position is not None:
            error.hint = hint_at(tokens, error.position)
        raise


def parse_list(text: str, tokens: Sequence[Token], base: int) -> list[exp.Expr]:
    """The items of a select list."""
    return _items(text, mark_names(text, tokens, items=True), base)


def parse_scalar(text: str, tokens: Sequence[Token], base: int) -> exp.Expr:
    """One expression, without a label."""
    items = _items(text, mark_names(text, tokens), base)
    if len(items) != 1 or isinstance(items[0], exp.Alias | exp.Star):
        raise syntax_error(text, tokens[0].start, tokens[0].end)
    return items[0]


def _items(text: str, tokens: Sequence[Token], base: int) -> list[exp.Expr]:
    if tokens[0].kind is TokenKind.END:
        raise syntax_error(text, tokens[0].start, tokens[0].end)
    clauses.check(text, tokens)
    lowered = lower(text, tokens, base)
    head = GlotToken(TokenType.SELECT, "SELECT", 1, base, tokens[0].start, tokens[0].start)
    tree = _parse(text, [head, *lowered], tokens, base)
    if not isinstance(tree, exp.Select) or any(v for k, v in tree.args.items() if k != "expressions"):
        raise syntax_error(text, tokens[0].start, tokens[0].end)
    return [cast(exp.Expr, e.pop()) for e in list(accept(tree, text, tokens[0].start + 1).expressions)]


def _parse(text: str, lowered: list[GlotToken], tokens: Sequence[Token], base: int) -> exp.Expr:
    try:
        trees = _run(text, lowered)
    except ParseError as error:
        raise _syntax_error(error, text, lowered, tokens, base) from None
    except RecursionError:
        raise too_complex(tokens[0].start + 1, f"{MAX_NESTING} levels") from None
    except TidemillError:
        raise
    except (SqlglotError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # sqlglot's builders assume valid arguments (date_part(), generate_series with unusual steps, ...). A
        # text that makes one fail is not a statement that we could run.
        raise SyntaxError_("syntax error in the query", position=tokens[0].start + 1) from None
    if len(trees) != 1 or trees[0] is None:
        raise syntax_error(text, tokens[0].start, tokens[0].end)
    return trees[0]


def _run(text: str, lowered: list[GlotToken]) -> list[exp.Expr | None]:
    budget = _NODES_AT_LEAST + _NODES_PER_TOKEN * len(lowered)
    parser = _DIALECT.parser(error_level=ErrorLevel.IMMEDIATE, max_nodes=budget)
    return parser.parse(lowered, text)


def _syntax_error(
    error: ParseError, text: str, lowered: list[GlotToken], tokens: Sequence[Token], base: int
) -> TidemillError:
    details = error.errors[0] if error.errors else {}
    if str(details.get("description", "")).startswith("Maximum number of AST nodes"):
        return too_complex(tokens[0].start + 1, "the parser's bound")
    index = details.get("col")
    if not isinstance(index, int) or not base <= index < base + len(tokens):
        return SyntaxError_("syntax error in the query", position=tokens[0].start + 1)
    at = index - base
    if lowered and index == lowered[-1].col:
        # sqlglot reports the last token both for errors in it and for what is missing after it; one more
        # token distinguishes the two.
        probe = GlotToken(TokenType.BACKSLASH, "", 1, base + len(tokens) - 1)
        try:
            _run(text, [*lowered, probe])
        except ParseError as again:
            if again.errors and again.errors[0].get("col") == probe.col:
                at = len(tokens) - 1
        except (
            RecursionError,
            SqlglotError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ):
            pass
    return syntax_error(text, tokens[at].start, tokens[at].end)
