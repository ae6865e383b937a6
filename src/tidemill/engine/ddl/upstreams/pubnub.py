"""FROM PUBNUB: makes the definition of a source over channels from the statement."""

from __future__ import annotations

import json
from typing import Any

from tidemill.catalog import connections
from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described, refuse_choice
from tidemill.engine.ddl.upstreams.formats import Side, resolve_format
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.engine.session.durations import milliseconds
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, UndefinedObject, Unsupported
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.definition import PUBNUB
from tidemill.sources.kafka.dead_letters import ASIDE, twin_output
from tidemill.sources.pubnub.layout import GAUGE, INCLUDE_HINT, INCLUDED, message_layout
from tidemill.sources.pubnub.messages import MAX_TOKEN, TICKS_PER_SECOND, Cursor
from tidemill.sources.pubnub.service import Service
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.none import NoEnvelope
from tidemill.sql.parser.upstreams.pubnub import PubNub

# How long CREATE SOURCE waits for the service's timetoken.
_SUBSCRIBE_SECONDS = 10.0
# What the service keeps with the smallest plan that keeps messages.
DEFAULT_HISTORY_SECONDS = 86_400
# Channels and groups of one subscription: their names are in one URL of at most 32 kB.
MAX_CHANNELS, MAX_NAME = 200, 92
_FORMATS = "Messages can be read with FORMAT TEXT, JSON, CSV, REGEX and BYTES."


def describe_pubnub(statement: ast.CreateSource, pubnub: PubNub, context: DescribeContext) -> Described:
    if statement.tables is not None:
        raise Unsupported(
            "FOR TABLES is not possible for a PubNub source",
            hint='Use CREATE TABLE ... FROM SOURCE ... (REFERENCE "channel").',
        )
    _check_names(pubnub)
    history = _history(pubnub.history)
    connection: Any
    if pubnub.connection is None:
        connection, needed = {"subscribe_key": pubnub.subscribe_key}, ()
        reached: dict[str, Any] = connection
    else:
        found = context.find(pubnub.connection, connections.PUBNUB)
        connection, needed, reached = found.id, (found.id,), context.reached(found)
    cursor = _start(pubnub, Service(reached), history, asks=statement.validate)
    said = statement.messages
    if pubnub.connection is None and said.silent:
        said = ast.Messages(value=ast.PlainFormat("TEXT", pubnub.offset))
    specs: list[dict[str, Any]] = []
    outputs: list[OutputDefinition] = []
    letters: dict[str, Any] | None = None
    name = pubnub.channels[0] if pubnub.channels else pubnub.channel_groups[0]
    if not said.silent:
        output = _output(name, None, said, context)
        specs, outputs, letters = [output.spec], [output.output], output.dead_letters
    definition = {
        "kind": PUBNUB,
        "connection": connection,
        "channels": list(pubnub.channels),
        "groups": list(pubnub.channel_groups),
        "cursor": [cursor.token, cursor.region],
        "history_seconds": history,
        "outputs": specs + ([letters] if letters else []),
        "started": context.started,
    }
    return Described(
        PUBNUB,
        f'PubNub channel "{name}"',
        definition,
        GAUGE,
        tuple(outputs),
        "none" if outputs else None,
        needed,
        None if letters is None else twin_output(letters["name"]),
    )


