"""What CREATE SOURCE ... FROM KAFKA keeps: definitions of the contract's form, in which connections stand
by their ids and everything else is resolved."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_context import STARTED, World

from support.debezium import SchemaRegistry
from tidemill.catalog.connections import KAFKA, SCHEMA_REGISTRY, resolved
from tidemill.engine.ddl.upstreams.connection_check import check_reachable
from tidemill.errors import TidemillError
from tidemill.sources.definition import open_source
from tidemill.types.model import Column

VALUE = {
    "type": "record",
    "name": "v",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}],
}
KEY = {"type": "record", "name": "k", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def world() -> World:
    world = World()
    world.connection("k", KAFKA, brokers=["h:1"])
    return world


def unseen(clauses: str, topic: str = "t", options: str = "") -> str:
    head = f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}'{options})"
    return f"{head} {clauses} WITH (VALIDATE = false)"


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def test_a_whole_definition(world: World) -> None:
    sql = unseen(
        "KEY FORMAT TEXT VALUE FORMAT CSV WITH HEADER (a, b) DELIMITED BY ';' "
        "INCLUDE KEY AS k, TIMESTAMP, HEADER 'h' AS h BYTES "
        "ENVELOPE UPSERT (ORDER BY (TIMESTAMP, OFFSET), VALUE DECODING ERRORS = (INLINE))",
        options=", START OFFSET (3, 0, 5), GROUP ID PREFIX 'p', TOPIC METADATA REFRESH INTERVAL '1 min'",
    )
    described = world.describe(sql)
    assert described.definition == {
        "kind": "kafka",
        "connection": "u3",
        "topic": "t",
        "topic_id": None,
        "partitions": {"0": 3, "1": 0, "2": 5},
        "group_id_prefix": "p",
        "refresh_ms": 60_000,
        "started": STARTED,
        "outputs": [
            {
                "name": "t",
                "key": {"format": "text"},
                "value": {"format": "csv", "columns": ["a", "b"], "delimiter": ";"},
                "include": [
                    {"what": "key", "as": "k"},
                    {"what": "timestamp", "as": None},
                    {"what": "header", "as": "h", "header": "h", "bytes": True},
                ],
                "envelope": {"kind": "upsert", "order_by": ["timestamp", "offset"], "inline_errors": "error"},
            }
        ],
    }
    assert described.connections == ("u3",) and described.envelope == "upsert" and described.type == "kafka"
    (output,) = described.outputs
    assert names(output.desc.columns) == ["k", "error", "a", "b", "timestamp", "h"]
    assert names(output.desc.hidden) == ["mz_key", "mz_order1", "mz_order2"]
    # It is kept as JSON, and what is kept opens the same source.
    kept = json.loads(json.dumps(described.definition))
    source = open_source(resolved(world.state, kept, world))
    try:
        assert source.outputs == described.outputs and source.gauge == described.gauge
    finally:
        source.close()


@pytest.mark.parametrize(
    ("clauses", "columns"),
    [
        ("FORMAT TEXT", ["text"]),
        ("FORMAT JSON INCLUDE PARTITION AS p", ["data", "p"]),
        ("FORMAT BYTES", ["data"]),
        ("FORMAT CSV WITH 2 COLUMNS", ["column1", "column2"]),
        (r"FORMAT REGEX '(?P<when>\d+) (.*)'", ["when", "column2"]),
        (f"FORMAT AVRO USING SCHEMA '{json.dumps(VALUE)}'", ["a", "b"]),
        (
            """KEY FORMAT BYTES VALUE FORMAT AVRO USING SCHEMA '"long"' (CONFLUENT WIRE FORMAT = false)""",
            ["data"],
        ),
        ("KEY FORMAT TEXT VALUE FORMAT TEXT INCLUDE KEY", ["key", "text"]),
        ("KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT", ["key", "text"]),
    ],
)
def test_columns(world: World, clauses: str, columns: list[str]) -> None:
    (output,) = world.describe(unseen(clauses)).outputs
    assert names(output.desc.columns) == columns


@pytest.mark.parametrize(
    "clauses",
    [
        "FORMAT AVRO",
        "FORMAT AVRO INCLUDE OFFSET",
        "KEY FORMAT AVRO VALUE FORMAT TEXT",
        "FORMAT AVRO ENVELOPE NONE",
    ],
)
def test_avro_needs_a_schema(world: World, clauses: str) -> None:
    sql = unseen(clauses)
    with pytest.raises(TidemillError, match="FORMAT AVRO needs USING") as refused:
        world.describe(sql)
    assert refused.value.position == sql.index("AVRO") + 1


def test_a_source_without_format_has_no_output(world: World) -> None:
    described = world.describe(unseen(""))
    assert described.outputs == () and described.own is None and described.envelope is None
    assert described.definition["outputs"] == [] and described.definition["partitions"] == {}


def test_order_by_can_be_turned_off(world: World) -> None:
    world.order_by = False
    sql = unseen("KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT (ORDER BY (OFFSET))")
    with pytest.raises(TidemillError) as refused:
        world.describe(sql)
    assert "enable_upsert_order_by" in (refused.value.hint or "")
    assert refused.value.position == sql.index("UPSERT") + 1
    world.describe(unseen("KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT"))


def test_changes_of_debezium(world: World) -> None:
    clauses = "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM"
    described = world.describe(unseen(clauses))
    assert described.envelope == "debezium"
    assert described.definition["outputs"][0]["envelope"] == {"kind": "debezium"}
    (output,) = described.outputs
    assert names(output.desc.columns) == ["key", "data"] and names(output.desc.hidden) == ["mz_key"]
    assert output.changes and output.key == ("key", "mz_key") and output.place == 'topic "t"'
    source = open_source(resolved(world.state, described.definition, world))
    assert source.outputs == described.outputs
    source.close()


@pytest.mark.parametrize(
    ("clauses", "primary"),
    [
        ("FORMAT JSON", "ENVELOPE DEBEZIUM requires that KEY FORMAT be specified"),
        (
            "KEY FORMAT JSON VALUE FORMAT JSON INCLUDE KEY",
            "Cannot use INCLUDE KEY with ENVELOPE DEBEZIUM: Debezium values include all keys.",
        ),
        (
            "KEY FORMAT JSON VALUE FORMAT JSON INCLUDE TIMESTAMP",
            "Cannot use INCLUDE TIMESTAMP with ENVELOPE DEBEZIUM",
        ),
        ("KEY FORMAT TEXT VALUE FORMAT TEXT", "ENVELOPE DEBEZIUM requires that VALUE FORMAT is set to AVRO"),
        (
            "KEY FORMAT TEXT VALUE FORMAT JSON",
            "ENVELOPE DEBEZIUM requires that KEY FORMAT and VALUE FORMAT are the same",
        ),
    ],
)
def test_clauses_that_do_not_go_with_changes_of_debezium(world: World, clauses: str, primary: str) -> None:
    sql = unseen(f"{clauses} ENVELOPE DEBEZIUM")
    with pytest.raises(TidemillError) as refused:
        world.describe(sql)
    assert refused.value.primary == primary and refused.value.sqlstate == "42601"
    assert refused.value.hint and sql[refused.value.position or 0 :]


def test_changes_of_debezium_have_no_dead_letters(world: World) -> None:
    clauses = "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM ON ERROR DEAD LETTER"
    with pytest.raises(TidemillError, match="DEAD LETTER is not possible with ENVELOPE DEBEZIUM"):
        world.describe(unseen(clauses))


@given(st.integers(1601, 10**17))
def test_huge_numbers_are_refused_before_anything_is_made_of_them(columns: int) -> None:
    world = World()
    world.connection("k", KAFKA, brokers=["h:1"])
    with pytest.raises(TidemillError, match="CSV cannot have"):
        world.describe(unseen(f"FORMAT CSV WITH {columns} COLUMNS"))


# -- schemas of a registry


def fresh() -> str:
    """A topic whose subjects nobody else has in the registry of the test run."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def registered(world: World, registry: SchemaRegistry) -> World:
    world.connection("c", SCHEMA_REGISTRY, url=registry.url)
    return world


