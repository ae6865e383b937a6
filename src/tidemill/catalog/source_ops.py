"""Catalog operations that create and alter sources; applied by `ops`.

One change creates a source with its progress relation and its subsources, and dropping the source drops them.
Names that the statement omits are chosen here, against the state that the change applies to.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from tidemill.catalog.columns import check_columns
from tidemill.catalog.items import Connection, Item, ItemId, Source, SourceProgress, SourceTable
from tidemill.catalog.names import MAX_IDENTIFIER_BYTES, check_identifier
from tidemill.catalog.state import CatalogState
from tidemill.errors import DuplicateObject, TidemillError, WrongObjectType
from tidemill.types.model import RelationDesc

# Default suffix of a relation of dead letters, after the name of its source or table.
DEAD_LETTERS_SUFFIX = "_dead_letters"
# In the definition of the source of a transaction topic: the ids of transactions that nothing waits for.
GIVEN_UP = "given_up"
MAX_GIVEN_UP = 1000
# Fields that are learned again, as the upstream changes (`sources.postgres.table_marks`).
LEARNED_AGAIN = frozenset({"marks"})


@dataclass(frozen=True, slots=True)
class NewSubsource:
    """A subsource of a source in the making. With `definition` it has its own output, which is added to those
    of the source; `sql` is the statement that would make it as a table."""

    name: str
    output: str
    desc: RelationDesc
    envelope: str
    definition: Mapping[str, Any] | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class NewDeadLetters:
    """The relation of dead letters of a source or table in the making; without a name one is made up. For a
    table `definition` is the output that it adds to the source's."""

    output: str
    desc: RelationDesc
    name: str | None = None
    definition: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CreateSourceOp:
    """Either `desc` and `envelope` are given, or the source feeds tables. `progress` is the name of its
    progress relation; None makes one up."""

    schema: ItemId
    name: str
    type: str
    definition: str
    sql: str
    desc: RelationDesc | None
    envelope: str | None
    remap_desc: RelationDesc
    progress_desc: RelationDesc
    interval_ms: int
    progress: str | None = None
    subsources: tuple[NewSubsource, ...] = ()
    retain_history_ms: int | None = None
    # The connections that the definition names.
    depends_on: tuple[ItemId, ...] = ()
    timeline: str | None = None
    dead_letters: NewDeadLetters | None = None
    # The source of the transaction topic that the definition names.
    transactions: ItemId | None = None


@dataclass(frozen=True, slots=True)
class CreateSourceTable:
    """CREATE TABLE ... FROM SOURCE. With `definition` the table has its own output, which is added to those
    of the source; several tables may use one `output` of the upstream."""

    schema: ItemId
    name: str
    source: ItemId
    output: str
    desc: RelationDesc
    envelope: str
    definition: Mapping[str, Any] | None = None
    sql: str | None = None
    connections: tuple[ItemId, ...] = ()
    dead_letters: NewDeadLetters | None = None


@dataclass(frozen=True, slots=True)
class AddSubsource:
    """ALTER SOURCE ... ADD SUBSOURCE, of one with its own output."""

    source: ItemId
    subsource: NewSubsource


@dataclass(frozen=True, slots=True)
class SetSourceHistory:
    """RESET is None."""

    source: ItemId
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class SetSourceInterval:
    source: ItemId
    milliseconds: int


@dataclass(frozen=True, slots=True)
class GiveUpTransactionOp:
    """Of the source of a transaction topic: the transaction is not waited for."""

    source: ItemId
    transaction: str


# Of ALTER SOURCE.
AlterSourceOp: TypeAlias = SetSourceHistory | SetSourceInterval | GiveUpTransactionOp


@dataclass(frozen=True, slots=True)
class LearnSource:
    """Adds fields that the definition lacks, as the reader of the upstream found them. The first values found
    are binding for the source from then on, but for those of `LEARNED_AGAIN`."""

    source: ItemId
    learned: Mapping[str, Any]


class SourceDraft(Protocol):
    """What `ops` gives: the next state in the making."""

    @property
    def state(self) -> CatalogState: ...

    @property
    def time(self) -> int: ...

    @property
    def items(self) -> dict[ItemId, Item]: ...

    def new_id(self) -> ItemId: ...

    def put(self, item: Item) -> None: ...

    def check_name(self, schema: ItemId, name: str) -> None: ...


