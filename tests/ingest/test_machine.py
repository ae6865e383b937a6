"""One source's steps without Spark: what is bound is there once, at its time, whatever fails in between."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ingest.scripted import House, ScriptedSource
from support.flaky import Fault, FlakyBlobs
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.errors import TidemillError
from tidemill.ingest import machine as machine_module
from tidemill.ingest.machine import SourceMachine
from tidemill.ingest.unit import UnitFailure
from tidemill.persist import environment as environment_module
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.sources.contract import KEY_SLOT_COLUMN, Forgotten, OutputDefinition, ReadLimits, UpstreamError
from tidemill.sources.offsets import Offsets
from tidemill.types.model import BYTEA, TEXT, Column, RelationDesc

STEPS = [
    "tick.before_bind",
    "tick.bound",
    "tick.task.read",
    "tick.task.written",
    "tick.before_commit",
    "tick.committed",
    "tick.between_commits",
]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "data")
    yield house
    failpoints.arm("")
    house.close()


def now(house: House) -> int:
    return house.environment.oracle.now()


def test_records_are_there_once_at_the_first_time_that_covers_them(house: House) -> None:
    at = now(house)
    for n in range(5):
        house.source.produce(p0=n, p1=2)
        assert house.tick(at + 100 * n)
    house.check()
    assert house.machine.ingested == Offsets({0: 10, 1: 10})
    # On boundaries, so that sources share their times.
    assert all(time % 100 == 0 for time, _ in house.bindings()[1:])


def test_nothing_new_writes_nothing_and_moves_what_is_readable(house: House) -> None:
    house.source.produce(p0=1)
    at = now(house)
    assert house.tick(at)
    versions = [house.machine.remap.shard.version, *(f.shard.version for f in house.machine.feeds)]
    for n in range(1, 20):
        assert not house.tick(at + 100 * n)
        assert house.machine.readable > at + 100 * n
    assert versions == [house.machine.remap.shard.version, *(f.shard.version for f in house.machine.feeds)]


def test_a_promise_never_goes_beyond_the_lease(house: House) -> None:
    far = house.environment.oracle.leased + 5_000
    assert not house.tick(far)
    assert house.machine.readable <= house.environment.oracle.leased


def test_no_binding_below_what_was_promised(house: House) -> None:
    at = now(house) // 100 * 100 + 110
    assert not house.tick(at)
    promised = house.machine.readable
    house.source.produce(p0=1)
    assert not house.tick(at + 50)
    assert house.tick(at + 250)
    assert all(time >= promised for time, _ in house.bindings())
    house.check()


def test_one_that_comes_late_binds_at_the_latest_boundary(house: House) -> None:
    """There it meets the others, and what is new is not told to be old."""
    house.source.produce(p0=1)
    at = house.machine.promised // 100 * 100 + 100
    assert house.tick(at)
    house.source.produce(p0=1)
    assert house.tick(at + 1050)
    assert house.bindings()[-1][0] == at + 1000
    house.check()


def test_a_catch_up_binds_at_successive_times_within_its_limit(tmp_path: Path) -> None:
    house = House(tmp_path / "data", limits=ReadLimits(records=100))
    house.source.produce(p0=350, p1=700)
    at = now(house) + 1000
    while house.tick(at):
        assert house.machine.readable == 0 or not house.machine.catching_up
    assert house.machine.ingested == house.source.stands
    bindings = house.machine.remap.bindings(0)
    assert len(bindings) >= 11
    assert all(b.records <= 101 for b in bindings)
    # Readable from the moment at which all that there was at first is there, and not before.
    (since,) = {f.shard.since for f in house.machine.feeds}
    assert since == bindings[-1].time
    house.check()
    house.close()


def test_a_source_that_goes_back_is_told_and_loses_nothing(house: House) -> None:
    house.source.produce(p0=10)
    house.tick(now(house))
    house.source.stands = Offsets({0: 7})
    with pytest.raises(UpstreamError, match="went back"):
        house.tick(now(house) + 100)
    house.source.stands = Offsets({0: 12})
    assert house.tick(now(house) + 200)
    house.check()


def test_what_is_learned_is_kept_before_anything_is_bound(house: House) -> None:
    house.source.learned = {"id": "A"}
    house.source.produce(p0=3)
    before = len(house.bindings())
    assert house.tick(now(house))
    assert house.kept == [({"id": "A"}, before)]
    house.source.produce(p0=1)
    assert house.tick(house.machine.promised + 100)
    assert len(house.kept) == 1


def test_nothing_is_bound_of_what_cannot_be_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise TidemillError("another upstream")

    monkeypatch.setattr(house.machine, "_keep", refuse)
    house.source.learned = {"id": "A"}
    house.source.produce(p0=3)
    before = house.bindings()
    for _ in range(2):
        with pytest.raises(TidemillError, match="another upstream"):
            house.tick(now(house))
    assert house.bindings() == before


def test_an_upstream_is_looked_at_before_what_was_bound_is_read(house: House) -> None:
    """It may have been made anew while nobody was there: its records have the same numbers."""
    house.source.produce(p0=5)
    assert house.machine.bind(now(house)) is not None
    house.close()
    house.open()
    house.source.error = UpstreamError("made anew")
    with pytest.raises(UpstreamError, match="made anew"):
        house.tick(now(house))
    house.source.error = None
    house.source.stands = Offsets({0: 4})
    with pytest.raises(UpstreamError, match="went back"):
        house.tick(now(house))
    house.source.stands = Offsets({0: 5})
    assert house.tick(now(house))
    house.check()


def test_a_table_made_later_gets_all_that_was_bound_before(house: House) -> None:
    events, tenths = house.machine.feeds
    house.machine.set_feeds([events])
    house.source.produce(p0=25)
    at = now(house)
    house.tick(at)
    house.source.produce(p0=25)
    house.tick(at + 100)
    created = house.machine.promised
    shard = house.environment.create_shard("later", tenths.shard.desc, since=created)
    house.machine.set_feeds([events, machine_module.TableFeed(1, shard, created)])
    while house.tick(at + 100):
        pass
    house.source.produce(p0=25)
    assert house.tick(house.machine.promised + 100)
    found = house.updates(1)
    assert [row for row, _, _ in found] == sorted([(f"0/{n}",) for n in range(0, 75, 10)], key=str)
    assert {time for row, time, _ in found if int(str(row[0]).split("/")[1]) < 50} == {created}


def test_a_table_that_cannot_begin_where_its_source_does_has_that_as_its_error(house: House) -> None:
    events, tenths = house.machine.feeds
    house.machine.set_feeds([events])
    house.source.produce(p0=25)
    at = now(house)
    house.tick(at)
    created = house.machine.promised
    shard = house.environment.create_shard("later", tenths.shard.desc, since=created)
    house.machine.set_feeds([events, machine_module.TableFeed(1, shard, created)])
    failure = UnitFailure.of(Forgotten("the first ones are gone", detail="It has those from 5."))
    assert house.machine.bind(at) is not None
    unit = house.machine.unit(1, 60.0)
    facts = house.machine.instead(unit, failure)
    assert facts is not None
    house.machine.commit(unit, facts)
    assert house.machine.pending == ()
    with shard.snapshot(created) as snapshot:
        (row,) = snapshot.read().to_pylist()
    assert row["mz_error"] == (
        "Source error: the table cannot begin where its source does: the first ones are gone "
        "(It has those from 5)"
    )
    # Both go on.
    house.source.produce(p0=5)
    assert house.tick(house.machine.promised + 100)
    assert len(house.updates(0)) == 30
    assert ("0/20",) not in [row for row, _, _ in house.updates(1)]
    # What any other binding lacks is the source's own trouble.
    house.source.produce(p0=5)
    assert house.machine.bind(house.machine.promised + 100) is not None
    unit = house.machine.unit(1, 60.0)
    assert house.machine.instead(unit, failure) is None
    house.machine.abandon(unit)


def test_nothing_more_is_bound_at_the_first_time_of_a_later_table(house: House) -> None:
    """The table was made at the very millisecond of a boundary, before that boundary was bound."""
    events, tenths = house.machine.feeds
    house.machine.set_feeds([events])
    house.source.produce(p0=25)
    at = house.machine.promised // 100 * 100 + 100
    house.tick(at)
    created = at + 100
    shard = house.environment.create_shard("later", tenths.shard.desc, since=created)
    house.machine.set_feeds([events, machine_module.TableFeed(1, shard, created)])
    assert house.tick(created)
    house.source.produce(p0=25)
    while house.tick(created + 1) or house.tick(created + 250):
        pass
    assert [row for row, _, _ in house.updates(1)] == [(f"0/{n}",) for n in range(0, 50, 10)]


def test_what_is_readable_while_a_binding_is_made(house: House) -> None:
    """Another thread asks. The binding is made just after it saw that nothing was pending."""
    assert not house.tick(now(house))
    house.source.produce(p0=1)
    at = house.machine.promised + 100

    class Bound(SourceMachine):
        @property
        def promised(self) -> int:
            if not self.pending and not binding:
                binding.append(True)
                assert self.bind(at) is not None
            return self.__dict__["promised"]

        @promised.setter
        def promised(self, to: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
            self.__dict__["promised"] = to

    binding: list[bool] = []
    house.machine.__class__ = Bound
    readable = house.machine.readable
    assert binding
    assert readable <= house.machine.pending[0].binding.time


def test_what_is_complete_while_a_commit_ends(house: House) -> None:
    """Another thread asks for a table with two bindings to get, of which it has the first: that one ceases to
    be pending just after the other thread saw it."""

    class Asked(str):
        """A shard's id. The work is done when it is looked for there."""

        __slots__ = ()

        def __hash__(self) -> int:
            asked.append(True)
            if len(asked) == 2:
                assert house.tick(at)
            return super().__hash__()

    asked: list[bool] = []
    _, tenths = house.machine.feeds
    house.machine.set_feeds([])
    house.source.produce(p0=5)
    assert house.tick(now(house))
    created = house.machine.promised
    shard = house.environment.create_shard("later", tenths.shard.desc, since=created)
    house.source.produce(p0=15)
    at = created + 1000
    assert house.tick(at)
    house.machine.set_feeds([machine_module.TableFeed(1, shard, created)])
    # The new table reads all of it again.
    house.source.kept = Offsets()
    first, second = house.machine.pending
    assert house.machine.complete("later") == first.binding.time
    failpoints.arm("tick.between_commits=error")
    with pytest.raises(failpoints.FailpointError):
        house.tick(at)
    assert house.machine.complete(Asked("later")) == second.binding.time
    assert house.machine.pending == (second,)