def describe_pubnub_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that a table adds to its source: a channel, pattern or group of the subscription."""
    refuse_choice(statement.choice, "a PubNub source")
    definition: dict[str, Any] = json.loads(source.definition)
    names = [*definition["channels"], *definition["groups"]]
    reference = ".".join(statement.reference.parts)
    if reference not in names:
        raise UndefinedObject(
            f'source "{source.name}" has no channel "{reference}"',
            hint="It subscribes to " + ", ".join(f'"{name}"' for name in names[:10]) + ".",
            sqlstate="42P01",
            position=statement.reference.offset + 1,
        )
    if statement.messages.value is None:
        raise SyntaxError_(
            f'a table of source "{source.name}" needs FORMAT',
            detail="The source reads channels and says nothing of their messages.",
            position=statement.source.offset + 1,
        )
    return _output(reference, reference, statement.messages, context)


def _output(name: str, channel: str | None, said: ast.Messages, context: DescribeContext) -> DescribedOutput:
    form = said.value
    if form is None:
        raise Unsupported("messages without FORMAT cannot be read", hint=_FORMATS)
    _refuse(said)
    if not isinstance(form, ast.PlainFormat | ast.Csv | ast.Regex):
        raise Unsupported(
            "messages of PubNub cannot be read with this format",
            detail="They are JSON.",
            hint=_FORMATS,
            position=form.offset + 1,
        )
    aside = said.on_error is not None and said.on_error.dead_letter
    value = resolve_format(form, Side.VALUE, name, context).format
    spec: dict[str, Any] = {
        "name": name,
        "key": None,
        "value": value,
        "include": [_include(include) for include in said.include],
        "envelope": {"kind": "none"},
        "channel": channel,
        **({ASIDE: True} if aside else {}),
    }
    try:
        return DescribedOutput(spec, message_layout(spec).output, ())
    except TidemillError as e:
        e.position = e.position or form.offset + 1
        raise


def _refuse(said: ast.Messages) -> None:
    if said.key is not None:
        raise Unsupported(
            "KEY FORMAT is not possible for PubNub",
            detail="Its messages have no keys.",
            position=said.key.offset + 1,
        )
    if said.envelope is not None and not isinstance(said.envelope, NoEnvelope):
        raise Unsupported(
            f"ENVELOPE {said.envelope.kind} is not possible for PubNub",
            detail="Messages of different regions have no common order.",
            hint="Use ENVELOPE NONE, and a view that takes the row that you want of each key.",
            position=said.envelope.offset + 1,
        )


def _include(include: ast.Include) -> dict[str, Any]:
    what = include.what.lower()
    if what not in INCLUDED:
        raise Unsupported(
            f"INCLUDE {include.what} is not possible for PubNub",
            hint=INCLUDE_HINT,
            position=include.offset + 1,
        )
    return {"what": what, "as": None if include.alias is None else include.alias.value}


def _check_names(pubnub: PubNub) -> None:
    names = [*pubnub.channels, *pubnub.channel_groups]
    if not names:
        raise SyntaxError_(
            "a PubNub source needs CHANNELS or CHANNEL GROUPS", hint="Write CHANNELS ('channel', ...)."
        )
    if len(names) > MAX_CHANNELS:
        raise Unsupported(
            f"more than {MAX_CHANNELS} channels in one source",
            hint="Use a pattern ('name.*'), a channel group, or several sources.",
        )
    for name in names:
        star = "*" in name
        pattern = star and name.endswith(".*") and name.count("*") == 1 and name in pubnub.channels
        if not 0 < len(name) <= MAX_NAME or set(name) & set(",/\\:") or (star and not pattern):
            raise InvalidValue(
                f'"{name[:MAX_NAME]}" is no name of a channel',
                hint=f"It has up to {MAX_NAME} characters without , / \\ : and *; a pattern ends with .* .",
                sqlstate="22023",
            )
        if name.endswith("-pnpres"):
            raise Unsupported(f'presence is not read: "{name}"', hint="Name the channel alone.")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InvalidValue(f'channel "{twice}" specified more than once', sqlstate="42712")


def _history(text: str | None) -> int:
    """In seconds; 0: none."""
    return DEFAULT_HISTORY_SECONDS if text is None else milliseconds(text) // 1000


def _start(pubnub: PubNub, service: Service, history: int, *, asks: bool) -> Cursor:
    """Where the subscription begins: where the service is now, so that nothing that is published after the
    statement is missed, or where the statement says."""
    start = pubnub.start_timetoken
    if start is not None and not 0 < start < MAX_TOKEN:
        raise InvalidValue(f"{start} is no timetoken", hint="It has 17 digits.", sqlstate="22023")
    if not asks:
        return Cursor(start or 0)
    cursor = asking(
        lambda: service.subscribe(pubnub.channels, pubnub.channel_groups, Cursor(0), _SUBSCRIBE_SECONDS)
    ).cursor
    service.close()
    if start is None:
        return cursor
    if start > cursor.token:
        raise InvalidValue(
            f"START TIMETOKEN {start} is in the future",
            detail=f"The service is at {cursor.token}.",
            hint="Leave it out to begin now.",
            sqlstate="22023",
        )
    if start < cursor.token - history * TICKS_PER_SECOND:
        raise InvalidValue(
            f"START TIMETOKEN {start} is before what the service keeps",
            detail=f"HISTORY says {history} seconds; the service is at {cursor.token}.",
            hint="If the plan of the key set keeps messages longer, write HISTORY '7 days'.",
            sqlstate="22023",
        )
    return Cursor(start - 1)
