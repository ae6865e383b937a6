"""FROM PUBNUB worked out to a definition, against a server that speaks PubNub's protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.kafka_context import World
from support.pubnub import SUBSCRIBE_KEY, TICKS, PubNubServer, pubnub_server
from tidemill.errors import TidemillError
from tidemill.sources.definition import open_source
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import to_sql


@pytest.fixture
def service() -> Iterator[PubNubServer]:
    with pubnub_server() as made:
        yield made


@pytest.fixture
def world(service: PubNubServer) -> World:
    found = World()
    found.connection("p", "pubnub", subscribe_key=SUBSCRIBE_KEY, endpoint=service.endpoint)
    return found


def test_the_definition_has_the_cursor_of_the_statement(world: World, service: PubNubServer) -> None:
    before = service.now()
    made = world.describe(
        "CREATE SOURCE s FROM PUBNUB CONNECTION p "
        "(CHANNELS ('a', 'b.*'), CHANNEL GROUPS 'g', HISTORY '7 days') "
        "FORMAT JSON INCLUDE KEY AS k, PARTITION, OFFSET, TIMESTAMP ON ERROR DEAD LETTER"
    )
    assert (made.type, made.label, made.envelope) == ("pubnub", 'PubNub channel "a"', "none")
    definition = made.definition
    token, region = definition["cursor"]
    assert before < token < service.now() and region == 1
    assert (definition["channels"], definition["groups"]) == (["a", "b.*"], ["g"])
    assert definition["history_seconds"] == 7 * 86_400
    (output,) = made.outputs
    assert [*output.desc.names] == ["data", "k", "region", "timetoken", "published"]
    assert made.dead_letters is not None and made.dead_letters.desc.names[0] == "error"
    opened = open_source({**definition, "connection": service.connection})
    assert [o.desc for o in opened.outputs] == [output.desc, made.dead_letters.desc]
    assert [c.name for c in made.gauge.progress_desc.columns] == ["region", "timetoken"]


def test_it_begins_where_the_statement_says(world: World, service: PubNubServer) -> None:
    start = service.now()
    service.pass_time(3600)
    made = world.describe(
        f"CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS 'a', START TIMETOKEN {start}) FORMAT TEXT"
    )
    assert made.definition["cursor"] == [start - 1, None]


def test_the_older_spelling_reads_text() -> None:
    made = World().describe(
        "CREATE SOURCE s FROM PUBNUB SUBSCRIBE KEY 'k' CHANNEL 'c' WITH (VALIDATE = false)"
    )
    assert made.definition["connection"] == {"subscribe_key": "k"}
    assert made.connections == () and [c.name for c in made.outputs[0].desc.columns] == ["text"]
    assert made.definition["cursor"] == [0, None]


@pytest.mark.parametrize(
    ("options", "rest", "primary", "sqlstate"),
    [
        ("CHANNELS 'a', START TIMETOKEN 17", "FORMAT TEXT", "is before what the service keeps", "22023"),
        ("CHANNELS 'a', START TIMETOKEN 0", "FORMAT TEXT", "0 is no timetoken", "22023"),
        ("CHANNELS 'a*b'", "FORMAT TEXT", '"a*b" is no name of a channel', "22023"),
        ("CHANNEL GROUPS 'a.*'", "FORMAT TEXT", '"a.*" is no name of a channel', "22023"),
        ("CHANNELS 'a,b'", "FORMAT TEXT", '"a,b" is no name of a channel', "22023"),
        ("CHANNELS ''", "FORMAT TEXT", '"" is no name of a channel', "22023"),
        ("HISTORY '1 day'", "FORMAT TEXT", "needs CHANNELS or CHANNEL GROUPS", "42601"),
        ("CHANNELS ('a', 'a')", "FORMAT TEXT", 'channel "a" specified more than once', "42712"),
        ("CHANNELS 'a-pnpres'", "FORMAT TEXT", 'presence is not read: "a-pnpres"', "0A000"),
        ("CHANNELS 'a'", "FORMAT TEXT ENVELOPE UPSERT", "ENVELOPE UPSERT is not possible", "0A000"),
        ("CHANNELS 'a'", "KEY FORMAT TEXT VALUE FORMAT TEXT", "KEY FORMAT is not possible", "0A000"),
        ("CHANNELS 'a'", "FORMAT TEXT INCLUDE HEADERS", "INCLUDE HEADERS is not possible", "0A000"),
        ("CHANNELS 'a'", "FORMAT TEXT INCLUDE KEY AS text", 'column "text" specified more than', "42701"),
        (
            "CHANNELS 'a'",
            """FORMAT AVRO USING SCHEMA '{"type": "record", "name": "r", "fields": []}'""",
            "cannot be read with this format",
            "0A000",
        ),
        ("CHANNELS 'a'", "FOR ALL TABLES", "FOR TABLES is not possible", "0A000"),
    ],
)
def test_what_is_refused(world: World, options: str, rest: str, primary: str, sqlstate: str) -> None:
    with pytest.raises(TidemillError) as caught:
        world.describe(f"CREATE SOURCE s FROM PUBNUB CONNECTION p ({options}) {rest}")
    assert primary in caught.value.primary and caught.value.sqlstate == sqlstate
    assert caught.value.position


def test_a_start_in_the_future_is_refused(world: World, service: PubNubServer) -> None:
    future = service.now() + 3600 * TICKS
    with pytest.raises(TidemillError, match=f"START TIMETOKEN {future} is in the future") as caught:
        world.describe(
            f"CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS 'a', START TIMETOKEN {future}) FORMAT TEXT"
        )
    assert caught.value.sqlstate == "22023"


def test_what_the_service_says_is_told(world: World, service: PubNubServer) -> None:
    service.auth = "right"
    with pytest.raises(TidemillError, match="refuses access to the channels") as caught:
        world.describe("CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS 'a') FORMAT TEXT")
    assert caught.value.hint is not None and "VALIDATE = false" in caught.value.hint
    service.auth, service.status = None, 503
    with pytest.raises(TidemillError, match="PubNub answers 503"):
        world.describe("CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS 'a') FORMAT TEXT")


def test_the_text_is_parsed_again() -> None:
    text = "CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS ('a'), START TIMETOKEN 1, HISTORY '1 day')"
    (parsed,) = parse(text)
    assert isinstance(parsed.statement, ast.CreateSource)
    assert to_sql(parsed.statement) == text
