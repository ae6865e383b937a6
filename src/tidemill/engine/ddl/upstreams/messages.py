"""FORMAT, INCLUDE, ENVELOPE and ON ERROR of a topic: makes an output of the definition.

Used for sources that are relations and for tables of a source. Everything is resolved once: the current
schema of the registry becomes part of the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tidemill.catalog.items import ItemId
from tidemill.catalog.sidecars import MATERIALIZE
from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.engine.ddl.upstreams.envelopes import describe_envelope
from tidemill.engine.ddl.upstreams.formats import Side, resolve_format, resolve_key, resolve_stream
from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.kafka.dead_letters import ASIDE, twin
from tidemill.sources.kafka.envelopes import envelope_of, plan
from tidemill.sources.kafka.outputs import output_of, placed
from tidemill.sources.kafka.transactions import FORMATS
from tidemill.sources.offsets import Offsets
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.materialize import Materialize
from tidemill.sql.parser.envelopes.none import NoEnvelope


@dataclass(frozen=True, slots=True)
class DescribedOutput:
    """`spec` is the output in the definition. With `at`, the output is described as it is at this position of
    the upstream: everything before must be bound before the output is made."""

    spec: dict[str, Any]
    output: OutputDefinition
    connections: tuple[ItemId, ...]
    at: Offsets | None = None

    @property
    def envelope(self) -> str:
        said = self.spec.get("envelope")
        return self.output.envelope if said is None else said["kind"]

    @property
    def transactions(self) -> ItemId | None:
        """The source of the transaction topic that its envelope names."""
        said = self.spec.get("envelope", {}).get("transactions")
        return None if said is None else said["source"]

    @property
    def dead_letters(self) -> dict[str, Any] | None:
        """The dead letter output in the definition; None if dead letters are not kept."""
        return twin(self.spec, f"{self.spec['name']}#2") if self.spec.get(ASIDE) else None


def describe_output(
    name: str,
    topic: str,
    said: ast.Messages,
    context: DescribeContext,
    included: Mapping[str, str] = MappingProxyType({}),
) -> DescribedOutput:
    """The output `name` of a topic. May contact the registry, so it may block. `included` are the fields of
    INCLUDE that the transport calls something else."""
    if said.value is None:
        raise Unsupported("messages without FORMAT cannot be read", hint="Write FORMAT behind the options.")
    envelope = said.envelope or NoEnvelope(said.value.offset)
    if isinstance(envelope, Materialize):
        return _stream(name, topic, said, envelope.components, context)
    include = _includes(said.include, included)
    aside = said.on_error is not None and said.on_error.dead_letter
    spec: dict[str, Any] = {
        "name": name,
        "include": include,
        "envelope": describe_envelope(envelope, include, context),
        **({ASIDE: True} if aside else {}),
    }
    value = resolve_format(said.value, Side.VALUE, topic, context)
    if spec["envelope"].get("transactions") and value.format["format"] not in FORMATS:
        raise Unsupported(
            "TRANSACTION METADATA is not possible with this format",
            detail=f"The transactions of messages in {value.format['format'].upper()} are not read.",
            hint="Debezium writes Avro or JSON.",
            position=said.value.offset + 1,
        )
    if said.key is not None:
        key = resolve_format(said.key, Side.KEY, topic, context)
    else:
        # The registry knows the key's schema; without an envelope that needs the key it is not asked.
        key = resolve_key(said.value, topic, context) if envelope_of(spec).keyed else None
    spec["key"] = None if key is None else key.format
    spec["value"] = value.format
    try:
        laid_out = plan(spec, None if key is None else key.columns, value.columns)
    except TidemillError as e:
        e.position = e.position or said.value.offset + 1
        raise
    connections = [*(() if key is None else key.connections), *value.connections]
    return DescribedOutput(spec, placed(topic, laid_out.output), tuple(dict.fromkeys(connections)))


def _stream(
    name: str, topic: str, said: ast.Messages, components: int | None, context: DescribeContext
) -> DescribedOutput:
    """A CDCv2 stream: the columns of its data, without metadata columns of the records."""
    if said.on_error is not None and said.on_error.dead_letter:
        raise Unsupported(
            "ON ERROR DEAD LETTER is not possible with ENVELOPE MATERIALIZE",
            detail="A CDCv2 stream repeats what it says: a message that cannot be read is waited for.",
            position=said.on_error.offset + 1,
        )
    if said.key is not None or said.include:
        clause, offset = ("KEY FORMAT", said.key.offset) if said.key else ("INCLUDE", said.include[0].offset)
        raise SyntaxError_(
            f"{clause} is not possible with ENVELOPE MATERIALIZE",
            detail="An update may come in any record, several times: it has no key, offset or timestamp.",
            position=offset + 1,
        )
    assert said.value is not None
    found = resolve_stream(said.value, components, topic, context)
    spec: dict[str, Any] = {
        "name": name,
        "include": [],
        "envelope": {"kind": MATERIALIZE},
        "key": None,
        "value": found.format,
    }
    return DescribedOutput(spec, output_of(topic, spec), found.connections)


def _includes(said: tuple[ast.Include, ...], called: Mapping[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for include in said:
        if include.what == "KEY" and any(other["what"] == "key" for other in found):
            raise SyntaxError_("INCLUDE KEY specified more than once", position=include.offset + 1)
        item: dict[str, Any] = {
            "what": called.get(include.what.lower(), include.what.lower()),
            "as": None if include.alias is None else include.alias.value,
        }
        if include.header is not None:
            item |= {"header": include.header, "bytes": include.raw}
        found.append(item)
    return found
