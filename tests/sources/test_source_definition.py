"""Options in, definition out, source from definition; and what is refused on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.errors import InvalidValue, LimitExceeded, SyntaxError_, TidemillError, UndefinedObject
from tidemill.sources.contract import EVENTS, UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise, option_kinds
from tidemill.sources.generators.options import OptionKind
from tidemill.sources.offsets import Offsets

STARTED = 1_760_000_000_000


def test_definitions_have_every_default_written_out() -> None:
    assert normalise("counter", {}, STARTED) == {
        "kind": "load generator",
        "generator": "counter",
        "tick_interval": 1_000_000,
        "fail_transient": False,
        "envelope": "NONE",
        "started": STARTED,
    }
    given = {"KEYS": 5, "TOMBSTONES": "0.25 %", "UP TO": 7, "ENVELOPE": "upsert"}
    assert normalise("KEY VALUE", given, STARTED) == {
        "kind": "load generator",
        "generator": "key value",
        "keys": 5,
        "value_size": 16,
        "tick_interval": 1_000_000,
        "batch_size": 1,
        "snapshot_rounds": 0,
        "tombstones": 2_500,
        "up_to": 7,
        "seed": 0,
        "envelope": "UPSERT",
        "started": STARTED,
    }
    assert normalise("Auction", {"SEED": 3}, STARTED) == {
        "kind": "load generator",
        "generator": "auction",
        "tick_interval": 100_000,
        "seed": 3,
        "envelope": "NONE",
        "started": STARTED,
    }


@pytest.mark.parametrize(
    ("generator", "outputs", "key"),
    [
        ("COUNTER", ["counter"], None),
        ("KEY VALUE", ["key_value"], ("key",)),
        ("AUCTION", ["organizations", "users", "accounts", "auctions", "bids"], None),
    ],
)
def test_definitions_survive_json_and_open(
    generator: str, outputs: list[str], key: tuple[str, ...] | None
) -> None:
    options = {"KEYS": 5} if generator == "KEY VALUE" else {}
    definition = json.loads(json.dumps(normalise(generator, options, STARTED)))
    source = open_source(definition)
    assert [output.name for output in source.outputs] == outputs
    assert {output.key for output in source.outputs} == {key}
    assert source.gauge == EVENTS and source.start == Offsets()
    assert source.frontier(STARTED + 3_000)[None] >= 3
    source.close()


def test_an_option_without_value_is_true() -> None:
    definition = normalise("COUNTER", {"FAIL AT": 3, "FAIL TRANSIENT": None}, STARTED)
    assert definition["fail_transient"] is True


def test_key_value_columns_follow_the_options() -> None:
    def columns(**options: Any) -> list[str]:
        source = open_source(normalise("KEY VALUE", {"KEYS": 5, **options}, STARTED))
        return [f"{c.name} {c.type}" for c in source.outputs[0].desc.columns]

    assert columns() == ["key uint8", "value bytea"]
    assert columns(PARTITIONS=2) == ["partition uint8", "key uint8", "value bytea"]


def test_kinds_tell_how_options_are_read() -> None:
    assert option_kinds("Key Value") == {
        "KEYS": OptionKind.INTEGER,
        "VALUE SIZE": OptionKind.INTEGER,
        "TICK INTERVAL": OptionKind.INTERVAL,
        "BATCH SIZE": OptionKind.INTEGER,
        "SNAPSHOT ROUNDS": OptionKind.INTEGER,
        "PARTITIONS": OptionKind.INTEGER,
        "TOMBSTONES": OptionKind.PERCENT,
        "UP TO": OptionKind.INTEGER,
        "SEED": OptionKind.INTEGER,
        "ENVELOPE": OptionKind.CHOICE,
    }


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("COUNTER", {"TICK INTERVAL": 0}, "option TICK INTERVAL must be between 1 microsecond and 366 days"),
    ("COUNTER", {"TICK INTERVAL": "1s"}, "option TICK INTERVAL must be an interval"),
    ("COUNTER", {"UP TO": -1}, "option UP TO must be between 0 and 4611686018427387904"),
    ("COUNTER", {"UP TO": True}, "option UP TO must be an integer"),
    ("COUNTER", {"UP TO": 1.5}, "option UP TO must be an integer"),
    ("COUNTER", {"MAX CARDINALITY": 0}, "option MAX CARDINALITY must be between 1 and 4611686018427387904"),
    ("COUNTER", {"UP TO": None}, "option UP TO needs a value"),
    ("COUNTER", {"FAIL TRANSIENT": 1}, "option FAIL TRANSIENT must be true or false"),
    ("COUNTER", {"FAIL TRANSIENT": True}, "option FAIL TRANSIENT needs the option FAIL AT"),
    ("COUNTER", {"ENVELOPE": "UPSERT"}, "option ENVELOPE must be NONE"),
    ("KEY VALUE", {}, "the KEY VALUE load generator needs the option KEYS"),
    ("KEY VALUE", {"KEYS": 0}, "option KEYS must be between 1 and 4611686018427387904"),
    ("KEY VALUE", {"KEYS": 1, "VALUE SIZE": 2**20 + 1}, "option VALUE SIZE must be between 0 and 1048576"),
    ("KEY VALUE", {"KEYS": 1, "BATCH SIZE": 0}, "option BATCH SIZE must be between 1 and 100000000"),
    ("KEY VALUE", {"KEYS": 1, "TOMBSTONES": "100.0001%"}, "option TOMBSTONES must be between 0% and 100%"),
    ("KEY VALUE", {"KEYS": 1, "TOMBSTONES": "one"}, "option TOMBSTONES must be a percentage with at most"),
    ("KEY VALUE", {"KEYS": 1, "TOMBSTONES": 1}, "option TOMBSTONES must be a percentage with at most"),
    ("KEY VALUE", {"KEYS": 1, "ENVELOPE": "DEBEZIUM"}, "option ENVELOPE must be UPSERT or NONE"),
    (
        "KEY VALUE",
        {"KEYS": 1, "ENVELOPE": "NONE", "TOMBSTONES": "1%"},
        "option TOMBSTONES needs ENVELOPE UPSERT",
    ),
    (
        "KEY VALUE",
        {"KEYS": 2**40, "SNAPSHOT ROUNDS": 2**30},
        "KEYS times SNAPSHOT ROUNDS must be at most 4611686018427387904",
    ),
    ("AUCTION", {"SEED": 2**63}, "option SEED must be between 0 and 9223372036854775807"),
]


@pytest.mark.parametrize(("generator", "options", "primary"), REFUSED)
def test_bad_values_are_refused(generator: str, options: dict[str, Any], primary: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalise(generator, options, STARTED)
    assert caught.value.primary.startswith(primary)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    ("generator", "option", "hint"),
    [
        ("COUNTER", "TICK_INTERVAL", "Perhaps you meant TICK INTERVAL."),
        ("COUNTER", "TICK INTERVALL", "Perhaps you meant TICK INTERVAL."),
        ("KEY VALUE", "KEY", "Perhaps you meant KEYS."),
        ("AUCTION", "COLOUR", "Its options are TICK INTERVAL, UP TO, SEED, ENVELOPE."),
        ("AUCTION", "KEYS", "Its options are TICK INTERVAL, UP TO, SEED, ENVELOPE."),
    ],
)
def test_unknown_options_are_named(generator: str, option: str, hint: str) -> None:
    with pytest.raises(SyntaxError_) as caught:
        normalise(generator, {option: 1}, STARTED)
    assert caught.value.primary == f'the {generator} load generator has no option "{option}"'
    assert (caught.value.hint, caught.value.sqlstate) == (hint, "42601")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("COUNTR", "Perhaps you meant COUNTER."), ("TPCH", "There are COUNTER, KEY VALUE, AUCTION.")],
)
def test_unknown_generators_are_named(name: str, hint: str) -> None:
    for call in (lambda: normalise(name, {}, STARTED), lambda: option_kinds(name)):
        with pytest.raises(UndefinedObject) as caught:
            call()
        assert (caught.value.primary, caught.value.hint) == (f'load generator "{name}" does not exist', hint)


def test_a_time_out_of_range_is_refused() -> None:
    for started in (-1, 2**63):
        with pytest.raises(LimitExceeded):
            normalise("COUNTER", {}, started)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pulsar"},
        {"generator": "tides"},
        {"generator": None},
        {"tide": 1},
        {"started": None},
        {"started": "now"},
        {"started": -5},
        {"keys": None},
        {"keys": 0},
        {"keys": "5"},
        {"tombstones": "1%"},
        {"tombstones": 1_000_001},
        {"envelope": "upsert"},
        {"seed": True},
        {"envelope": "NONE", "tombstones": 5},
    ],
)
def test_a_definition_that_cannot_be_read_stalls_the_source(change: dict[str, Any]) -> None:
    definition = normalise("KEY VALUE", {"KEYS": 5}, STARTED)
    with pytest.raises(TidemillError) as caught:
        open_source({**definition, **change})
    assert isinstance(caught.value, UpstreamError)
    assert caught.value.primary == "the source's definition cannot be read"
    assert caught.value.detail and not caught.value.transient


def test_an_option_that_came_later_has_its_default() -> None:
    definition = normalise("KEY VALUE", {"KEYS": 5}, STARTED)
    del definition["tombstones"]
    assert open_source(definition).outputs == open_source(normalise("KEY VALUE", {"KEYS": 5}, 0)).outputs