def test_tables_that_go_before_they_were_ever_readable(tmp_path: Path) -> None:
    house = House(tmp_path / "data", limits=ReadLimits(records=10))
    house.source.produce(p0=25)
    at = now(house) + 1000
    assert house.tick(at)
    assert not house.machine.hydrated
    house.machine.set_feeds([])
    while house.tick(at):
        pass
    assert house.machine.ingested == house.source.stands
    house.machine.allow_compaction(at)
    house.close()


def test_the_source_is_told_what_no_crash_reads_again(house: House) -> None:
    """An output without rows is not written with every tick, so a crash reads its share again."""
    at = now(house) // 100 * 100 + 200
    house.source.produce(p0=5)
    assert house.tick(at)
    assert house.source.kept == Offsets({0: 5})
    for n in range(1, 4):
        house.source.produce(p0=1)
        assert house.tick(at + 100 * n)
        # The tenths have nothing.
        assert house.source.kept == Offsets({0: 5})
    house.close()
    house.open()
    assert house.machine.pending[0].binding.lower == house.source.kept
    while house.machine.pending:
        house.tick(at + 400)
    house.source.produce(p0=1)
    assert house.tick(at + 400 + machine_module.IDLE_APPEND_MS)
    assert house.source.kept == house.machine.ingested == Offsets({0: 9})


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(tmp_path: Path, step: str) -> None:
    house = House(tmp_path / "data")
    house.source.produce(p0=15, p1=3)
    house.tick(now(house))
    house.source.produce(p0=20, p2=10)
    failpoints.arm(f"{step}=error")
    with pytest.raises((failpoints.FailpointError, TidemillError)):
        house.tick(now(house) + 100)
    failpoints.arm("")
    house.close()
    house.open()
    # More has come meanwhile; what was bound before the crash stays as it was.
    before = house.bindings()
    house.source.produce(p0=5)
    while house.tick(max(now(house), house.machine.promised) + 100):
        pass
    assert house.bindings()[: len(before)] == before
    assert house.machine.ingested == house.source.stands
    house.check()
    house.close()


