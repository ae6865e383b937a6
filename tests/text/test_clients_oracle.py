"""What clients ask (cases/clients) is answered in PostgreSQL's shape: the same queries go to a real
PostgreSQL with the same tables, and the columns have the same names and types. What the rows are is in the
files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.wire import Answers, Wire
from tidemill.dev.postgres import Postgres

from .slt import Block, parse

# psql's queries depend on which PostgreSQL it talks to, and ours is not the one here.
CASES = [
    p for p in sorted((Path(__file__).parent / "cases" / "clients").glob("*.slt")) if "psql" not in p.stem
]

# PostgreSQL's type, and what stands for it here: text as PostgreSQL prints it, or the number.
STAND_INS = {
    ("int2vector", "text"),
    ("oidvector", "text"),
    ("regproc", "oid"),
    ("xid", "oid"),
    ("_aclitem", "_text"),
    ("pg_node_tree", "text"),
    ("anyarray", "text"),
    ("inet", "text"),
    ("bytea", "text"),
    ("regtype", "oid"),
    ("varchar", "text"),
    ("json", "jsonb"),
}
# We answer as PostgreSQL 16 does; the one here is 18, and has some elsewhere.
MOVED = {"attstattarget"}
OF_16 = {"daticulocale", "colliculocale", "attcacheoff", *MOVED}
SINCE_17 = {"dathasloginevt", "datlocale", "colllocale", "relallfrozen", "conenforced", "conperiod", *MOVED}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    # Not below pytest's folder, which each pytest closes for others: PostgreSQL may run as somebody else.
    with tempfile.TemporaryDirectory(prefix="tidemill-postgres-") as folder:
        program = Postgres(Path(folder))
        try:
            program.start()
            yield program
        finally:
            program.kill()


class Side:
    """One of the two servers, with its own values of the variables."""

    def __init__(self, dsn: str, database: str) -> None:
        self._admin = Wire(dsn)
        self._database = database
        made = self._admin.run(f'CREATE DATABASE "{database}"')
        assert made.failure is None, made.failure
        self.wire = Wire(f"{dsn} dbname={database}")
        self._values: dict[str, str] = {}

    def run(self, block: Block) -> Answers:
        text = block.sql
        for name, value in self._values.items():
            text = text.replace(f"${{{name}}}", value)
        found = self.wire.run(text, block.extended)
        if block.kind == "let":
            self._values[block.arguments[0]] = found.answers[-1].rows[0][0] or ""
        return found

    def close(self) -> None:
        self.wire.close()
        self._admin.run(f'DROP DATABASE "{self._database}"{self._cascade}')
        self._admin.close()

    _cascade = ""


class Ours(Side):
    _cascade = " CASCADE"


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_shapes(path: Path, server: ServerProcess, postgres: Postgres) -> None:
    ours = Ours(server.sql_dsn, f"shape_{path.stem}")
    theirs = Side(postgres.dsn, f"shape_{path.stem}")
    try:
        types = {
            row[0]: row[1] or ""
            for row in theirs.wire.run("SELECT oid, typname FROM pg_type").answers[0].rows
        }
        compared = 0
        for block in parse(path.read_text()):
            if not isinstance(block, Block) or block.kind in ("mask", "connection", "sleep"):
                continue
            here, there = ours.run(block), theirs.run(block)
            if block.kind == "statement error":
                continue
            where = f"{path.name}:{block.line}"
            assert there.failure is None, (where, there.failure)
            assert here.failure is None, (where, here.failure)
            if block.kind != "let" and here.answers and here.answers[-1].names is not None:
                problems = differences(here, there, types)
                assert not problems, (where, problems)
                compared += 1
        assert compared > 3
    finally:
        ours.close()
        theirs.close()


def differences(here: Answers, there: Answers, types: dict[str | None, str]) -> list[str]:
    shapes: list[list[tuple[str, str]]] = []
    for answers, extra in ((here, OF_16), (there, SINCE_17)):
        answer = answers.answers[-1]
        named = zip(answer.names or [], answer.oids, strict=True)
        shapes.append([(n, types.get(str(o), str(o))) for n, o in named if n not in extra])
    ours, theirs = shapes
    if [n for n, _ in ours] != [n for n, _ in theirs]:
        return [f"columns {[n for n, _ in ours]}, PostgreSQL has {[n for n, _ in theirs]}"]
    return [
        f"{name} is {mine}, in PostgreSQL {its}"
        for (name, mine), (_, its) in zip(ours, theirs, strict=True)
        if mine != its and (its, mine) not in STAND_INS
    ]
