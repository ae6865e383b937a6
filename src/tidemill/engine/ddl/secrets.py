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
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find_or_none, item_at
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.sql import ast


def secret_store(config: Config, environment_id: str) -> SecretStore:
    """The secret store of a data directory. Several data directories may share a configured folder."""
    if config.secrets_dir:
        return SecretStore(Path(config.secrets_dir) / environment_id)
    return SecretStore(None if config.on_s3 else Path(config.data_dir) / "secrets")


def plan_create_secret(
    view: CatalogView, ddl: CatalogChanges, secrets: SecretStore, statement: ast.CreateSecret
) -> Plan:
    schema, name, existing = item_at(view, statement.name)
    if isinstance(existing, Secret) and statement.if_not_exists:
        return ddl.skip("CREATE SECRET", f'secret "{name}" already exists, skipping', "42710")
    if existing is not None:
        raise already_exists(existing)
    return _keep(ddl, secrets, "CREATE SECRET", CreateSecretOp(schema.id, name), statement.value)


def plan_alter_secret(
    view: CatalogView, ddl: CatalogChanges, secrets: SecretStore, statement: ast.AlterSecret
) -> Plan:
    kind = ast.ObjectKind.SECRET
    item, notice = find_or_none(view, kind, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change("ALTER SECRET", (), [notice] if notice else [])
    return _keep(ddl, secrets, "ALTER SECRET", AlterSecretOp(item.id), statement.value)


def _keep(
    ddl: CatalogChanges, secrets: SecretStore, verb: str, op: CreateSecretOp | AlterSecretOp, text: str
) -> Plan:
    checked(text)

    async def act() -> Outcome:
        await ddl.by_itself(verb)
        await ddl.execution.blocking(partial(_transact, ddl, secrets, verb, op, text))
        return Complete(verb)

    return Action(act)


def _transact(
    ddl: CatalogChanges, secrets: SecretStore, verb: str, op: CreateSecretOp | AlterSecretOp, text: str
) -> None:
    """Writes the text and the entry, or neither."""
    written: list[Secret] = []

    def before(old: CatalogState, new: CatalogState) -> None:
        for secret in new.secrets():
            if old.items.get(secret.id) != secret:
                secrets.write(secret, text)
                written.append(secret)

    try:
        ddl.transact_now(verb, [op], before=before)
    except Exception:
        # The change was certainly not made. After a crash, the next server deletes the rest when it starts.
        for secret in written:
            secrets.forget(secret)
        raise
