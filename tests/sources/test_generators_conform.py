"""The load generators against the contract of sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sources.conformance import CHECKS, Subject
from tidemill.sources.contract import SourcePiece
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise

STARTED = 1_760_000_000_000


def subject(generator: str, events: int, large: int, **options: Any) -> Subject:
    """A generator with `events` events due at its last look, and `large` of them for the check of memory.
    Options are named with underscores."""
    given = {name.replace("_", " "): value for name, value in options.items()}
    definition = normalise(generator, {"TICK INTERVAL": 1_000, "UP TO": events, **given}, STARTED)
    shown = " ".join([generator, *(f"{name} {value}" for name, value in given.items())])
    looks = (0, STARTED - 1, STARTED, STARTED + 3, STARTED + events // 2, STARTED + 10 * events)
    return Subject(shown, lambda: open_source(definition), looks, SourcePiece(None, 0, large))


SUBJECTS = [
    subject("COUNTER", 150_000, 20_000_000),
    subject("COUNTER", 90_000, 5_000_000, MAX_CARDINALITY=40_000),
    subject("COUNTER", 50, 5_000_000, MAX_CARDINALITY=1),
    subject("KEY VALUE", 80_000, 1_000_000, KEYS=500),
    subject("KEY VALUE", 30_000, 1_000_000, KEYS=1000, SNAPSHOT_ROUNDS=3, TOMBSTONES="5%", VALUE_SIZE=13),
    subject("KEY VALUE", 2_000, 200_000, KEYS=2**62, VALUE_SIZE=0, PARTITIONS=4, BATCH_SIZE=77),
    subject("KEY VALUE", 12, 200, KEYS=3, VALUE_SIZE=2**20, TOMBSTONES="50%"),
    subject("KEY VALUE", 20_000, 1_000_000, KEYS=17, ENVELOPE="NONE", SEED=5),
    subject("AUCTION", 150_000, 3_000_000),
    subject("AUCTION", 500, 70_000, SEED=99, TICK_INTERVAL=1),
]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_generator_conforms(check: Callable[[Subject], None], subject: Subject) -> None:
    check(subject)
