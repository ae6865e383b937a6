"""The description of one subscription's rows.

The engine makes a `Spec` with `resolve.spec_for` when it plans the statement, sends the client its
`output_columns`, and passes it to `shape` with every batch. A spec is a plain value: two subscriptions to the
same relation with equal specs can share one computation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import BOOL, INT8, MZ_TIMESTAMP, TEXT, Column

PROGRESSED_COLUMN = "mz_progressed"
STATE_COLUMN = "mz_state"
BEFORE = "before_"
AFTER = "after_"


class OutputShape(Enum):
    """How updates become rows. The value is the name in counters and in the switch that allows it."""

    PLAIN = "plain"
    WITHIN_TIMESTAMP = "within_timestamp_order_by"
    UPSERT = "envelope_upsert"
    DEBEZIUM = "envelope_debezium"

    @property
    def switch(self) -> str | None:
        """The system parameter that allows this output; None = always allowed."""
        return None if self is OutputShape.PLAIN else f"enable_{self.value}_in_subscribe"


@dataclass(frozen=True, slots=True)
class SortItem:
    """One item of WITHIN TIMESTAMP ORDER BY."""

    position: int | None  # among the relation's columns; None = mz_diff
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    columns: tuple[Column, ...]  # of the relation or query
    output: OutputShape = OutputShape.PLAIN
    keys: tuple[int, ...] = ()  # positions of the key's columns, in KEY order; of the envelopes
    order: tuple[SortItem, ...] = ()  # of WITHIN TIMESTAMP
    progress: bool = False  # whether there are progress rows, and the column that marks them
    underscore: bool = False  # write `key_violation`, as the upstream product does

    @property
    def values(self) -> tuple[int, ...]:
        """Positions of the columns that are not of the key, in the relation's order."""
        return tuple(i for i in range(len(self.columns)) if i not in self.keys)

    @property
    def output_columns(self) -> tuple[Column, ...]:
        """The columns of the rows. Names may repeat: a relation may itself have a column `mz_state`."""
        head = [Column(TIME_COLUMN, MZ_TIMESTAMP, nullable=False)]
        if self.progress:
            head.append(Column(PROGRESSED_COLUMN, BOOL, nullable=False))
        body = self._body()
        if self.progress:  # a progress row has NULL in all of them
            body = [replace(c, nullable=True) for c in body]
        return (*head, *body)

    def _body(self) -> list[Column]:
        if self.output in (OutputShape.PLAIN, OutputShape.WITHIN_TIMESTAMP):
            return [Column(DIFF_COLUMN, INT8, nullable=False), *self.columns]
        state = Column(STATE_COLUMN, TEXT, nullable=False)
        keys = [self.columns[i] for i in self.keys]
        # A deleted key and a violated one have no values, even where the relation declares NOT NULL.
        values = [replace(self.columns[i], nullable=True) for i in self.values]
        if self.output is OutputShape.UPSERT:
            return [state, *keys, *values]
        before = [replace(c, name=BEFORE + c.name) for c in values]
        after = [replace(c, name=AFTER + c.name) for c in values]
        return [state, *keys, *before, *after]