# Faults of the store that a machine has to live with, in this process and the next.
STORE_FAULTS = [Fault.FAILED, Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.ECHO]


class Rounds:
    """A long history of one source with faults in it. After each round what was readable before must be what
    it was; at the end every record is there once, at its time."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        self.flaky = FlakyBlobs(open_blobs(str(folder)))

        def flaky(url: str, options: Mapping[str, str] | None = None) -> Blobs:
            return self.flaky

        monkeypatch.setattr(environment_module, "open_blobs", flaky)
        self.house = House(folder, limits=ReadLimits(records=40))
        self.closed: dict[tuple[int, int], list[object]] = {}
        self.bound: list[tuple[int, Offsets]] = []

    def one(self) -> None:
        house, dice = self.house, self.dice
        house.source.produce(p0=dice.randrange(30), p1=dice.randrange(4))
        stands = house.source.stands
        fault = dice.choice(["step", "step", "step", "store", "back", "down", "none"])
        step = dice.choice(STEPS) if fault == "step" else ""
        if step:
            failpoints.arm(f"{step}=error@{dice.randrange(1, 4)}")
        if fault == "store":
            self.flaky.faults = [dice.choice(STORE_FAULTS) for _ in range(dice.randrange(1, 4))]
        if fault == "back":
            house.source.stands = Offsets({0: stands[0] // 2})
        if fault == "down":
            house.source.error = UpstreamError("the upstream is down")
        try:
            house.tick(max(now(house), house.machine.promised) + dice.randrange(150))
        except (failpoints.FailpointError, TidemillError):
            # Either the process goes on, or another one takes over. Right behind a binding nothing can fail
            # but the process.
            self._mend(stands)
            if step == "tick.bound" or dice.random() < 0.5:
                house.close()
                house.open()
        self._mend(stands)
        self.check()

    def _mend(self, stands: Offsets) -> None:
        failpoints.arm("")
        self.flaky.faults = []
        self.house.source.stands, self.house.source.error = stands, None

    def check(self) -> None:
        bindings = self.house.bindings()
        assert bindings[: len(self.bound)] == self.bound
        self.bound = bindings
        for output in range(2):
            rows = [u for u in self.house.updates(output) if u[1] < self.house.machine.readable]
            for time in {t for _, t, _ in rows}:
                at_time: list[object] = [u for u in rows if u[1] == time]
                assert self.closed.setdefault((output, time), at_time) == at_time

    def end(self) -> None:
        house = self.house
        while house.tick(max(now(house), house.machine.promised) + 100):
            pass
        assert house.machine.ingested == house.source.stands
        house.check()
        house.close()


@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_rounds_with_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps fail, the store fails or does not say whether it did, the upstream goes back or away; sometimes
    the process goes with it."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        rounds = Rounds(seed, Path(folder) / "data", monkeypatch)
        for _ in range(100):
            rounds.one()
        rounds.end()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 120))
def test_thousands_of_rounds_with_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        rounds = Rounds(seed, Path(folder) / "data", monkeypatch)
        for _ in range(500):
            rounds.one()
        rounds.end()


@pytest.mark.parametrize(("names", "key"), [(("k", "mz_key"), "k"), (("mz_key", "v"), "mz_key")])
def test_a_column_may_be_called_as_a_hidden_one_is(tmp_path: Path, names: tuple[str, str], key: str) -> None:
    """INCLUDE OFFSET AS mz_key: the key must not become that column's."""
    desc = RelationDesc(tuple(Column(n, TEXT) for n in names), (Column(KEY_SLOT_COLUMN, BYTEA),))
    source = ScriptedSource()
    source.outputs = (OutputDefinition("rows", desc, (key, KEY_SLOT_COLUMN)),)
    house = House(tmp_path / "data", source)
    try:
        source.produce(p0=1)
        assert house.machine.bind(now(house)) is not None
        unit = house.machine.unit(1, 60.0)
        (target,) = unit.targets
        assert target is not None and target.upsert is not None
        physical = {"k": "k", "mz_key": "%mz_key"}[key]
        assert target.upsert.key == (physical, KEY_SLOT_COLUMN)
        house.machine.abandon(unit)
    finally:
        house.close()
