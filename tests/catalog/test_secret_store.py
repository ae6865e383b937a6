"""The store of secrets: private, whole or not at all, and nothing is left of what is gone."""

from __future__ import annotations

import itertools
import logging
import stat
from pathlib import Path

import pytest

from tidemill import failpoints
from tidemill.catalog.connection_ops import AlterSecretOp, CreateSecretOp
from tidemill.catalog.items import BUILTINS, Secret
from tidemill.catalog.ops import CreateDatabaseOp, DropOp, Op, RenameOp, apply_all
from tidemill.catalog.secrets import MAX_SECRET_BYTES, SecretMissing, SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import LimitExceeded, Unavailable, Unsupported
from tidemill.persist.environment import Environment

SECRET = Secret("u3", "s", "u2", 7)


def states(*ops: Op) -> list[CatalogState]:
    """The state before any, and after each."""
    found = [apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)]
    for op in ops:
        found.append(apply_all(found[-1], [op], time=found[-1].time + 1))
    return found


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "secrets"
    folder.mkdir(parents=True, mode=0o755)
    store = SecretStore(folder)
    store.write(SECRET, "hunter2 ü")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == ("u3-7", 0o600)
    assert store.read(SECRET) == "hunter2 ü"


def test_texts_go_when_nobody_names_them(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    history = states(
        CreateSecretOp("u2", "s"),
        CreateSecretOp("u2", "t"),
        AlterSecretOp("u3"),
        RenameOp("u3", "x"),
        DropOp("u3"),
    )
    names: list[list[str]] = []
    for old, new in itertools.pairwise(history):
        for secret in new.secrets():
            if old.items.get(secret.id) != secret:
                store.write(secret, "x")
        store.follow(old, new)
        names.append(sorted(f.name for f in tmp_path.iterdir()))
    assert names == [["u3-2"], ["u3-2", "u4-3"], ["u3-4", "u4-3"], ["u3-4", "u4-3"], ["u4-3"]]


def test_what_a_crash_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    state = states(CreateSecretOp("u2", "s"))[-1]
    (secret,) = state.secrets()
    store.write(secret, "x")
    left = ["u3-9", "u9-2", ".tmp-" + "0" * 32]
    for name in [*left, "README", "u3-2.bak"]:
        (tmp_path / name).write_text("y")
    store.sweep(state)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["README", "u3-2", "u3-2.bak"]
    SecretStore(tmp_path / "missing").sweep(state)
    SecretStore(None).sweep(state)


def test_what_is_missing_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SecretMissing) as missing:
        SecretStore(tmp_path).read(SECRET)
    assert str(tmp_path / "u3-7") in (missing.value.detail or "")
    assert "ALTER SECRET" in (missing.value.hint or "")
    with pytest.raises(SecretMissing, match="no folder for secrets"):
        SecretStore(None).read(SECRET)
    with pytest.raises(Unsupported) as refused:
        SecretStore(None).write(SECRET, "x")
    assert "--secrets-dir" in (refused.value.hint or "")


def test_limits_and_failing_disks_say_nothing_of_the_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SecretStore(tmp_path)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(LimitExceeded):
        store.write(SECRET, "h" * (MAX_SECRET_BYTES + 1))
    (tmp_path / "file").write_text("")
    broken = SecretStore(tmp_path / "file" / "secrets")
    with pytest.raises(Unavailable) as failed:
        broken.write(SECRET, "hunter2")
    assert "hunter2" not in str(failed.value) and "hunter2" not in caplog.text


@pytest.mark.parametrize("failpoint", ["secrets.written", "catalog.before_put"])
def test_a_secret_is_there_with_its_text_or_not_at_all(tmp_path: Path, failpoint: str) -> None:
    environment = Environment.open(str(tmp_path / "data"))
    store = SecretStore(tmp_path / "secrets")
    try:
        catalog = Catalog.open(environment)
        catalog.on_change(store.follow)
        schema = catalog.state.resolve_schema(["public"], "materialize").id

        def before(old: CatalogState, new: CatalogState) -> None:
            for secret in new.secrets():
                if old.items.get(secret.id) != secret:
                    store.write(secret, f"text {secret.version}")

        catalog.transact([CreateSecretOp(schema, "s")], before=before)
        (first,) = catalog.state.secrets()
        for op in (AlterSecretOp(first.id), CreateSecretOp(schema, "t")):
            failpoints.arm(f"{failpoint}=error")
            with pytest.raises(failpoints.FailpointError):
                catalog.transact([op], before=before)
            failpoints.arm("")
            assert catalog.state.secrets() == [first] and store.read(first) == f"text {first.version}"
        store.sweep(catalog.state)
        assert [f.name for f in (tmp_path / "secrets").iterdir()] == [f"{first.id}-{first.version}"]
        catalog.transact([AlterSecretOp(first.id)], before=before)
        (second,) = catalog.state.secrets()
        assert second.version > first.version and store.read(second) == f"text {second.version}"
        with pytest.raises(SecretMissing):
            store.read(first)
    finally:
        failpoints.arm("")
        environment.close()