def test_the_latest_schema_is_kept(registered: World, registry: SchemaRegistry) -> None:
    topic = fresh()
    registry.register(f"{topic}-value", VALUE)
    registry.register(f"{topic}-key", KEY)
    clauses = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c"
    described = registered.describe(unseen(f"{clauses} ENVELOPE UPSERT", topic))
    (spec,) = described.definition["outputs"]
    assert json.loads(spec["value"]["schema"]) == VALUE and json.loads(spec["key"]["schema"]) == KEY
    assert spec["value"]["registry"] == spec["key"]["registry"] == {"connection": "u4"}
    assert described.connections == ("u3", "u4")
    # Without an envelope that needs it the key is not asked for.
    keyless = fresh()
    registry.register(f"{keyless}-value", VALUE)
    (spec,) = registered.describe(unseen(clauses, keyless)).definition["outputs"]
    assert spec["key"] is None
    with pytest.raises(TidemillError, match=f'no schema for the subject "{keyless}-key"') as missing:
        registered.describe(unseen(f"{clauses} ENVELOPE UPSERT", keyless))
    assert missing.value.sqlstate == "42704" and missing.value.hint and missing.value.position


def test_strategies_and_inline_addresses(registered: World, registry: SchemaRegistry) -> None:
    many = fresh()
    first = registry.register(f"{many}-value", KEY)
    registry.register(
        f"{many}-value", {**KEY, "fields": [*KEY["fields"], {"name": "z", "type": "int", "default": 0}]}
    )
    connection = "AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c"
    address = f"AVRO USING CONFLUENT SCHEMA REGISTRY '{registry.url}'"
    inline = json.dumps(VALUE)
    for form, columns in (
        (connection, ["id", "z"]),
        (f"{connection} VALUE STRATEGY LATEST", ["id", "z"]),
        (f"{connection} KEY STRATEGY ID 999999 VALUE STRATEGY ID {first}", ["id"]),
        (f"{connection} VALUE STRATEGY INLINE '{inline}'", ["a", "b"]),
        (address, ["id", "z"]),
    ):
        described = registered.describe(unseen(f"FORMAT {form}", many))
        assert names(described.outputs[0].desc.columns) == columns, form
    assert described.definition["outputs"][0]["value"]["registry"] == {"url": registry.url}
    assert described.connections == ("u3",)
    with pytest.raises(TidemillError, match="has no schema with number 999999"):
        registered.describe(unseen(f"FORMAT {connection} VALUE STRATEGY ID 999999", many))


