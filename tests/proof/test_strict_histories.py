"""Strict serializability under everything that clients do at once: single statements and transactions, reads
in blocks, AS OF, at the weaker level, sessions that go away, are ended or cancelled with a commit on its way.

The history is judged by the times of the one clock (`proof_model.check`): what was acknowledged before a
transaction began is seen by it; what failed is never seen; what nobody was told of is there whole or not at
all; a time that was read once reads the same for ever. The plan is drawn from a seed; how it goes is up to
the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy

import pytest
from proof_histories import FATES, NEVER, Fate, ReadTxn, Txn, WriteTxn, play, read, tables, write
from proof_model import TABLES, Anomaly, Copy, Delete, History, Insert, Op, Update, Write, check, good

from support.server import ServerProcess

SESSIONS = 5
LENGTH = 7
# Until a statement on its way is disturbed: from before it is looked at to after it was answered.
DELAYS = (0.0, 0.0, 0.001, 0.003, 0.01, 0.03)


def operation(dice: random.Random, *, named: bool) -> Op:
    """`named`: its rows tell which transaction they are of."""
    table, k = dice.choice(TABLES), dice.randrange(3)
    makers: list[Callable[[], Op]] = [
        lambda: Insert(
            table, tuple((dice.randrange(3), dice.randrange(9)) for _ in range(dice.randint(1, 3)))
        ),
        lambda: Update(table, k, dice.randint(1, 9)),
        lambda: Copy(table, dice.choice(TABLES), k, dice.randint(1, 9)),
        lambda: Delete(table, k),
    ]
    return dice.choice(makers[:3] if named else makers)()


def writing(dice: random.Random, fate: Fate | None = None) -> WriteTxn:
    block = fate == "leave" or dice.random() < 0.5
    count = dice.randint(1, 3) if block else 1
    return WriteTxn(
        tuple(operation(dice, named=not block) for _ in range(count)),
        block,
        not block or fate is not None or dice.random() < 0.8,
        fate,
        dice.choice(DELAYS),
    )


def reading(dice: random.Random) -> ReadTxn:
    return dice.choice(
        [
            ReadTxn(),
            ReadTxn(block=True),
            ReadTxn(as_of=dice.randrange(100)),
            ReadTxn(as_of=dice.randrange(100), at_least=True),
            ReadTxn(serializable=True),
            ReadTxn(block=True, serializable=True),
        ]
    )


def plan(seed: int) -> list[list[Txn]]:
    """Each session has its share of everything, in an order of its own, and reads right after it wrote."""
    dice = random.Random(seed)
    programs: list[list[Txn]] = []
    for number in range(SESSIONS):
        txns: list[Txn] = [writing(dice), ReadTxn(), writing(dice, FATES[(seed + number) % len(FATES)])]
        txns += [writing(dice) if dice.random() < 0.5 else reading(dice) for _ in range(LENGTH - 4)]
        dice.shuffle(txns)
        programs.append([*txns, reading(dice)])
    return programs


def test_a_history(server: ServerProcess, dsn: str) -> None:
    history = play(server, dsn, plan(8))
    check(history)
    outcomes = {w.outcome for w in history.writes}
    assert {"ack", "failed", "unknown"} <= outcomes


def test_the_plan_has_everything() -> None:
    txns = [txn for program in plan(8) for txn in program]
    assert {txn.fate for txn in txns if isinstance(txn, WriteTxn)} == {None, *FATES}
    reads = [txn for txn in txns if isinstance(txn, ReadTxn)]
    assert any(r.as_of is not None for r in reads) and any(r.serializable for r in reads)
    assert any(r.block for r in reads) and any(not r.block for r in reads)
    assert any(isinstance(txn, WriteTxn) and txn.block and not txn.commit for txn in txns)


def test_commits_that_are_cut_off(server: ServerProcess, dsn: str) -> None:
    """Nothing but transactions whose client goes away with the COMMIT on its way, beside readers."""
    dice = random.Random(1)
    insert = (Insert("a", ((0, 1), (1, 1))), Insert("b", ((0, 1),)))
    cut: list[list[Txn]] = [
        [WriteTxn(insert, True, True, "cut", dice.choice(DELAYS)) for _ in range(6)] for _ in range(3)
    ]
    history = play(server, dsn, [*cut, [ReadTxn() for _ in range(4)]])
    check(history)
    assert {w.outcome for w in history.writes} == {"unknown"}
    assert len(history.writes) == 18


@pytest.mark.parametrize("serializable", [False, True])
def test_a_block_reads_at_one_time_whatever_is_written_meanwhile(
    server: ServerProcess, dsn: str, serializable: bool
) -> None:
    both = (Insert("a", ((0, 1),)), Insert("b", ((0, 1),)))
    with tables(server, dsn) as (world, reader), world.connect() as writer:
        write(world, writer, WriteTxn(both, block=True))
        # At the weaker level a block may begin before what was just written.
        read(
            world,
            reader,
            ReadTxn(block=True, serializable=serializable),
            lambda: write(world, writer, WriteTxn(both, block=True)),
        )
        read(world, reader, ReadTxn())
    assert [w.outcome for w in world.history.writes] == ["ack"] * (1 + len(TABLES))
    check(world.history)


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_histories_at_length(server: ServerProcess, dsn: str, first: int) -> None:
    for seed in range(first, first + 20):
        check(play(server, dsn, plan(seed)))


# -- the checker is checked: transactions of which nobody was told


def told_to_nobody(time: int | None, ops: tuple[Op, ...] = (Insert("b", ((1, 7),)),)) -> History:
    """A good history and one more, late, of unknown outcome."""
    history = deepcopy(good())
    history.writes.append(Write(9, ops, (), 8.0, NEVER, "unknown", time))
    return history


@pytest.mark.parametrize("time", [None, 41, 1000])
def test_either_is_right(time: int | None) -> None:
    check(told_to_nobody(time))


BUGS: dict[str, Callable[[], History]] = {
    # A read at 40, which began before, did not see it.
    "it is there before it was asked for": lambda: told_to_nobody(35),
    "it came between what others had done": lambda: told_to_nobody(25),
    "two took the same rows": lambda: told_to_nobody(30, (Delete("a", 0), Update("b", 0, 1))),
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_is_found(bug: str) -> None:
    with pytest.raises(Anomaly):
        check(BUGS[bug]())
