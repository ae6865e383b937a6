"""CREATE SOURCE ... FROM FILES, worked out without a server: a path at which nothing is, is told of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kafka_context import World

from tidemill.catalog.ops import CreateTableOp, apply_all
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.catalog.state import CatalogState
from tidemill.engine.ddl.upstreams import Described, describe
from tidemill.errors import UndefinedObject, WrongObjectType
from tidemill.sinks.definition import FILES, Definition
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.types.model import INT4, Column, RelationDesc


def described(root: Path, path: str, more: str = "", catalog: CatalogState | None = None) -> Described:
    sql = f"CREATE SOURCE s FROM FILES '{path}' FORMAT JSON ENVELOPE MATERIALIZE {more}"
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, ast.CreateSource)
    context = replace(World().context(), files_root=str(root))
    return describe(parsed.statement, context if catalog is None else replace(context, catalog=catalog))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UndefinedObject, match='folder "mistyped" does not exist') as caught:
        described(tmp_path, "mistyped")
    assert caught.value.sqlstate == "42704" and caught.value.position is not None
    assert f"which is {tmp_path}." in str(caught.value.hint) and "VALIDATE = false" in str(caught.value.hint)
    assert described(tmp_path, "mistyped", "WITH (VALIDATE = false)").notices == ()


def test_a_folder_without_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / ".making").write_text("")
    (notice,) = described(tmp_path, "in").notices
    assert (notice.severity, notice.text) == ("NOTICE", 'folder "in" has no files yet')
    assert described(tmp_path, "in", "WITH (VALIDATE = false)").notices == ()
    (tmp_path / "in" / "sub" / "a").write_text("")
    assert described(tmp_path, "in").notices == ()


def test_a_folder_that_a_sink_of_ours_writes_to(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    desc = RelationDesc((Column("a", INT4),))
    state = apply_all(World().state, [CreateTableOp("u2", "t", desc)], time=5)
    (table,) = state.tables()
    definition = Definition(FILES, "json", path="in")
    sink = CreateSinkOp(
        "u2", "k", FILES, definition.target, definition.to_json(), "", table.id, desc, 5, True, ()
    )
    state = apply_all(state, [sink], time=6)
    assert described(tmp_path, "./in", catalog=state).notices == ()
    (tmp_path / "other").mkdir()
    assert len(described(tmp_path, "other", catalog=state).notices) == 1


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("")
    with pytest.raises(WrongObjectType, match='"in" is not a folder'):
        described(tmp_path, "in")
