"""Kills a process in the middle of a catalog change that brings rows along, at every step, and looks at what
is left: CREATE TABLE AS, ADD COLUMN ... DEFAULT, and secrets with their texts, happen whole or not at all.

A script, run by `test_catalog_crash.py`: it stays free of threads and forks a child for each life, so that
one costs tens of milliseconds. The first life of a change counts the hits of every failpoint; then each hit
kills one.

    catalog_crash.py FOLDER

Prints one line of JSON: change -> failpoint -> how often it killed. Raises when something is half there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.connection_ops import AlterSecretOp, CreateSecretOp
from tidemill.catalog.items import Table
from tidemill.catalog.ops import AddColumnOp, CreateTableOp
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.persist.environment import Environment
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import INT4, TEXT, Column, RelationDesc
from tidemill.types.names import physical_names

NARROW = RelationDesc((Column("a", INT4),))
WIDE = RelationDesc((*NARROW.columns, Column("b", TEXT, nullable=False)))
VALUES = [1, 1, 2, 3]
NEVER = 1_000_000

Rows = Counter[tuple[object, ...]]
Change = Callable[[Catalog, Table, str], None]


def updates(columns: Mapping[str, pa.Array], diff: int = 1) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({**columns, DIFF_COLUMN: pa.array([diff] * rows, pa.int64())})


def narrow(diff: int = 1) -> pa.Table:
    return updates({"a": pa.array(VALUES, pa.int32())}, diff)


def wide(value: str | None, diff: int = 1) -> pa.Table:
    b = pa.array([value] * len(VALUES), pa.string())
    return updates({"a": pa.array(VALUES, pa.int32()), "b": b}, diff)


def create(catalog: Catalog, base: Table, _folder: str) -> None:
    catalog.transact([CreateTableOp(base.schema, "made", WIDE)], contents=wide("x"))


def widen(catalog: Catalog, base: Table, _folder: str) -> None:
    contents = pa.concat_tables([wide(None, -1), wide("x")])
    catalog.transact([AddColumnOp(base.id, WIDE.columns[1], "'x'")], contents=contents, unaltered=base)


def widen_only(catalog: Catalog, base: Table, _folder: str) -> None:
    catalog.transact([AddColumnOp(base.id, Column("b", TEXT))])


def secrets(catalog: Catalog, base: Table, folder: str) -> None:
    """A secret, and then another text for it."""
    store = SecretStore(Path(folder) / "data" / "secrets")
    catalog.on_change(store.follow)

    def before(old: CatalogState, new: CatalogState) -> None:
        for secret in new.secrets():
            if old.items.get(secret.id) != secret:
                store.write(secret, f"{secret.name} {secret.version}")

    catalog.transact([CreateSecretOp(base.schema, "s")], before=before)
    catalog.transact([AlterSecretOp(catalog.state.secrets()[0].id)], before=before)


CHANGES: dict[str, Change] = {
    "create": create,
    "widen": widen,
    "widen_only": widen_only,
    "secrets": secrets,
}


def find(catalog: Catalog, name: str) -> Table | None:
    return next((t for t in catalog.state.tables() if t.name == name), None)


def read(env: Environment, table: Table, at: int) -> Rows:
    shard = env.open_shard(table.shard)
    assert shard.desc.names == table.desc.names, f"{table.desc.names} over {shard.desc.names}"
    env.txns.apply_until(shard.id, at)
    with shard.snapshot(at, readable=at + 1) as snapshot:
        found = snapshot.read().select([*physical_names(shard.desc), DIFF_COLUMN])
    rows: Rows = Counter()
    for *row, diff in zip(*(c.to_pylist() for c in found.columns), strict=True):
        rows[tuple(row)] += diff
    assert min(rows.values(), default=1) > 0, f"a negative count: {rows}"
    return rows


def prepare(folder: str) -> None:
    env = Environment.open(f"{folder}/data")
    catalog = Catalog.open(env)
    public = catalog.state.resolve_schema(["public"], "materialize").id
    catalog.transact([CreateTableOp(public, "base", NARROW)])
    base = find(catalog, "base")
    assert base is not None
    env.txns.commit({base.shard: narrow()}).result()
    with open(f"{folder}/before", "w") as file:
        file.write(str(env.oracle.read_ts()))
    env.close()


def attempt(folder: str, change: str, spec: str | None) -> None:
    """Without `spec` it counts."""
    env = Environment.open(f"{folder}/data")
    catalog = Catalog.open(env)
    base = find(catalog, "base")
    assert base is not None
    # What the last life left to be applied is no part of the change.
    env.open_shard(base.shard)
    failpoints.arm(spec or ";".join(f"{name}=kill@{NEVER}" for name in failpoints.NAMES))
    CHANGES[change](catalog, base, folder)
    armed = failpoints._armed  # pyright: ignore[reportPrivateUsage]
    with open(f"{folder}/acknowledged", "w") as file:
        json.dump({name: NEVER - a.left for name, a in armed.items() if a.left < NEVER}, file)


def check(folder: str, change: str) -> None:
    """After the death; and the table is as good as any: it can be written and altered."""
    done = os.path.exists(f"{folder}/acknowledged")
    env = Environment.open(f"{folder}/data")
    catalog = Catalog.open(env)
    base = find(catalog, "base")
    assert base is not None
    made = find(catalog, "made")
    now = env.oracle.read_ts()
    filled: Rows = Counter((a, "x") for a in VALUES)
    empty: Rows = Counter((a,) for a in VALUES)
    if change == "secrets":
        store = SecretStore(Path(folder) / "data" / "secrets")
        store.sweep(catalog.state)
        found = catalog.state.secrets()
        assert len(found) == 1 or not done, "an acknowledged secret is gone"
        for secret in found:
            assert store.read(secret) == f"{secret.name} {secret.version}"
        left = os.listdir(f"{folder}/data/secrets") if os.path.isdir(f"{folder}/data/secrets") else []
        assert sorted(left) == sorted(f"{s.id}-{s.version}" for s in found), left
    elif change == "create":
        assert made is not None or not done, "an acknowledged table is gone"
        if made is not None:
            assert read(env, made, now) == filled
            env.txns.commit({made.shard: wide("y")}).result()
            assert read(env, made, env.oracle.read_ts()) == filled + Counter((a, "y") for a in VALUES)
        assert read(env, base, now) == empty
    else:
        is_wide = len(base.desc.columns) == 2
        assert is_wide or not done, "an acknowledged column is gone"
        nulls: Rows = Counter((a, None) for a in VALUES)
        expected = (filled if change == "widen" else nulls) if is_wide else empty
        assert read(env, base, now) == expected
        with open(f"{folder}/before") as file:
            before = int(file.read())
        assert read(env, base, before) == (nulls if is_wide else empty)
        env.txns.commit({base.shard: wide("x") if is_wide else narrow()}).result()
        doubled = expected + (filled if is_wide else empty)
        assert read(env, base, env.oracle.read_ts()) == doubled
        # Of the same name and another type, if that name is free.
        name = "c" if is_wide else "b"
        catalog.transact([AddColumnOp(base.id, Column(name, INT4))])
        base = find(catalog, "base")
        assert base is not None
        assert read(env, base, env.oracle.read_ts()) == Counter(
            {(*row, None): count for row, count in doubled.items()}
        )
    env.close()
    again = Environment.open(f"{folder}/data")
    assert Catalog.open(again).state.items == catalog.state.items
    again.close()


def fork(what: Callable[[], None]) -> int:
    """The status of a child that does it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            what()
            code = 0
        finally:
            # Without waiting for threads: a life that is not killed ends here as suddenly.
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def run(home: str) -> dict[str, dict[str, int]]:
    assert fork(lambda: prepare(home)) == 0
    kills: dict[str, dict[str, int]] = defaultdict(dict)

    def life(change: str, name: str, nth: int) -> bool:
        """Whether it was killed."""
        folder = f"{home}/{change}-{name}-{nth}"
        shutil.copytree(f"{home}/data", f"{folder}/data")
        shutil.copy(f"{home}/before", folder)
        spec = f"{name}=kill@{nth}" if nth else None
        status = fork(lambda: attempt(folder, change, spec))
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"{folder}: status {status}"
        assert fork(lambda: check(folder, change)) == 0, folder
        return killed

    for change in CHANGES:
        assert not life(change, "count", 0)
        with open(f"{home}/{change}-count-0/acknowledged") as file:
            hits = json.load(file)
        for name in sorted(hits):
            if change in ("widen_only", "secrets") and not name.startswith(("catalog.", "secrets.")):
                continue  # the entries are those of `widen`
            # A hit too many belongs to another thread, such as the lease's: then the change may come through.
            kills[change][name] = sum(life(change, name, nth) for nth in range(1, hits[name] + 1))
    return kills


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
