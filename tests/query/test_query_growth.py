"""Which results pass through memory, and which are put aside on disk: decided by the text of the query."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import TidemillError
from tidemill.query import spool
from tidemill.query.result_size import Growth, growth
from tidemill.query.spool import _too_much  # pyright: ignore[reportPrivateUsage]

FROM = "FROM `tm_in_0` AS `t1`"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"SELECT `t1`.`a` AS `c0` {FROM} WHERE (`t1`.`a` > CAST(1 AS INT)) ORDER BY `c0`", Growth.NONE),
        (
            f"SELECT `t1`.`b`, COUNT(*), CAST(sum(`t1`.`a`) AS DECIMAL(38,18)) {FROM} GROUP BY `t1`.`b`",
            Growth.NONE,
        ),
        (f"SELECT 'explode(x) \\' JOIN repeat(', `repeat(x)` {FROM}", Growth.NONE),
        (f"SELECT concat(`t1`.`a`, 'x') {FROM}", Growth.ROWS),
        (f"SELECT `t1`.`a` {FROM} INNER JOIN `tm_in_0` AS `t2` ON (`t1`.`a` = `t2`.`a`)", Growth.ROWS),
        (f"SELECT explode(sequence(1, `t1`.`a`)) {FROM}", Growth.ROWS),
        ("SELECT id FROM range(CAST(1 AS BIGINT), CAST(9 AS BIGINT), CAST(1 AS BIGINT), 1)", Growth.ROWS),
        (f"SELECT repeat(`t1`.`b`, 10) {FROM}", Growth.WIDTH),
        (f"SELECT array_join(collect_list(`t1`.`b`), ',') {FROM}", Growth.WIDTH),
        (f"SELECT something_new(`t1`.`b`) {FROM}", Growth.ROWS),
    ],
)
def test_what_a_query_makes_of_its_inputs(text: str, found: Growth) -> None:
    assert growth(text, small=True) is found


def test_rows_of_many_partitions_may_meet_in_one() -> None:
    for text in (
        f"SELECT `a` {FROM} ORDER BY `a`",
        f"SELECT DISTINCT `a` {FROM}",
        "SELECT count(*) OVER (x)",
    ):
        assert growth(text, small=True) is Growth.NONE
        assert growth(text, small=False) is Growth.ROWS


def test_what_is_put_aside_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = tmp_path / "blockmgr-1" / "0a" / "rdd_7_0"
    block.parent.mkdir(parents=True)
    block.write_bytes(bytes(100))
    (block.parent / "rdd_77_0").write_bytes(bytes(100))
    monkeypatch.setattr(spool, "SPOOL_LIMIT_BYTES", 100)
    assert _too_much(tmp_path, 7) is None
    (block.parent / "rdd_7_1").write_bytes(b"x")
    found = _too_much(tmp_path, 7)
    assert isinstance(found, TidemillError) and found.sqlstate == "54000"
    monkeypatch.setattr(spool, "SPARE_BYTES", 1 << 62)
    full = _too_much(tmp_path, 1)
    assert isinstance(full, TidemillError) and full.sqlstate == "53100"
