"""Every function, operator and cast of the allow-list occurs in the corpus, and the documentation shows the
differences that the corpus knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from bind_corpus import (
    DOCS,
    SESSION,
    Answer,
    Oracle,
    documented,
    expressions,
    groups,
    lines,
    same_text,
)
from test_bind_corpus import TABLES, differences, oracle

from tidemill.errors import TidemillError, UndefinedObject
from tidemill.sql.ast import Query
from tidemill.sql.bind import Relation, bind_query, coerce
from tidemill.sql.bind.expr import Binder
from tidemill.sql.bind.forms import session
from tidemill.sql.functions import lattice
from tidemill.sql.functions.resolve import ResolvedFunction
from tidemill.sql.functions.signature import (
    Declared,
    Fn,
    declared_name,
    every_function,
    every_operator,
)
from tidemill.sql.lower import expressions as lowering
from tidemill.sql.parse import parse
from tidemill.types.model import Kind, SqlType
from tidemill.types.names import physical_names

__all__ = ["oracle"]

# What PostgreSQL does not have cannot be asked there; it has tests of its own.
OURS = {Kind.UINT2, Kind.UINT4, Kind.UINT8, Kind.MZ_TIMESTAMP, Kind.LIST, Kind.MAP}
# No query's value has these: they live in catalogs, or until a literal takes its type.
INNER = {Kind.QCHAR, Kind.REGPROC, Kind.REGTYPE, Kind.VOID, Kind.UNKNOWN, Kind.RECORD, Kind.ARRAY}
# Of the whole, at most this share may be known to differ.
MOST_DIFFERENT = 0.03


class Names:
    """The corpus's tables."""

    def __init__(self, oracle: Oracle) -> None:
        self.relations = {name: _relation(oracle, name) for name in TABLES}

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        found = self.relations.get(parts[-1])
        if found is None:
            raise UndefinedObject(f'relation "{parts[-1]}" does not exist', sqlstate="42P01")
        return found


def _relation(oracle: Oracle, name: str) -> Relation:
    desc, _ = oracle.relation(name)
    return Relation(name, ("public", name), desc, tuple(physical_names(desc)))


class Used:
    """What binding a statement used."""

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self.casts: set[tuple[Kind, Kind]] = set()


@pytest.fixture(scope="module")
def used(oracle: Oracle) -> Iterator[Used]:
    """All of the corpus, bound."""
    found = Used()
    with pytest.MonkeyPatch.context() as patch:
        _record(patch, found)
        names = Names(oracle)
        asked = [f"SELECT {text} FROM v" for text in [*expressions(), *lines("zones.txt")]]
        for sql in [*asked, *lines("queries.txt"), *lines("errors.txt")]:
            try:
                (parsed,) = parse(sql)
                assert isinstance(parsed.statement, Query)
                bind_query(parsed.statement.tree, names, session=SESSION).sql()
            except TidemillError:
                continue
        yield found


def _record(patch: pytest.MonkeyPatch, found: Used) -> None:
    build, cast_tree, convert = Fn.builder, lowering.cast_tree, coerce.convert
    resolved = Binder.resolved

    def builder(self: Fn, types: Sequence[SqlType]) -> Any:
        found.rows.add(id(self))
        return build(self, types)

    def cast(value: Any, source: SqlType, target: SqlType, **more: Any) -> Any:
        found.casts.add((source.kind, target.kind))
        return cast_tree(value, source, target, **more)

    def converted(array: Any, source: SqlType, target: SqlType, **more: Any) -> Any:
        found.casts.add((source.kind, target.kind))
        return convert(array, source, target, **more)

    def bound(self: Binder, call: ResolvedFunction, args: Any, position: int | None) -> Any:
        found.rows.add(id(call.fn))
        return resolved(self, call, args, position)

    patch.setattr(Fn, "builder", builder)
    patch.setattr(Binder, "resolved", bound)
    patch.setattr(lowering, "cast_tree", cast)
    patch.setattr(coerce, "convert", converted)


def _is_ours(row: Fn) -> bool:
    kinds = {d.kind for d in (*row.args, row.result) if isinstance(d, SqlType)}
    return bool(kinds & OURS) or any(declared_name(d) == "anylist" for d in row.args)


def _shown(row: Fn) -> str:
    return f"{row.name}({', '.join(map(declared_name, row.args))})"


def test_every_function_and_operator_occurs(used: Used) -> None:
    rows = [
        r
        for r in (*every_function(), *every_operator())
        # What asks the session is bound before it is looked up; what is refused gives no answer.
        if not r.aggregate and not r.refused and not _is_ours(r) and r.name not in session.FUNCTIONS
    ]
    missing = sorted(_shown(r) for r in rows if id(r) not in used.rows)
    assert not missing, f"{len(missing)} of {len(rows)} occur nowhere in the corpus:\n" + "\n".join(missing)


def test_every_cast_occurs(used: Used) -> None:
    # Those of jsonb are asked with its functions.
    kinds = [k for k in Kind if k not in OURS | INNER | {Kind.JSONB}]
    allowed = [
        (a, b)
        for a in kinds
        for b in kinds
        if a is not b
        and lattice.cast_context(SqlType(a), SqlType(b)) is not None
        # To and from the other strings is to and from text.
        and not ({a, b} & {Kind.VARCHAR, Kind.CHAR, Kind.NAME} and not {a, b} <= lattice.STRINGS)
    ]
    missing = sorted(f"{a.value} to {b.value}" for a, b in allowed if (a, b) not in used.casts)
    assert len(allowed) > 60
    assert not missing, f"{len(missing)} of {len(allowed)} occur nowhere in the corpus:\n" + "\n".join(
        missing
    )


def test_the_corpus_is_large_and_little_of_it_differs() -> None:
    everything = [*expressions(), *lines("queries.txt"), *lines("errors.txt")]
    assert len(expressions()) >= 1500
    assert len(differences()) <= MOST_DIFFERENT * len(everything)
    assert set(differences()) <= set(everything), "a difference of no line"


def test_no_group_repeats_itself() -> None:
    for name, group in groups().items():
        assert len(group) == len(set(group)), name


def test_the_documentation_shows_the_differences() -> None:
    page = (DOCS / "sql" / "differences.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(.*)` \| (.*) \|$", page.split("## In the corpus")[1], re.MULTILINE)
    assert {text.replace("\\|", "|"): why for text, why in shown} == differences()


def test_the_pages_of_functions_show_postgresqls_answers(oracle: Oracle) -> None:
    """That they are ours too is asked with the rest of the corpus."""
    for example, shown in documented():
        answer = oracle.ask(f"SELECT {example}")
        assert isinstance(answer, Answer), example
        assert same_text(shown, answer.rows[0][0], answer.oids[0]), (example, shown, answer.rows)


def test_every_function_is_on_a_page() -> None:
    """Those of arrays and jsonb are on pages of their own."""
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "functions").glob("*.md"))
    shown = set(re.findall(r"([a-z_0-9]+)\(", pages))
    rows = [r for r in every_function() if not r.aggregate and not any(map(_is_nested, r.args))]
    missing = sorted({r.name for r in rows} - shown)
    assert not missing, missing


def _is_nested(declared: Declared) -> bool:
    return not isinstance(declared, SqlType) or declared.kind in (Kind.ARRAY, Kind.JSONB)
