"""The stages of a bound query as a follower runs them: their inputs, and their evaluation by Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from tidemill.query.stage_queue import StageQueue
from tidemill.sql.bind.incremental import SUMS, KeyedStage
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.subscribe.key_local_changes import KeyedInput, KeyIndex, RunningStage
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

# The index of a source (a placeholder or a stage's name) by these columns of it.
OpenIndex = Callable[[str, tuple[str, ...], pa.Schema], KeyIndex]
# The answer of a stage at a time, each row once with its count.
Whole = Callable[[KeyedStage, int], pa.Table]


def running_stages(
    queue: StageQueue,
    stages: Sequence[KeyedStage],
    relations: Mapping[str, pa.Schema],
    open_index: OpenIndex,
    whole: Whole,
) -> list[RunningStage]:
    """`relations`: the columns that the query uses of each, by placeholder."""
    schemas = dict(relations)
    made: list[RunningStage] = []
    opened: list[KeyIndex] = []
    try:
        for keyed in stages:
            inputs: list[KeyedInput] = []
            for each in keyed.stage.inputs:
                schema = schemas[each.source]
                loose = each.loose or bool(keyed.stage.sums)
                index = None if loose else open_index(each.source, each.key, schema)
                if index is not None:
                    opened.append(index)
                inputs.append(KeyedInput(each.name, each.source, schema, each.key, index, each.single))
            columns = pa.schema(list(keyed.schema)[:-1])
            schemas[keyed.stage.name] = columns
            sums = None
            if keyed.stage.sums:
                groups = keyed.stage.groups
                index = open_index(keyed.stage.name, groups, columns)
                opened.append(index)
                sums = KeyedInput(SUMS, keyed.stage.name, columns, groups, index)
            recalled = None
            if keyed.stage.recalled:
                name, key = keyed.stage.name, keyed.stage.recalled
                recalled = KeyedInput("", name, columns, key, open_index(name, key, columns))
                if recalled.index is not None:
                    opened.append(recalled.index)
                if any(i.index is None for i in inputs):
                    raise NotIncremental("an input without a key")
            _check_keys([*inputs, *(i for i in (sums, recalled) if i is not None)])
            stamps = [pa.field(TIME_COLUMN, pa.int64()), pa.field(DIFF_COLUMN, pa.int64())]
            made.append(
                RunningStage(
                    keyed.stage.name,
                    tuple(inputs),
                    keyed.stage.linear,
                    partial(_evaluate, queue, keyed),
                    partial(whole, keyed),
                    tuple(columns.names),
                    pa.schema([*columns, *stamps]).empty_table(),
                    sums,
                    recalled,
                )
            )
    except BaseException:
        for index in opened:
            index.close()
        raise
    return made


def _check_keys(inputs: Sequence[KeyedInput]) -> None:
    """Equal keys have equal hashes only in one form."""
    forms = {tuple(i.schema.field(name).type for name in i.key) for i in inputs if i.key}
    if len(forms) > 1:
        raise NotIncremental("keys that lie in several forms")


def _evaluate(queue: StageQueue, keyed: KeyedStage, tables: Mapping[str, pa.Table]) -> pa.Table:
    alike = not keyed.stage.sums
    return queue.evaluate(
        keyed.text, tables, keyed.schema, of=id(keyed), row_by_row=keyed.row_by_row, alike=alike
    )
