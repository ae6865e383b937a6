"""The bodies of stored items, byte for byte: what an older server wrote must open, and this one must write
the same, because a body is retracted by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.catalog import codec
from tidemill.catalog.access import Access, Grant
from tidemill.catalog.items import (
    KIND_NAMES,
    Comment,
    Connection,
    Database,
    Item,
    Key,
    MaterializedView,
    Reference,
    Role,
    Schema,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    SystemParameter,
    Table,
    View,
)
from tidemill.errors import DataCorrupted, TidemillError
from tidemill.types.model import (
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    Column,
    RelationDesc,
    array,
    list_,
    map_,
    numeric,
    record,
    varchar,
)

# Written by the server of 2026-11-18, which had a function for each kind: a line for each of ITEMS.
BODIES = (Path(__file__).parent / "bodies.jsonl").read_text().splitlines()

PLAIN = RelationDesc((Column("a", INT4),))
WIDE = RelationDesc(
    (
        Column("a", INT8, False),
        Column("ü", varchar(7)),
        Column("n", numeric(10, 2)),
        Column("x", array(NUMERIC)),
        Column("l", list_(INT4)),
        Column("m", map_(array(TEXT))),
        Column("r", record(Column("f", TEXT), Column("g h", array(varchar(3)), False))),
    ),
    (Column("mz_order", INT8, False), Column("mz_key", TEXT)),
)
REFERENCES = (Reference(("s", "t"), "u3", 2), Reference(("t",), "u4"))

ITEMS: list[Item] = [
    Database("u1", "d"),
    Schema("u1", "s", "u9"),
    Schema("u1", "mz_catalog", None),
    Table("u1", "t", "u2", PLAIN, "u1-1", (None,)),
    Table("u1", "T", "u2", WIDE, "u1-1", ("'x'", *[None] * 6), (Key(("a",), True), Key(("a", "ü"))), 5, 2),
    View("u1", "v", "u2", "SELECT 1", PLAIN, ()),
    View("u1", "v", "u2", "SELECT * FROM s.t, t", WIDE, ("u3", "u4"), REFERENCES),
    MaterializedView("u1", "m", "u2", "SELECT 1", PLAIN, "u1-1", 7, ()),
    MaterializedView("u1", "m", "u2", "SELECT '\"'", WIDE, "u1-1", 7, ("u3", "u4"), REFERENCES, 60_000),
    Source("u1", "s", "u2", "kafka", '{"a":1}', "CREATE", PLAIN, "u1-1", "none", PLAIN, "u1-r", 7, 1000),
    Source(
        "u1", "s", "u2", "kafka", "{}", "C", None, None, None, WIDE, "u1-r", 7, 1000, 5, ("u3", "u4"), "mine"
    ),
    SourceTable("u1", "t", "u2", "u3", "public.t", PLAIN, "u1-1", "upsert", 8, True),
    SourceTable("u1", "t", "u2", "u3", "t", WIDE, "u1-1", "none", 8, False, '{"b":2}', "CREATE", ("u4",)),
    SourceProgress("u1", "p", "u2", "u3", PLAIN),
    Sink("u1", "k", "u2", "kafka", '{"topic":"t"}', "{}", "CREATE SINK", "u3", WIDE, 9, True, ("u4", "u5")),
    Sink("u1", "k", "u2", "files", "{}", "{}", "CREATE SINK", "u3", PLAIN, 9, False),
    Subscription(
        "u1",
        "s",
        "u2",
        "SELECT * FROM t",
        "u3",
        WIDE,
        (Reference(("t",), "u3", 2),),
        ("u3",),
        "plain",
        (),
        9,
        True,
    ),
    Subscription("u1", "s", "u2", "SELECT 1", None, PLAIN, (), (), "envelope_upsert", ("a",), 9, False, 5, 6),
    Subscription("u1", "s", "u2", "", None, PLAIN, (), (), "plain", (), 9, True, shares=2, share_key=("a",)),
    Secret("u1", "x", "u2", 12),
    Connection("u1", "c", "u2", "kafka", '{"broker":"b:9092"}'),
    Connection("u1", "c", "u2", "confluent-schema-registry", '{"p":{"secret":"u3"}}', ("u3",)),
    Comment("u1", "u3", None, "of it all"),
    Comment("u1", "u3", "a", "of 'a' – column"),
    Access("u1", "u3", "u4"),
    Access("u1", "u3", "u4", (Grant("public", ("SELECT",)), Grant("u5", ("INSERT", "SELECT")))),
    Role("u1", "r"),
    Role("u1", "r", True, False, False, False, False, "SCRAM-SHA-256$4096:a$b:c", ("u3", "u4")),
    SystemParameter("u1", "max_tables", "5"),
]

# What older servers wrote of items that have learned more since, beside how it is written today.
OLDER: list[tuple[str, Item]] = [
    (
        """{"format":0,"kind":"table","name":"t","schema":"u2","shard":"u1-1","defaults":[null],
        "desc":[{"name":"a","nullable":true,"type":{"kind":"int4"}}],"retain_history_ms":null}""",
        ITEMS[3],
    ),
    ('{"format":1,"kind":"role","name":"r","superuser":false}', Role("u1", "r")),
    (
        """{"depends_on":["u3"],"desc":[],"format":1,"kind":"view","name":"v",
        "references":[{"id":"u3","name":["t"]}],"schema":"u2","sql":"TABLE t"}""",
        View("u1", "v", "u2", "TABLE t", RelationDesc(()), ("u3",), (Reference(("t",), "u3"),)),
    ),
]


@pytest.mark.parametrize(("item", "body"), list(zip(ITEMS, BODIES, strict=True)))
def test_bodies_are_what_they_were(item: Item, body: str) -> None:
    assert codec.encode(item) == body
    assert codec.decode("u1", body) == item


@pytest.mark.parametrize(("body", "item"), OLDER)
def test_older_bodies(body: str, item: Item) -> None:
    assert codec.decode("u1", body) == item


def test_every_kind_has_a_body() -> None:
    assert {type(item) for item in ITEMS} == KIND_NAMES.keys() == set(codec.KINDS.values())


def test_what_is_not_known_is_refused() -> None:
    table = codec.encode(ITEMS[3])
    newer = f'"format":{codec.FORMAT + 1},'
    for body, error in (
        (table.replace('"format":1,', newer), f"format {codec.FORMAT + 1}, this version reads up to"),
        ('{"format":1,"kind":"hologram"}', "does not know: hologram"),
        (table.replace('"kind":"int4"', '"kind":"int4","unit":"m"'), "this version does not know: .*unit"),
    ):
        with pytest.raises(TidemillError, match=error):
            codec.decode("u9", body)
    for garbage in (
        "",
        "[]",
        "{}",
        '{"format":1,"kind":"table"}',
        '{"format":1,"kind":"table","desc":[7]}',
        '{"format":"1","kind":"role"}',
    ):
        with pytest.raises(DataCorrupted, match="catalog item u9 cannot be read"):
            codec.decode("u9", garbage)
