"""Relations with a history, and what is made of queries over them: answers at a time, and followers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from key_index import ListedIndex
from told_spans import Told, Update, updates_table

from tidemill.query.multiset import add_up, expand
from tidemill.query.read import ConstantInput
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.query.stage_queue import StageQueue
from tidemill.sql.bind import BoundQuery
from tidemill.sql.bind.incremental import KeyedStage, keyed_stages
from tidemill.subscribe.key_local import KeyLocalFollower
from tidemill.subscribe.key_local_changes import KeyIndex, RunningStage
from tidemill.subscribe.stage_query import running_stages
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.model import RelationDesc

Histories = Mapping[str, Sequence[Update]]


class StageWorld:
    def __init__(self, spark: SparkHost, descs: Mapping[str, RelationDesc], found: Histories) -> None:
        """`found`: the updates of each relation; those at 0 are there first."""
        self.spark = spark
        self.descs = descs
        self.found = found

    def at_time(self, relation: str, at: int) -> pa.Table:
        past = [u for u in self.found[relation] if u[1] <= at]
        return add_up([updates_table(past, self.descs[relation]).drop_columns([TIME_COLUMN])])

    def select(self, bound: BoundQuery, text: str, at: int) -> pa.Table:
        inputs = {p: self.input(r, at) for p, r in bound.inputs.items() if p in text}
        return collect(self.spark, text, inputs, bound.columns)

    def input(self, relation: str, at: int) -> ConstantInput:
        return ConstantInput(expand(self.at_time(relation, at), arrow_schema(self.descs[relation]).names))

    def follower(
        self, bound: BoundQuery, uppers: Sequence[int], told_from: int = 1, before: pa.Table | None = None
    ) -> KeyLocalFollower:
        """What it knows begins at 1. `before`: what was told as the answer just before."""
        stages = keyed_stages(bound)
        by_name = {s.stage.name: s for s in stages}
        used = {p: sorted(bound.used[p]) for p in bound.inputs}

        def index(from_: int, source: str, key: tuple[str, ...], schema: pa.Schema) -> KeyIndex:
            keyed = by_name.get(source)
            if keyed is not None and keyed.stage.recalled and before is not None:
                return ListedIndex(before.rename_columns([*schema.names, DIFF_COLUMN]), key, from_)
            if keyed is not None:
                return ListedIndex(whole(keyed, from_ - 1), key, from_)
            rows = self.at_time(bound.inputs[source], from_ - 1).select([*schema.names, DIFF_COLUMN])
            return ListedIndex(add_up([rows]), key, from_)

        def whole(keyed: KeyedStage, at: int) -> pa.Table:
            inputs = {p: self.input(bound.inputs[p], at) for p in keyed.reads}
            return counted(collect(self.spark, keyed.whole, inputs, keyed.columns))

        relations = {
            p: pa.schema([arrow_schema(self.descs[bound.inputs[p]]).field(n) for n in names])
            for p, names in used.items()
        }

        def open_stages(at: int) -> Sequence[RunningStage]:
            return running_stages(StageQueue(self.spark), stages, relations, partial(index, at), whole)

        inputs = {
            p: Told(self.descs[r], [u for u in self.found[r] if u[1] >= 1], uppers)
            for p, r in bound.inputs.items()
        }
        for each in inputs.values():
            each.frontier = 1
        names = [f"c{i}" for i in range(len(bound.columns))]
        return KeyLocalFollower(open_stages, inputs, used, told_from, names, begun=(1, open_stages(1)))


def counted(rows: pa.Table) -> pa.Table:
    return add_up([rows.append_column(DIFF_COLUMN, pa.array(np.ones(rows.num_rows, np.int64)))])
