"""What `sql.local` answers without Spark is PostgreSQL's answer, of PostgreSQL's type, under its name: the
binder's corpus again, as far as it compiles here. What does not compile is the binder's, and tested there."""

from __future__ import annotations

from typing import Any

import pytest
from bind_corpus import SESSION, Answer, Failure, Oracle, answer_of, expressions, lines
from test_bind_corpus import compare, differences, oracle

from tidemill.errors import TidemillError, UndefinedObject
from tidemill.sql.ast import Query
from tidemill.sql.bind import Relation
from tidemill.sql.local import NotLocal, Reg, compile_query
from tidemill.sql.local.builtins import builtins
from tidemill.sql.local.model import LocalTooLarge
from tidemill.sql.parse import parse
from tidemill.types.names import physical_names

__all__ = ["oracle"]

TABLES = ("v", "p", "q")
# How much of the corpus is answered here today. Fewer would mean that clients' queries went to Spark.
LEAST = {"queries.txt": 100, "expressions": 240, "errors.txt": 30}


class NoNames:
    """The corpus names nothing by OID."""

    def reg_input(self, kind: Reg, text: str) -> int:
        raise UndefinedObject(f"{kind.value} {text}")

    def reg_output(self, kind: Reg, oid: int) -> str:
        raise UndefinedObject(f"{kind.value} {oid}")


class Subject:
    """The corpus's tables as rows at hand."""

    def __init__(self, oracle: Oracle) -> None:
        self.relations: dict[str, Relation] = {}
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        for name in TABLES:
            desc, table = oracle.relation(name)
            self.relations[name] = Relation(name, ("public", name), desc, tuple(physical_names(desc)))
            self.rows[name] = list(zip(*(c.to_pylist() for c in table.columns), strict=True))

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        found = self.relations.get(parts[-1])
        if found is None:
            raise UndefinedObject(f'relation "{parts[-1]}" does not exist', position=position)
        return found

    def ask(self, sql: str) -> Answer | Failure:
        (parsed,) = parse(sql)
        assert isinstance(parsed.statement, Query)
        try:
            found = compile_query(
                parsed.statement.tree, self, SESSION, builtins(), dict.fromkeys(TABLES, 1), ()
            )
            rows = found.run(NoNames(), self.rows.__getitem__, (), lambda: None)
            return answer_of(found.columns, rows, SESSION.time_zone)
        except LocalTooLarge as e:
            # The engine asks Spark then.
            raise NotLocal from e
        except TidemillError as e:
            return Failure(e.sqlstate, e.primary)


@pytest.fixture(scope="module")
def subject(oracle: Oracle) -> Subject:
    return Subject(oracle)


def asked(file: str, line: str) -> str:
    if file == "expressions":
        return f"SELECT {line} FROM v ORDER BY v.id"
    if file == "errors.txt":
        line = line.split(" => ")[0]
        return line if line.split(" ")[0] in ("SELECT", "WITH", "VALUES") else f"SELECT {line} FROM v"
    return line


@pytest.mark.parametrize("file", LEAST)
def test_answers_are_postgresqls(file: str, oracle: Oracle, subject: Subject) -> None:
    same = 0
    problems: list[str] = []
    for line in expressions() if file == "expressions" else lines(file):
        if line in differences():
            continue
        sql = asked(file, line)
        try:
            mine = subject.ask(sql)
        except (NotLocal, TidemillError):
            continue
        theirs = oracle.ask(sql)
        if isinstance(mine, Failure) and isinstance(theirs, Failure):
            problem = None if mine.sqlstate == theirs.sqlstate else f"{mine} is not {theirs}"
        else:
            problem = compare(mine, theirs, ordered=file == "expressions")
        if problem is None:
            same += 1
        else:
            problems.append(f"{line}: {problem}")
    assert not problems, "\n".join(problems)
    assert same >= LEAST[file]