def create_source(draft: SourceDraft, op: CreateSourceOp) -> None:
    taken: set[str] = set()
    letters = () if op.dead_letters is None or op.dead_letters.name is None else (op.dead_letters.name,)
    progress = () if op.progress is None else (op.progress,)
    for name in (op.name, *(s.name for s in op.subsources), *letters, *progress):
        draft.check_name(op.schema, name)
        if name in taken:
            raise DuplicateObject(f'relation "{name}" already exists', sqlstate="42P07")
        taken.add(name)
    for desc in (op.desc, op.progress_desc, *(s.desc for s in op.subsources)):
        if desc is not None:
            check_columns(desc)
    source_id = draft.new_id()
    shard = f"{source_id}-{draft.time}"
    depends_on = _connections(draft.state, op.depends_on)
    if op.transactions is not None:
        depends_on = (*depends_on, _transaction_source(draft, op.transactions))
    draft.put(
        Source(
            source_id,
            op.name,
            op.schema,
            op.type,
            op.definition,
            op.sql,
            op.desc,
            None if op.desc is None else shard,
            op.envelope,
            op.remap_desc,
            f"{shard}-remap",
            draft.time,
            op.interval_ms,
            op.retain_history_ms,
            depends_on,
            op.timeline,
        )
    )
    named = op.progress or _free_name(draft.state, op.schema, op.name, "_progress", taken)
    taken.add(named)
    draft.put(SourceProgress(draft.new_id(), named, op.schema, source_id, op.progress_desc))
    for new in op.subsources:
        _put_table(draft, op.schema, source_id, new, subsource=True)
    if op.dead_letters is not None:
        made = op.dead_letters
        name = made.name or _free_name(draft.state, op.schema, op.name, DEAD_LETTERS_SUFFIX, taken)
        new = NewSubsource(name, made.output, made.desc, "none")
        table = _put_table(draft, op.schema, source_id, new, subsource=True)
        draft.put(replace(table, dead_letters_of=source_id))


def _connections(state: CatalogState, found: tuple[ItemId, ...]) -> tuple[ItemId, ...]:
    """They are still there."""
    return tuple(state.get(i, Connection).id for i in found)


def _transaction_source(draft: SourceDraft, source_id: ItemId) -> ItemId:
    """It is still there. With the first source that names it, it gets a shard for the cuts."""
    source = draft.state.get(source_id, Source)
    if source.cuts_shard is None:
        draft.put(replace(source, cuts_shard=f"{source.remap_shard}-cuts-{draft.time}"))
    return source.id


def create_source_table(draft: SourceDraft, op: CreateSourceTable) -> None:
    source = draft.state.get(op.source, Source)
    draft.check_name(op.schema, op.name)
    check_columns(op.desc)
    others = {other.output: other for other in draft.state.source_tables(source.id)}
    if op.definition is not None:
        output = _free(op.output, others)
        new = NewSubsource(op.name, output, op.desc, op.envelope, op.definition, op.sql)
        table = _put_table(draft, op.schema, source.id, new, subsource=False)
        table = replace(table, connections=_connections(draft.state, op.connections))
        draft.put(table)
        if op.dead_letters is not None:
            _put_dead_letters(draft, table, op.dead_letters, {output, *others})
        return
    if op.output in others:
        raise DuplicateObject(
            f'"{op.output}" of source "{source.name}" already has a table',
            detail=f"It is {draft.state.describe(others[op.output])}.",
        )
    new = NewSubsource(op.name, op.output, op.desc, op.envelope)
    _put_table(draft, op.schema, source.id, new, subsource=False)


def add_subsource(draft: SourceDraft, op: AddSubsource) -> None:
    source = draft.state.get(op.source, Source)
    draft.check_name(source.schema, op.subsource.name)
    check_columns(op.subsource.desc)
    others = {other.output for other in draft.state.source_tables(source.id)}
    new = replace(op.subsource, output=_free(op.subsource.output, others))
    _put_table(draft, source.schema, source.id, new, subsource=True)


