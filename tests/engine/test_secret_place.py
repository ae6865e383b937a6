"""Where the texts of secrets go, by the settings of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.catalog.items import Secret
from tidemill.config import load
from tidemill.engine.ddl.secrets import secret_store
from tidemill.errors import Unsupported

SECRET = Secret("u3", "s", "u2", 7)


def test_in_the_data_directory(tmp_path: Path) -> None:
    secret_store(load({"data_dir": str(tmp_path)}, {}), "id").write(SECRET, "x")
    assert (tmp_path / "secrets" / "u3-7").read_text() == "x"


def test_where_the_setting_says_apart_from_other_data_directories(tmp_path: Path) -> None:
    for data_dir, environment in (("s3://bucket/a", "one"), (str(tmp_path / "data"), "two")):
        settings = load({"data_dir": data_dir, "secrets_dir": str(tmp_path / "hidden")}, {})
        secret_store(settings, environment).write(SECRET, environment)
    assert (tmp_path / "hidden" / "one" / "u3-7").read_text() == "one"
    assert (tmp_path / "hidden" / "two" / "u3-7").read_text() == "two"
    assert not (tmp_path / "data" / "secrets").exists()


def test_not_in_an_object_store() -> None:
    with pytest.raises(Unsupported) as refused:
        secret_store(load({"data_dir": "s3://bucket/a"}, {}), "id").write(SECRET, "hunter2")
    assert "--secrets-dir" in (refused.value.hint or "") and "hunter2" not in str(refused.value)
