"""Secrets and connections in the catalog: names, what hangs on what, and what opens a source."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tidemill.catalog import codec
from tidemill.catalog.connection_ops import (
    AlterConnectionOp,
    AlterSecretOp,
    CreateConnectionOp,
    CreateSecretOp,
)
from tidemill.catalog.connections import completed, connection_of, expect_type, hangs_on, opened, resolved
from tidemill.catalog.items import BUILTINS, Connection, Secret, Source, SourceTable
from tidemill.catalog.ops import (
    CreateDatabaseOp,
    CreateTableOp,
    CreateViewOp,
    DropOp,
    Op,
    RenameOp,
    apply_all,
)
from tidemill.catalog.source_ops import CreateSourceOp, CreateSourceTable
from tidemill.catalog.state import CatalogState
from tidemill.errors import (
    DependentObjects,
    DuplicateObject,
    SerializationFailure,
    UndefinedObject,
    WrongObjectType,
)
from tidemill.types.model import INT4, TEXT, UINT8, Column, RelationDesc

SCHEMA = "u2"
ROWS = RelationDesc((Column("key", TEXT), Column("text", TEXT)))
REMAP = RelationDesc((Column("partition", INT4, nullable=False),))
PROGRESS = RelationDesc((*REMAP.columns, Column("offset", UINT8, nullable=False)))

TEXT_OUTPUT = {
    "name": "t",
    "key": None,
    "value": {"format": "text"},
    "include": [],
    "envelope": {"kind": "none"},
}


def avro(connection: str) -> dict[str, Any]:
    return {"format": "avro", "schema": '"int"', "framed": True, "registry": {"connection": connection}}


def started() -> CatalogState:
    state = apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)
    assert state.resolve_schema(["public"], "d").id == SCHEMA
    return state


def changed(state: CatalogState, *ops: Op) -> CatalogState:
    return apply_all(state, ops, time=state.time + 1)


def kafka_options(password: str) -> str:
    options = {"brokers": ["h:1"], "sasl_username": "u", "sasl_password": {"secret": password}}
    return json.dumps(options, sort_keys=True)


def source_op(
    definition: dict[str, Any], *depends_on: str, name: str = "s", tables: bool = False
) -> CreateSourceOp:
    return CreateSourceOp(
        SCHEMA,
        name,
        "kafka",
        json.dumps(definition),
        "",
        None if tables else ROWS,
        None if tables else "none",
        REMAP,
        PROGRESS,
        1000,
        depends_on=depends_on,
    )


class Texts:
    """The texts of secrets by their names and versions."""

    def read(self, secret: Secret) -> str:
        return f"text of {secret.name} {secret.version}"


@pytest.fixture
def state() -> CatalogState:
    """u3 secret p, u4 connection k with p, u5 connection c to a registry with p; u6 source s over k and c."""
    registry = json.dumps({"url": "http://r", "username": "u", "password": {"secret": "u3"}})
    definition = {
        "kind": "kafka",
        "connection": "u4",
        "topic": "t",
        "outputs": [{**TEXT_OUTPUT, "value": avro("u5")}],
    }
    return changed(
        started(),
        CreateSecretOp(SCHEMA, "p"),
        CreateConnectionOp(SCHEMA, "k", "kafka", kafka_options("u3"), ("u3",)),
        CreateConnectionOp(SCHEMA, "c", "confluent-schema-registry", registry, ("u3",)),
        source_op(definition, "u4", "u5"),
    )


def test_what_is_used_cannot_be_dropped(state: CatalogState) -> None:
    with pytest.raises(DependentObjects, match="cannot drop connection k because") as refused:
        changed(state, DropOp("u4"))
    assert refused.value.detail == "source s depends on connection k"
    with pytest.raises(DependentObjects) as refused:
        changed(state, DropOp("u3"))
    assert (refused.value.detail or "").split("\n") == [
        "connection k depends on secret p",
        "connection c depends on secret p",
        "source s depends on connection k",
    ]
    after = changed(state, DropOp("u3", cascade=True))
    assert not after.secrets() and not after.connections() and not after.sources()
    assert set(changed(state, DropOp("u6")).items) >= {"u3", "u4", "u5"}


def test_a_schema_takes_them_along(state: CatalogState) -> None:
    with pytest.raises(DependentObjects):
        changed(state, DropOp(SCHEMA))
    assert not changed(state, DropOp(SCHEMA, cascade=True)).connections()


def test_one_space_of_names(state: CatalogState) -> None:
    for taken, text in (("p", 'secret "p"'), ("k", 'connection "k"'), ("s", 'relation "s"')):
        for op in (
            CreateTableOp(SCHEMA, taken, ROWS),
            CreateSecretOp(SCHEMA, taken),
            CreateConnectionOp(SCHEMA, taken, "kafka", "{}"),
            CreateViewOp(SCHEMA, taken, "SELECT 1", ROWS, replace=True),
        ):
            with pytest.raises(DuplicateObject, match=f"{text} already exists"):
                changed(state, op)
        with pytest.raises(DuplicateObject):
            changed(state, RenameOp("u3", taken))


def test_names_resolve_and_no_relation_is_found_that_is_none(state: CatalogState) -> None:
    assert state.resolve_item(["k"], "d", ["public"]).id == "u4"
    assert state.resolve_item(["d", "public", "p"], "d", []).id == "u3"
    with pytest.raises(WrongObjectType, match='"k" is a connection, not a relation'):
        state.resolve(["k"], "d", ["public"])
    with pytest.raises(UndefinedObject) as missing:
        state.resolve_item(["kk"], "d", ["public"], "connection")
    assert (missing.value.sqlstate, missing.value.primary) == ("42704", 'connection "kk" does not exist')
    assert [r.name for r in state.relations(SCHEMA)] == ["s", "s_progress"]
    assert [i.name for i in state.schema_items(SCHEMA)] == ["p", "k", "c", "s", "s_progress"]
    assert state.full_name(state.items["u4"]) == ("d", "public", "k")
    renamed = changed(state, RenameOp("u4", "l"), RenameOp("u3", "q"))
    assert {c.name for c in renamed.connections()} == {"l", "c"}


def test_a_secret_has_a_version_of_its_text(state: CatalogState) -> None:
    assert state.get("u3", Secret).version == 2
    assert changed(state, AlterSecretOp("u3")).get("u3", Secret).version == 3
    with pytest.raises(UndefinedObject):
        changed(state, AlterSecretOp("u4"))


def test_a_connection_is_altered_as_it_was_read(state: CatalogState) -> None:
    was = state.get("u4", Connection).options
    after = changed(state, AlterConnectionOp("u4", was, '{"brokers":["x:2"]}'))
    assert after.get("u4", Connection).depends_on == ()
    with pytest.raises(SerializationFailure):
        changed(after, AlterConnectionOp("u4", was, "{}"))
    with pytest.raises(UndefinedObject):
        changed(state, AlterConnectionOp("u4", was, "{}", ("u99",)))


def test_what_opens_a_source(state: CatalogState) -> None:
    found = opened(state, state.get("u6", Source), Texts())
    assert found["connection"] == {
        "brokers": ["h:1"],
        "sasl_username": "u",
        "sasl_password": "text of p 2",
        "security_protocol": "SASL_SSL",
    }
    (output,) = found["outputs"]
    assert output["value"]["registry"] == {"url": "http://r", "username": "u", "password": "text of p 2"}
    assert {k: output[k] for k in ("name", "key", "include", "envelope")} == {
        k: TEXT_OUTPUT[k] for k in ("name", "key", "include", "envelope")
    }
    # What is kept has nothing of it.
    assert "text of" not in codec.encode(state.get("u6", Source))


def test_definitions_without_connections_stay_as_they_are() -> None:
    for definition in (
        {"kind": "load generator", "generator": "counter"},
        {"kind": "kafka", "connection": {"brokers": ["h:1"]}, "outputs": [TEXT_OUTPUT]},
        {
            "kind": "kafka",
            "connection": {"brokers": ["h:1"]},
            "outputs": [{**TEXT_OUTPUT, "key": {"format": "avro", "registry": {"url": "http://r"}}}],
        },
    ):
        assert resolved(started(), definition, Texts()) == definition


def test_what_a_source_hangs_on(state: CatalogState) -> None:
    source = state.get("u6", Source)
    assert [i.id for i in hangs_on(state, source)] == ["u3", "u4", "u5"]
    after = changed(state, AlterSecretOp("u3"))
    assert hangs_on(after, source) != hangs_on(state, source)
    assert hangs_on(changed(state, RenameOp("u6", "x")), source) == hangs_on(state, source)
    found = connection_of(state, source)
    assert found is not None and found.name == "k"
    with pytest.raises(WrongObjectType, match="is a kafka connection, not a confluent-schema-registry"):
        expect_type(found, "confluent-schema-registry")


def test_tables_bring_outputs_and_connections(state: CatalogState) -> None:
    state = changed(
        state,
        source_op(
            {"kind": "kafka", "connection": "u4", "topic": "t", "outputs": []}, "u4", name="raw", tables=True
        ),
    )
    (raw,) = [s for s in state.sources() if s.name == "raw"]
    ops = [
        CreateSourceTable(SCHEMA, "a", raw.id, "t", ROWS, "none", TEXT_OUTPUT, "CREATE TABLE a"),
        CreateSourceTable(
            SCHEMA,
            "b",
            raw.id,
            "t",
            ROWS,
            "upsert",
            {**TEXT_OUTPUT, "key": avro("u5")},
            "CREATE TABLE b",
            ("u5",),
        ),
    ]
    state = changed(state, *ops)
    a, b = state.source_tables(raw.id)
    assert (a.output, b.output) == ("t", "t#2")
    assert b.depends_on == (raw.id, "u5") and b.sql == "CREATE TABLE b"
    found = opened(state, raw, Texts())
    assert [o["name"] for o in found["outputs"]] == ["t", "t#2"]
    assert found["outputs"][1]["key"]["registry"]["url"] == "http://r"
    assert [i.id for i in hangs_on(state, raw)] == ["u3", "u4", "u5"]
    with pytest.raises(DependentObjects) as refused:
        changed(state, DropOp("u5"))
    assert "table b depends on connection c" in (refused.value.detail or "")
    for table in (a, b):
        again = codec.decode(table.id, codec.encode(table))
        assert again == table and isinstance(again, SourceTable)
    # The name of one that is gone is free again.
    third = changed(changed(state, DropOp(a.id)), replace(ops[0], name="again"))
    assert [t.output for t in third.source_tables(raw.id)] == ["t#2", "t"]


def test_how_a_connection_is_secured_goes_without_saying() -> None:
    for given, wanted in (
        ({"brokers": []}, "PLAINTEXT"),
        ({"sasl_username": "u"}, "SASL_SSL"),
        ({"ssl_ca": "x"}, "SSL"),
        ({"ssl_ca": "x", "sasl_username": "u"}, "SASL_SSL"),
        ({"ssl_ca": "x", "security_protocol": "SASL_PLAINTEXT"}, "SASL_PLAINTEXT"),
    ):
        assert completed("kafka", given)["security_protocol"] == wanted
    assert completed("confluent-schema-registry", {"ssl_ca": "x"}) == {"ssl_ca": "x"}
