"""SQL tables in a few lines of Python, and what makes a concurrent history strictly serializable.

A table is a multiset of rows (k, v, tag); `tag` is the number of the transaction that wrote the row. Every
transaction has a time on the one clock: a write's is found in the shards afterwards, a read says its own. So
no order has to be searched for: the times are the order, and `check` asks whether it explains what clients
saw and does not contradict what they knew. It knows nothing of SQL or the server: planted bugs can test it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

Row = tuple[int, int, int]  # k, v, tag
State = dict[str, Counter[Row]]
TABLES = ("a", "b")


class Anomaly(AssertionError):
    """The history is not strictly serializable."""


@dataclass(frozen=True)
class Insert:
    table: str
    rows: tuple[tuple[int, int], ...]  # k, v


@dataclass(frozen=True)
class Update:
    """SET v = v + d WHERE k = k."""

    table: str
    k: int
    d: int


@dataclass(frozen=True)
class Delete:
    table: str
    k: int


@dataclass(frozen=True)
class Copy:
    """INSERT INTO table SELECT k, v + d FROM source WHERE k = k."""

    table: str
    source: str
    k: int
    d: int


Op = Insert | Update | Delete | Copy


def run(state: State, op: Op, tag: int) -> tuple[Counter[Row], int]:
    """How the statement changes its table, and the number of rows it says it touched."""
    if isinstance(op, Insert):
        return Counter((k, v, tag) for k, v in op.rows), len(op.rows)
    source = op.source if isinstance(op, Copy) else op.table
    matched = Counter({row: n for row, n in state[source].items() if row[0] == op.k})
    change: Counter[Row] = Counter()
    for row, n in matched.items():
        if not isinstance(op, Copy):
            change[row] -= n
        if not isinstance(op, Delete):
            change[(row[0], row[1] + op.d, tag)] += n
    return change, matched.total()


def add(state: State, table: str, change: Counter[Row]) -> State:
    changed = Counter(state[table])
    changed.update(change)  # keeps negative counts, unlike +
    return {**state, table: Counter({row: n for row, n in changed.items() if n})}


@dataclass
class Write:
    """A transaction that wrote, with what its client saw. `time` is None when it left no trace. One whose
    outcome is unknown was not answered: it has as many counts as came, and no end."""

    id: int
    ops: tuple[Op, ...]
    counts: tuple[int, ...]
    began: float
    ended: float
    outcome: str  # ack | failed | unknown
    time: int | None = None

    @property
    def reads(self) -> set[str]:
        return {
            op.source if isinstance(op, Copy) else op.table for op in self.ops if not isinstance(op, Insert)
        }

    def effect(self, state: State) -> tuple[State, tuple[int, ...]]:
        """The state after it, and its counts; each statement sees those before it."""
        counts: list[int] = []
        for op in self.ops:
            change, count = run(state, op, self.id)
            counts.append(count)
            state = add(state, op.table, change)
        return state, tuple(counts)


@dataclass
class Read:
    """What a client saw at `time`. One AS OF an earlier time is not bound to real time."""

    time: int
    seen: Mapping[str, Counter[Row]]
    began: float
    ended: float
    as_of: bool = False


@dataclass
class History:
    writes: list[Write] = field(default_factory=list[Write])
    reads: list[Read] = field(default_factory=list[Read])


def check(history: History) -> None:
    """Raises `Anomaly`."""
    for write in history.writes:
        if write.outcome == "failed" and write.time is not None:
            raise Anomaly(f"transaction {write.id} failed and is there, at {write.time}")
        if write.outcome == "ack" and write.time is None and sum(write.counts):
            raise Anomaly(f"transaction {write.id} was acknowledged and is not there")
    states = _fold([w for w in history.writes if w.time is not None])
    for read in history.reads:
        expected = _at(states, read.time)
        for table, rows in read.seen.items():
            if rows != expected[table]:
                raise Anomaly(f"a read of {table} at {read.time} saw {rows}, it held {expected[table]}")
    _real_time(history)
    for write in history.writes:
        if write.time is None and write.outcome == "ack":
            _touched_nothing(write, history, states)


def _fold(writes: Sequence[Write]) -> list[tuple[int, State]]:
    """The states in the order of times, each from its time on. Transactions of one time were committed
    together: each read the state before it, and there is an order of them in which none misses another."""
    state: State = {table: Counter() for table in TABLES}
    states = [(-1, state)]
    for time in sorted({w.time for w in writes if w.time is not None}):
        group = [w for w in writes if w.time == time]
        before = state
        changed: dict[int, set[str]] = {}
        for write in group:
            after, counts = write.effect(before)
            if counts[: len(write.counts)] != write.counts:
                raise Anomaly(f"transaction {write.id} at {time} touched {write.counts} rows, not {counts}")
            changed[write.id] = {table for table in TABLES if after[table] != before[table]}
            for table in changed[write.id]:
                change = Counter(after[table])
                change.subtract(before[table])
                state = add(state, table, change)
        if any(n < 0 for rows in state.values() for n in rows.values()):
            raise Anomaly(f"at {time} rows are retracted that are not there: two transactions took the same")
        _serial(group, changed)
        states.append((time, state))
    return states


def _serial(group: Sequence[Write], changed: Mapping[int, set[str]]) -> None:
    """Who read a table comes before who changed it."""
    after = {w.id: {r.id for r in group if r is not w and r.reads & changed[w.id]} for w in group}
    try:
        TopologicalSorter(after).prepare()
    except CycleError as e:
        raise Anomaly(f"the transactions {e.args[1]} missed each other") from None


def _at(states: Sequence[tuple[int, State]], time: int) -> State:
    return [state for at, state in states if at <= time][-1]


def _real_time(history: History) -> None:
    """Whoever began after an answer comes after it: reads at or after, writes strictly after."""
    points = [(w.time, w.began, w.ended, True) for w in history.writes if w.time is not None]
    points += [(r.time, r.began, r.ended, False) for r in history.reads if not r.as_of]
    for time, _, ended, wrote in points:
        for later, began, _, writes in points:
            if began > ended and (later < time or (later == time and writes)):
                what = "write" if wrote else "read"
                raise Anomaly(f"a {what} at {time} was answered before one began that is at {later}")


def _touched_nothing(write: Write, history: History, states: Sequence[tuple[int, State]]) -> None:
    """It says that there was nothing for it to do: so it was at some moment while it ran."""
    points = [(w.time, w.began, w.ended) for w in history.writes if w.time is not None]
    floor = max((time for time, _, ended in points if ended < write.began), default=-1)
    ceiling = min((time for time, began, _ in points if began > write.ended), default=1 << 63)
    possible = [_at(states, floor), *(state for at, state in states if floor < at < ceiling)]
    if all(sum(write.effect(state)[1]) for state in possible):
        raise Anomaly(f"transaction {write.id} touched nothing, but there was always something to touch")


def _rows(*of: Row) -> Counter[Row]:
    return Counter(of)


def good() -> History:
    """A history that is right, to break: five transactions, two of them committed together, and what readers
    saw."""
    none: Counter[Row] = Counter()
    return History(
        [
            Write(1, (Insert("a", ((0, 5), (0, 5))), Insert("b", ((1, 1),))), (2, 1), 0.0, 1.0, "ack", 10),
            Write(2, (Update("a", 0, 1), Update("a", 0, 1)), (2, 2), 2.0, 4.0, "ack", 20),
            Write(3, (Insert("b", ((2, 2),)),), (1,), 2.5, 4.5, "ack", 20),
            Write(4, (Delete("a", 0),), (2,), 3.0, 3.5, "failed", None),
            Write(5, (Copy("b", "a", 0, 3),), (2,), 5.0, 6.0, "ack", 30),
            Write(6, (Update("a", 2, 1),), (0,), 5.0, 6.0, "ack", None),
        ],
        [
            Read(5, {"a": none, "b": none}, 0.1, 0.2),
            Read(15, {"a": _rows((0, 5, 1), (0, 5, 1)), "b": _rows((1, 1, 1))}, 1.5, 1.6),
            Read(20, {"a": _rows((0, 7, 2), (0, 7, 2)), "b": _rows((1, 1, 1), (2, 2, 3))}, 4.6, 4.7),
            Read(15, {"a": _rows((0, 5, 1), (0, 5, 1))}, 7.0, 7.5, as_of=True),
            Read(40, {"b": _rows((1, 1, 1), (2, 2, 3), (0, 10, 5), (0, 10, 5))}, 7.0, 7.5),
        ],
    )
