"""The cuts shard: the decisions about the tables of a transaction topic, as facts.

Promises: a decision is durable before `decide` returns, and its time is after every earlier one. The facts of
a time are where the tables and the topic's log stand; decisions that a table has not bound yet are kept with
their times.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill import failpoints
from tidemill.catalog.items import ItemId
from tidemill.ingest.fact_shard import FactUpdate, fact_history, fact_updates, facts_of
from tidemill.persist.environment import Environment
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard
from tidemill.reclock.transactions.announced import Finished
from tidemill.sources.offsets import Offsets, PartitionKey

FP_BEFORE_CUT = failpoints.register("tick.before_cut", "a cut is known, the decision is not written")
FP_CUT_PUT = failpoints.register("tick.cut_put", "a decision is durable, its writer does not know")
FP_CUT = failpoints.register("tick.cut", "a decision is durable, no table is bound")

# The names of facts.
_LOG = "log"
_TABLE = "table "
_GIVEN_UP = "given up "


@dataclass(frozen=True, slots=True)
class TableCut:
    """Where a table stands. `joined`: from then on the others wait for its changes."""

    offsets: Offsets
    joined: bool


@dataclass(frozen=True, slots=True)
class DecidedBinding:
    """At `time` a table is bound up to `upper`."""

    time: int
    upper: Offsets


@dataclass(frozen=True, slots=True)
class CutFacts:
    """What is known behind a cut. `given_up`: transactions that were given up, and when that was taken up."""

    finished: Finished
    tables: Mapping[ItemId, TableCut] = field(default_factory=dict[ItemId, TableCut])
    given_up: Mapping[str, int] = field(default_factory=dict[str, int])


class CutsShard:
    """Not thread-safe."""

    def __init__(self, environment: Environment, shard_id: str, start: int) -> None:
        """Everything before `start` in the topic is not read."""
        self._environment = environment
        self._shard: Shard = environment.open_shard(shard_id)
        history = fact_history(self._shard, self.upper)
        self._facts = facts_of(history)
        self.latest = _facts(self._facts, start)
        # The decisions that the shard still has, in order.
        self.decisions = _decisions(history)

    @property
    def id(self) -> str:
        return self._shard.id

    @property
    def upper(self) -> int:
        """No decision was or will be made before it that is not there."""
        return upper_of(self._shard)

    def decide(self, facts: CutFacts, at: int) -> None:
        """Raises a commit's outcomes; when it raises, nothing was decided."""
        after = _texts(facts)
        updates = fact_updates(self._facts, after, at)
        if updates is None:
            return
        failpoints.hit(FP_BEFORE_CUT)
        job = self._environment.begin_job()
        try:
            part = self._shard.write_part(updates, job=job)
            append_settled(self._shard, part, self.upper, at + 1, after_put=FP_CUT_PUT)
        finally:
            self._environment.end_job(job)
        self._facts, self.latest = after, facts
        failpoints.hit(FP_CUT)

    def allow_compaction(self, to: int, step: int) -> None:
        """No table needs decisions before `to`."""
        if to - self._shard.since >= step:
            self._shard.downgrade_since(to)


def _decisions(history: Iterable[FactUpdate]) -> dict[ItemId, deque[DecidedBinding]]:
    found: dict[ItemId, deque[DecidedBinding]] = {}
    for update in history:
        if update.item.startswith(_TABLE) and update.diff > 0:
            cut = _table_cut(update.value)
            table = update.item.removeprefix(_TABLE)
            found.setdefault(table, deque()).append(DecidedBinding(update.time, cut.offsets))
    return found


def _texts(facts: CutFacts) -> dict[str, str]:
    finished = facts.finished
    log = {
        "resume": finished.resume,
        "last": finished.last,
        "highest": dict(finished.highest),
        "interrupted": dict(finished.interrupted),
    }
    tables = {
        f"{_TABLE}{table}": {"joined": cut.joined, "offsets": {str(p): n for p, n in cut.offsets.items()}}
        for table, cut in facts.tables.items()
    }
    given_up = {f"{_GIVEN_UP}{name}": at for name, at in facts.given_up.items()}
    said: dict[str, Any] = {_LOG: log, **tables, **given_up}
    return {name: json.dumps(value, sort_keys=True) for name, value in said.items()}


def _facts(texts: Mapping[str, str], start: int) -> CutFacts:
    finished = Finished(start)
    if _LOG in texts:
        log = json.loads(texts[_LOG])
        last = None if log["last"] is None else (str(log["last"][0]), int(log["last"][1]))
        finished = Finished(log["resume"], last, log["highest"], log["interrupted"])
    tables = {n.removeprefix(_TABLE): _table_cut(v) for n, v in texts.items() if n.startswith(_TABLE)}
    given_up = {
        n.removeprefix(_GIVEN_UP): int(json.loads(v)) for n, v in texts.items() if n.startswith(_GIVEN_UP)
    }
    return CutFacts(finished, tables, given_up)


def _table_cut(text: str) -> TableCut:
    said = json.loads(text)
    offsets: dict[PartitionKey, int] = {int(p): n for p, n in said["offsets"].items()}
    return TableCut(Offsets(offsets), said["joined"])
