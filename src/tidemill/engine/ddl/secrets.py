"""CREATE SECRET and ALTER SECRET, and the store of secrets.

The text is written to the store before the catalog entry that refers to it, in one step with the change
(`before`). After the catalog change, `SecretStore.follow` deletes dropped and replaced texts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tidemill.catalog.connection_ops import AlterSecretOp, CreateSecretOp
from tidemill.catalog.items import Secret
from tidemill.catalog.ops import already_exists
from tidemill.catalog.secrets import SecretStore, checked
from tidemill.catalog.state import CatalogState
from tidemill.config import Config
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import by_itself, change, find_or_none, item_at, skip, transact_now
from tidemill.engine.session.plan import Action, Plan
from tidemill.engine.session.session import EngineSession
from tidemill.sql import ast


def secret_store(config: Config, environment_id: str) -> SecretStore:
    """The secret store of a data directory. Several data directories may share a configured folder."""
    if config.secrets_dir:
        return SecretStore(Path(config.secrets_dir) / environment_id)
    return SecretStore(None if config.on_s3 else Path(config.data_dir) / "secrets")


def plan_create_secret(s: EngineSession, statement: ast.CreateSecret, catalog: CatalogState) -> Plan:
    schema, name, existing = item_at(s, statement.name, catalog)
    if isinstance(existing, Secret) and statement.if_not_exists:
        return skip("CREATE SECRET", f'secret "{name}" already exists, skipping', "42710")
    if existing is not None:
        raise already_exists(existing)
    return _keep("CREATE SECRET", CreateSecretOp(schema.id, name), statement.value)


def plan_alter_secret(s: EngineSession, statement: ast.AlterSecret, catalog: CatalogState) -> Plan:
    kind = ast.ObjectKind.SECRET
    item, notice = find_or_none(s, kind, statement.name, catalog, if_exists=statement.if_exists)
    if item is None:
        return change("ALTER SECRET", (), [notice] if notice else [])
    return _keep("ALTER SECRET", AlterSecretOp(item.id), statement.value)


def _keep(verb: str, op: CreateSecretOp | AlterSecretOp, text: str) -> Plan:
    checked(text)

    async def act(s: EngineSession) -> Outcome:
        await by_itself(s, verb)
        await s.blocking(partial(_transact, s, verb, op, text))
        return Complete(verb)

    return Action(act)


def _transact(s: EngineSession, verb: str, op: CreateSecretOp | AlterSecretOp, text: str) -> None:
    """Writes the text and the entry, or neither."""
    written: list[Secret] = []

    def before(old: CatalogState, new: CatalogState) -> None:
        for secret in new.secrets():
            if old.items.get(secret.id) != secret:
                s.engine.secrets.write(secret, text)
                written.append(secret)

    try:
        transact_now(s, verb, [op], before=before)
    except Exception:
        # The change was certainly not made. After a crash, the next server deletes the rest when it starts.
        for secret in written:
            s.engine.secrets.forget(secret)
        raise