def test_protobuf(registered: World, registry: SchemaRegistry) -> None:
    proto = fresh()
    registry.register(
        f"{proto}-value", 'syntax = "proto3"; message M { int32 a = 1; string b = 2; }', "PROTOBUF"
    )
    described = registered.describe(
        unseen("FORMAT PROTOBUF USING CONFLUENT SCHEMA REGISTRY CONNECTION c", proto)
    )
    assert names(described.outputs[0].desc.columns) == ["a", "b"]
    with pytest.raises(TidemillError, match="is of type PROTOBUF, not AVRO"):
        registered.describe(unseen("FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c", proto))


def test_a_registry_that_is_there_or_not(registered: World, registry: SchemaRegistry) -> None:
    check_reachable(SCHEMA_REGISTRY, {"url": registry.url})
    with pytest.raises(TidemillError, match="cannot be reached") as away:
        check_reachable(SCHEMA_REGISTRY, {"url": "http://127.0.0.1:1"})
    assert "VALIDATE = false" in (away.value.hint or "")
    for url in (registry.url + "/nowhere", registry.url.removesuffix("/apis/ccompat/v7")):
        with pytest.raises(TidemillError) as elsewhere:
            check_reachable(SCHEMA_REGISTRY, {"url": url})
        assert "may be below a path, as /apis/ccompat/v7" in (elsewhere.value.hint or "")
