"""FROM LOAD GENERATOR: converts the options of a statement for the generator."""

from __future__ import annotations

from typing import Any

from tidemill.engine.ddl.upstreams.described import DescribeContext, Described
from tidemill.engine.session.durations import microseconds
from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise, option_kinds
from tidemill.sources.generators.options import OptionKind
from tidemill.sql import ast
from tidemill.sql.ast.sources import OptionValue
from tidemill.sql.parser.upstreams.load_generator import LoadGenerator

# What mz_sources shows.
TYPE = "load-generator"
_ENVELOPE = "ENVELOPE"


def describe_load_generator(
    statement: ast.CreateSource, generator: LoadGenerator, context: DescribeContext
) -> Described:
    try:
        options = _options(statement, generator)
        definition = normalise(generator.kind, options, context.started)
    except TidemillError as e:
        if e.position is None:
            named = [o.offset for o in generator.options if o.name in e.primary]
            e.position = (named[0] if named else generator.offset) + 1
        raise
    source = open_source(definition)
    try:
        described = Described(
            TYPE, f"load generator {generator.kind}", definition, source.gauge, source.outputs
        )
    finally:
        source.close()
    _check_messages(statement.messages, described)
    return described


def _options(statement: ast.CreateSource, generator: LoadGenerator) -> dict[str, Any]:
    """The options by name, with intervals in microseconds. The generator takes the clause ENVELOPE as an
    option."""
    kinds = option_kinds(generator.kind)
    options: dict[str, Any] = {}
    for option in generator.options:
        if option.name == _ENVELOPE:
            raise SyntaxError_(
                "ENVELOPE is no option", hint=f"Write ENVELOPE {option.value} behind the options."
            )
        kind = kinds.get(option.name)
        options[option.name] = option.value if kind is None else _value(option.value, kind)
    if statement.messages.envelope is not None:
        options[_ENVELOPE] = statement.messages.envelope.kind
    return options


def _value(value: OptionValue, kind: OptionKind) -> object:
    """Numbers and booleans may be written as text. A value that cannot be converted is passed on unchanged,
    and the generator rejects it."""
    if kind is OptionKind.INTERVAL and isinstance(value, str):
        return microseconds(value)
    if kind is OptionKind.INTEGER and isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    if kind is OptionKind.BOOLEAN and isinstance(value, str):
        return {"true": True, "on": True, "false": False, "off": False}.get(value.lower(), value)
    return value


def _check_messages(said: ast.Messages, described: Described) -> None:
    """Of the clauses about messages, a generator accepts only ENVELOPE."""
    if said.value is not None:
        raise Unsupported(
            f"FORMAT is not supported by the {described.label}",
            hint="Leave it out: a load generator makes rows, not messages.",
            position=said.value.offset + 1,
        )
    if said.on_error is not None and said.on_error.dead_letter:
        raise Unsupported(
            f"ON ERROR DEAD LETTER is not supported by the {described.label}",
            hint="Leave it out: a load generator makes rows, not messages.",
            position=said.on_error.offset + 1,
        )
    if said.envelope is not None and said.envelope.options:
        raise Unsupported(
            f"options of ENVELOPE {said.envelope.kind} are not supported by the {described.label}",
            hint=f"Write ENVELOPE {said.envelope.kind} alone.",
            position=said.envelope.offset + 1,
        )
    for include in said.include:
        if include.what == "KEY" and include.alias is None and described.outputs[0].key is not None:
            continue  # it is a column in any case
        alias = "" if include.alias is None else f" AS {include.alias}"
        raise Unsupported(
            f"INCLUDE {include.what}{alias} is not supported by the {described.label}",
            hint="Leave it out: a load generator's columns are what it makes.",
            position=include.offset + 1,
        )
