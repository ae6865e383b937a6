"""Which of all topics of a name a source reads, without a broker: it is told what brokers would say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from tidemill.sources.contract import UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.kafka import source as source_module
from tidemill.sources.kafka.metadata import NoTopic, TopicIdentity
from tidemill.sources.offsets import Offsets

NOW = 1_700_000_000_000


@dataclass
class Brokers:
    """The topic's id (None of old brokers) and where its partitions end; nothing, while there is no topic."""

    topic_id: str | None = "A"
    ends: dict[int, int] | None = field(default_factory=lambda: {0: 3})

    def stand(
        self, topic: str, partitions: Collection[int], seconds: float
    ) -> tuple[TopicIdentity, dict[int, int]]:
        if self.ends is None:
            raise NoTopic(f'there is no topic "{topic}"')
        asked = {p: self.ends[p] for p in partitions if p in self.ends}
        return TopicIdentity(self.topic_id, tuple(self.ends)), asked

    def ends_of(self, topic: str, partitions: Collection[int], seconds: float) -> dict[int, int]:
        assert self.ends is not None
        return {p: self.ends[p] for p in partitions}


class _Admin:
    """`Admin` of the brokers."""

    def __init__(self, brokers: Brokers) -> None:
        self.stand = brokers.stand
        self.ends = brokers.ends_of


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(source_module, "Admin", lambda _: _Admin(made))
    return made


def definition(**more: Any) -> dict[str, Any]:
    return {
        "kind": "kafka",
        "connection": {"brokers": ["h:1"], "security_protocol": "PLAINTEXT"},
        "topic": "t",
        "topic_id": None,
        "partitions": {},
        "group_id_prefix": None,
        "refresh_ms": 1000,
        "outputs": [],
        **more,
    }


def told(source: Any) -> str:
    with pytest.raises(UpstreamError) as e:
        source.frontier(NOW)
    return e.value.primary


def test_the_first_look_tells_which_topic_it_is(brokers: Brokers) -> None:
    source = open_source(definition())
    assert source.learned is None
    assert source.frontier(NOW) == Offsets({0: 3})
    assert source.learned == {"topic_id": "A"}
    # Once it is kept it is not told again.
    source.learned = None
    assert source.frontier(NOW + 1000) == Offsets({0: 3})
    assert source.learned is None
    brokers.topic_id = "B"
    assert told(source) == 'topic "t" was deleted and created anew'


def test_one_that_is_opened_with_what_was_learned_is_not_taken_in(brokers: Brokers) -> None:
    before = open_source(definition())
    before.frontier(NOW)
    later = open_source({**definition(), **(before.learned or {})})
    brokers.topic_id = "B"
    assert told(later) == 'topic "t" was deleted and created anew'
    assert later.learned is None
    brokers.ends = None
    assert told(later) == 'topic "t" does not exist any more'


def test_nothing_is_learned_of_a_topic_that_is_not_there_or_has_no_id(brokers: Brokers) -> None:
    brokers.ends = None
    source = open_source(definition())
    assert told(source) == 'topic "t" does not exist'
    assert source.learned is None
    brokers.ends, brokers.topic_id = {0: 1}, None
    assert source.frontier(NOW) == Offsets({0: 1})
    assert source.learned is None
    # Brokers that were made newer.
    brokers.topic_id = "A"
    source.frontier(NOW + 1)
    assert source.learned == {"topic_id": "A"}


def test_more_start_offsets_than_partitions(brokers: Brokers) -> None:
    """With VALIDATE = false nobody asked how many there are."""
    source = open_source(definition(partitions={"0": 1, "1": 0, "2": 0}))
    assert told(source) == 'topic "t" has no partition 1'
    brokers.ends = {0: 3, 1: 1, 2: 0}
    assert source.frontier(NOW + 1) == Offsets({0: 3, 1: 1, 2: 0})


def test_a_topic_without_an_id_that_loses_partitions_was_made_anew(brokers: Brokers) -> None:
    brokers.topic_id, brokers.ends = None, {0: 3, 1: 1}
    source = open_source(definition(partitions={"0": 0, "1": 0}))
    source.frontier(NOW)
    brokers.ends = {0: 3}
    assert told(source) == 'topic "t" has no partition 1 any more'