def _put_dead_letters(
    draft: SourceDraft, table: SourceTable, made: NewDeadLetters, outputs: Container[str]
) -> None:
    """`outputs` are those that the source has, with the table's."""
    if made.name == table.name:
        raise DuplicateObject(f'relation "{made.name}" already exists', sqlstate="42P07")
    if made.name is not None:
        draft.check_name(table.schema, made.name)
    name = made.name or _free_name(draft.state, table.schema, table.name, DEAD_LETTERS_SUFFIX, {table.name})
    output = _free(made.output, outputs)
    new = NewSubsource(name, output, made.desc, "none")
    letters = _put_table(draft, table.schema, table.source, new, subsource=True)
    definition = None if made.definition is None else _output_named(made.definition, output)
    draft.put(
        replace(letters, definition=definition, connections=table.connections, dead_letters_of=table.id)
    )


def _output_named(definition: Mapping[str, Any], name: str) -> str:
    return json.dumps({**definition, "name": name}, sort_keys=True, separators=(",", ":"))


def _free(output: str, taken: Container[str]) -> str:
    """The name itself, else with the first number that makes it another."""
    names = (f"{output}#{n}" for n in itertools.count(2))
    return next(n for n in itertools.chain([output], names) if n not in taken)


def _put_table(
    draft: SourceDraft, schema: ItemId, source: ItemId, new: NewSubsource, *, subsource: bool
) -> SourceTable:
    item_id, time = draft.new_id(), draft.time
    shard = f"{item_id}-{time}"
    definition = None if new.definition is None else _output_named(new.definition, new.output)
    table = SourceTable(
        item_id,
        new.name,
        schema,
        source,
        new.output,
        new.desc,
        shard,
        new.envelope,
        time,
        subsource,
        definition,
        new.sql,
    )
    draft.put(table)
    return table


def _free_name(state: CatalogState, schema: ItemId, of: str, kind: str, taken: set[str]) -> str:
    """`<of><kind>`, else with the first number that is free. A name that leaves no room is cut."""
    for number in itertools.count():
        suffix = f"{kind}{number or ''}"
        room = MAX_IDENTIFIER_BYTES - len(suffix)
        name = check_identifier(of.encode()[:room].decode(errors="ignore") + suffix)
        if name not in taken and state.find(schema, name) is None:
            return name
    raise AssertionError("there is always a free number")


def altered(state: CatalogState, op: AlterSourceOp | LearnSource) -> Source:
    source = state.get(op.source, Source)
    if isinstance(op, GiveUpTransactionOp):
        return replace(source, definition=_given_up(source, op.transaction))
    if isinstance(op, LearnSource):
        return replace(source, definition=_learned(source, op.learned))
    if isinstance(op, SetSourceHistory):
        return replace(source, retain_history_ms=op.milliseconds)
    return replace(source, interval_ms=op.milliseconds)


def check_transaction_topic(source: Source) -> None:
    if source.cuts_shard is None:
        raise WrongObjectType(
            f'source "{source.name}" is not the transaction topic of another source',
            hint="GIVE UP TRANSACTION belongs to the source that others name in TRANSACTION METADATA "
            "(SOURCE ...).",
        )


def _given_up(source: Source, transaction: str) -> str:
    check_transaction_topic(source)
    definition: dict[str, Any] = json.loads(source.definition)
    given_up = [*definition.get(GIVEN_UP, ())]
    if transaction not in given_up:
        given_up.append(transaction)
    if len(given_up) > MAX_GIVEN_UP:
        raise TidemillError(
            "too many transactions were given up",
            detail=f"The limit of a source is {MAX_GIVEN_UP}.",
            hint="Create the sources again, behind these transactions.",
            sqlstate="54000",
        )
    return json.dumps({**definition, GIVEN_UP: given_up}, sort_keys=True, separators=(",", ":"))


def _learned(source: Source, learned: Mapping[str, Any]) -> str:
    definition: dict[str, Any] = json.loads(source.definition)
    for field, value in learned.items():
        known = definition.get(field)
        if known not in (None, value) and field not in LEARNED_AGAIN:
            raise TidemillError(
                f'source "{source.name}" reads another upstream than before',
                detail=f"Its {field.replace('_', ' ')} was {known}; now it is {value}.",
                hint="Drop the source and create it again to read the upstream as it is now.",
                sqlstate="58000",
            )
        definition[field] = value
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))
