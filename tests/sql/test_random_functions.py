"""The functions that run in Python, each with random arguments, beside PostgreSQL: no Spark is needed, so it
is thousands of calls in seconds."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from bind_corpus import Answer, Failure, Oracle
from random_expressions import LOOSE
from random_hints import HINTS, NUMBER_PICTURES, TIME_PICTURES
from random_judge import LIMITS, same
from random_values import VALUES, quoted, spelled
from test_bind_corpus import oracle

from tidemill.errors import TidemillError
from tidemill.sql.functions.rowwise import RowFunction, evaluate, row_functions
from tidemill.sql.functions.signature import Fn, every_function, every_operator
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire.text import decode_text, encode_text

__all__ = ["oracle"]

FEW, MANY = 2_500, 200_000
# A grammar of its own, in which its arguments have other places.
_SKIPPED = frozenset({"position"})
# PostgreSQL takes nearly any text with a digit for a zone.
_ZONED = frozenset({"date_add", "date_subtract", "date_trunc", "timezone", "make_timestamptz"})
_LETTERS = "ab1 ,-.éX日\\%_()0:"


def rows() -> list[tuple[Fn, RowFunction]]:
    """The rows of the allow-list that are one Python function each, of types that have values here."""
    known = row_functions()
    found: list[tuple[Fn, RowFunction]] = []
    for row in (*every_function(), *every_operator()):
        types = [a for a in row.args if isinstance(a, SqlType)]
        key = f"{row.name}({','.join(map(str, types))})"
        has_values = all(t in VALUES or t.kind is Kind.NAME for t in types)
        if len(types) == len(row.args) and key in known and has_values and row.name not in _SKIPPED:
            found.append((row, known[key]))
    return found


def calls(seed: int, count: int) -> Iterator[tuple[Fn, RowFunction, list[str]]]:
    """Each in its turn, with arguments as texts."""
    rng = random.Random(seed)
    every = rows()
    for i in range(count):
        row, function = every[i % len(every)]
        yield row, function, [_argument(rng, row, at) for at in range(len(row.args))]


def _argument(rng: random.Random, row: Fn, at: int) -> str:
    hints = HINTS.get((row.name, at), ())
    if row.name == "to_char" and at == 1:
        hints = [quoted(p) for p in (*TIME_PICTURES, *NUMBER_PICTURES)]
    # Not those that are columns.
    constants = [h for h in hints if h[0] in "'-0123456789"]
    if constants and (rng.random() < 0.8 or row.name in _ZONED):
        chosen = rng.choice(constants)
        return chosen[1:-1].replace("''", "'") if chosen[0] == "'" else chosen
    t = row.args[at]
    assert isinstance(t, SqlType)
    if (
        t.kind is Kind.TEXT
        and rng.random() < 0.3
        and row.name not in ("date_add", "date_subtract", "date_trunc")
    ):
        return "".join(rng.choice(_LETTERS) for _ in range(rng.randrange(6)))
    return rng.choice(VALUES[t]) if t in VALUES else "UTF8"


def written(row: Fn, texts: list[str]) -> str:
    literals = [
        f"{quoted(v)}::{spelled(t)}" for v, t in zip(texts, row.args, strict=True) if isinstance(t, SqlType)
    ]
    if row.name == "normalize" and len(literals) == 2:
        return f"normalize({literals[0]}, {texts[1]})"
    if any(row is o for o in every_operator()):
        return (
            f"({literals[0]} {row.name} {literals[1]})"
            if len(literals) == 2
            else f"({row.name} {literals[0]})"
        )
    return f"{row.name}({', '.join(literals)})"


def answer(function: RowFunction, texts: list[str]) -> str | Failure | None:
    columns = [
        decode_text(pa.array([v], pa.string()), t) for v, t in zip(texts, function.types, strict=False)
    ]
    if len(function.types) > len(columns):
        columns.append(pa.array(["UTC"]))
    found = evaluate(function.result, pa.array([function.key]), columns)
    error = found.field("e")[0].as_py()
    if error is not None:
        sqlstate, _, primary = error.partition(":")
        return Failure(sqlstate, primary)
    text = encode_text(found.field("v"), function.result, timezone="UTC")[0].as_py()
    return text if text is None else text.decode()


def differing(oracle: Oracle, seed: int, count: int) -> list[str]:
    found: list[str] = []
    for row, function, texts in calls(seed, count):
        if row.name == "normalize" and len(texts) == 2:
            texts[1] = texts[1] if texts[1].startswith("NF") else "NFC"
        try:
            mine = answer(function, texts)
        except TidemillError:
            # A literal that is none of its type's values here.
            continue
        sql = written(row, texts)
        theirs = oracle.ask(f"SELECT {sql}")
        if not _agree(mine, theirs, loose=row.name in LOOSE):
            shown = theirs if isinstance(theirs, Failure) else theirs.rows[0][0]
            found.append(f"{sql}\n    here {mine!r}\n    PostgreSQL {shown!r}")
    return found


def _agree(mine: str | Failure | None, theirs: Answer | Failure, *, loose: bool) -> bool:
    if isinstance(mine, Failure):
        if mine.sqlstate == "0A000" or mine.text in LIMITS:
            return True
        return isinstance(theirs, Failure) and mine.sqlstate[:2] == theirs.sqlstate[:2]
    return isinstance(theirs, Answer) and same(mine, theirs.rows[0][0], theirs.oids[0], True, loose=loose)


def test_a_few_calls(oracle: Oracle) -> None:
    found = differing(oracle, 1, FEW)
    assert not found, "\n".join(found[:50])


@pytest.mark.chaos
def test_many_calls(oracle: Oracle) -> None:
    seed = int(os.environ.get("TIDEMILL_TEST_SEED", "1"))
    found = differing(oracle, seed, MANY)
    assert not found, f"seed {seed}, {len(found)} differ\n" + "\n".join(found[:50])
