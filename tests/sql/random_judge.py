"""Random expressions asked here and of PostgreSQL, row by row, and how the answers differ.

PostgreSQL is asked for each row by itself where one of them fails. Here many expressions are the columns of
one query, each in the rows in which PostgreSQL has an answer (inside a CASE: what is not taken must not
fail); of the rows in which it fails, some are asked by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bind_corpus import Answer, Failure, Oracle, Subject, same_text
from random_expressions import Made
from random_values import ROWS

from tidemill.errors import TidemillError
from tidemill.types.wire.oids import oid

# Expressions that share one Spark job.
BATCH = 40
# Of each expression, rows in which PostgreSQL fails that are asked here too.
BAD_ROWS = 1
# And that of one expression in so many: each costs a job.
BAD_SHARE = 3
# Up to this length one thing may be expected to be wrong with an expression.
SHORT = 60
# Relative; of what is the platform's, or the order's in which numbers are added.
NEAR = 1e-9
# An error that says these is no answer to a user.
_INNER_WORDS = ("Traceback", "py4j", "org.apache", "java.", "pyarrow", "AssertionError", "Exception")

# numeric holds 38 digits here.
LIMITS = ("value overflows numeric format", "numeric field overflow")
# Constants are read before any row is.
_OF_CONSTANTS = ("not recognized", "invalid regular expression", "invalid input syntax", "LIKE pattern")

_FLOATS = (700, 701)
_NUMERIC = 1700


@dataclass(frozen=True, slots=True)
class Difference:
    """`kind`: value, type, refused (we fail where PostgreSQL answers), lenient (we answer where it fails),
    class (both fail, in another way) or inner (a failure of ours that says nothing to a user). Allowed are
    unsupported (refused by name) and eager (an error that PostgreSQL gives for other rows, or would give if
    it did not fold a NULL first)."""

    kind: str
    text: str
    mine: str
    theirs: str


ALLOWED = frozenset({"unsupported", "eager"})


@dataclass(slots=True)
class Case:
    made: Made
    theirs: list[str | Failure | None]
    oid: int | None

    @property
    def good(self) -> list[int]:
        return [k + 1 for k, v in enumerate(self.theirs) if not isinstance(v, Failure)]

    @property
    def bad(self) -> list[int]:
        return [k + 1 for k, v in enumerate(self.theirs) if isinstance(v, Failure)]


def asked_of_postgres(oracle: Oracle, made: Made) -> Case:
    """The expression in each row of w."""
    whole = oracle.ask(f"SELECT {made.text} FROM w ORDER BY w.id")
    if isinstance(whole, Answer):
        return Case(made, [row[0] for row in whole.rows], whole.oids[0])
    found: list[str | Failure | None] = []
    oid = None
    for k in range(1, ROWS + 1):
        one = oracle.ask(f"SELECT {made.text} FROM w WHERE id = {k}")
        if isinstance(one, Answer):
            oid = one.oids[0]
            found.append(one.rows[0][0])
        else:
            found.append(one)
    return Case(made, found, oid)


def judge(subject: Subject, cases: Sequence[Case]) -> Iterator[Difference]:
    """What differs."""
    bound: list[Case] = []
    for case in cases:
        text = case.made.text
        try:
            query = subject.bind(f"SELECT {text} FROM w")
        except TidemillError as error:
            yield from _failed(case, Failure(error.sqlstate, error.primary), case.good)
            continue
        except Exception as error:
            yield Difference("inner", text, repr(error), shown(case.theirs))
            continue
        mine = oid(query.columns[0].type)
        if case.oid is not None and mine != case.oid:
            yield Difference("type", text, str(mine), str(case.oid))
        else:
            bound.append(case)
    some = [c for c in bound if c.good]
    for at in range(0, len(some), BATCH):
        yield from _together(subject, some[at : at + BATCH])
    for case in bound:
        for k in case.bad[:BAD_ROWS] if len(case.made.text) % BAD_SHARE == 0 else ():
            theirs = case.theirs[k - 1]
            assert isinstance(theirs, Failure)
            mine = subject.ask(f"SELECT {case.made.text} FROM w WHERE id = {k}")
            if isinstance(mine, Answer):
                if mine.rows[0][0] is None and theirs.sqlstate[:2] != "42":
                    # What is not needed for a NULL is not evaluated here.
                    continue
                yield Difference("lenient", f"{case.made.text} -- id = {k}", str(mine.rows), str(theirs))
            else:
                yield from _failed(case, mine, [])


def _together(subject: Subject, batch: Sequence[Case]) -> Iterator[Difference]:
    columns = ", ".join(f"{_guarded(c)} AS x{i}" for i, c in enumerate(batch))
    try:
        whole = subject.ask(f"SELECT {columns} FROM w ORDER BY id")
    except Exception as error:
        whole = Failure("XX000", repr(error))
    if isinstance(whole, Failure):
        if len(batch) == 1:
            yield from _failed(batch[0], whole, batch[0].good)
            return
        half = len(batch) // 2
        yield from _together(subject, batch[:half])
        yield from _together(subject, batch[half:])
        return
    for i, case in enumerate(batch):
        for k in case.good:
            mine, theirs = whole.rows[k - 1][i], case.theirs[k - 1]
            assert not isinstance(theirs, Failure)
            if not same(mine, theirs, whole.oids[i], whole.values[i], loose=case.made.loose):
                yield Difference("value", f"{case.made.text} -- id = {k}", str(mine), str(theirs))
                break


def _guarded(case: Case) -> str:
    """Only in the rows in which PostgreSQL has an answer."""
    if not case.bad:
        return f"({case.made.text})"
    ids = ", ".join(map(str, case.good))
    return f"CASE WHEN id IN ({ids}) THEN ({case.made.text}) END"


def _failed(case: Case, mine: Failure, good: Sequence[int]) -> Iterator[Difference]:
    text = case.made.text
    if mine.sqlstate.startswith("XX") or any(w in mine.text for w in _INNER_WORDS):
        yield Difference("inner", text, shown([mine]), shown(case.theirs))
    elif good:
        if mine.sqlstate == "0A000" or mine.text in LIMITS:
            yield Difference("unsupported", text, shown([mine]), shown(case.theirs))
        elif mine not in case.theirs and any(case.theirs) and not any(w in mine.text for w in _OF_CONSTANTS):
            # An error that is some row's may come before the others are asked.
            yield Difference("refused", text, shown([mine]), shown(case.theirs))
        else:
            yield Difference("eager", text, shown([mine]), shown(case.theirs))
    else:
        classes = {v.sqlstate[:2] for v in case.theirs if isinstance(v, Failure)}
        # What is wrong with names and with literals is found in another order; so may be, of several
        # things that are wrong, each of the others.
        if (
            len(text) < SHORT
            and mine.sqlstate[:2] != "42"
            and not {mine.sqlstate[:2], "42"} & classes
            and mine.sqlstate != "0A000"
        ):
            yield Difference("class", text, shown([mine]), shown(case.theirs))


def same(mine: str | None, theirs: str | None, oid: int, value: bool, *, loose: bool) -> bool:
    if same_text(mine, theirs, oid, value=value or (loose and oid == _NUMERIC)):
        return True
    if not loose or mine is None or theirs is None or oid not in (*_FLOATS, _NUMERIC):
        return False
    a, b = float(mine), float(theirs)
    return math.isclose(a, b, rel_tol=NEAR, abs_tol=1e-17) or (math.isnan(a) and math.isnan(b))


def shown(values: Sequence[str | Failure | None]) -> str:
    texts = {f"ERROR {v.sqlstate} {v.text}" if isinstance(v, Failure) else str(v) for v in values}
    return " / ".join(sorted(texts))[:300]


def judge_aggregates(
    subject: Subject, calls: Sequence[tuple[Made, Answer | Failure]], *, over: bool
) -> Iterator[Difference]:
    """Calls of aggregates, each with PostgreSQL's answer; `over` windows, with one in every row."""
    columns = ", ".join(f"{made.text} AS x{i}" for i, (made, _) in enumerate(calls))
    try:
        whole = subject.ask(f"SELECT {columns} FROM w{' ORDER BY id' if over else ''}")
    except Exception as error:
        whole = Failure("XX000", repr(error))
    if isinstance(whole, Failure):
        if len(calls) > 1:
            half = len(calls) // 2
            yield from judge_aggregates(subject, calls[:half], over=over)
            yield from judge_aggregates(subject, calls[half:], over=over)
            return
        made, theirs = calls[0]
        case = Case(made, [theirs if isinstance(theirs, Failure) else "an answer"], None)
        yield from _failed(case, whole, [] if isinstance(theirs, Failure) else [1])
        return
    for i, (made, theirs) in enumerate(calls):
        mine = [row[i] for row in whole.rows]
        if isinstance(theirs, Failure):
            yield Difference("lenient", made.text, str(mine), str(theirs))
        elif whole.oids[i] != theirs.oids[0]:
            yield Difference("type", made.text, str(whole.oids[i]), str(theirs.oids[0]))
        else:
            for a, (b,) in zip(mine, theirs.rows, strict=True):
                if not same(a, b, whole.oids[i], whole.values[i], loose=made.loose):
                    yield Difference("value", made.text, str(a), str(b))
                    break
