"""CREATE CONNECTION and ALTER CONNECTION.

Checks on a worker thread, with a deadline, that the remote server is reachable and accepts the
credentials, unless VALIDATE = false. The ingestion service reopens the sources of an altered connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from tidemill.catalog.connection_ops import AlterConnectionOp, CreateConnectionOp
from tidemill.catalog.connections import completed, with_secrets
from tidemill.catalog.items import Connection, ItemId, Secret
from tidemill.catalog.ops import already_exists
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl import connection_options
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find_or_none, item_at
from tidemill.engine.ddl.connection_options import given_options, secrets_in, statement_options
from tidemill.engine.ddl.upstreams.connection_check import check_reachable
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import Internal, WrongObjectType
from tidemill.sql import ast
from tidemill.sql.render import to_sql


def plan_create_connection(
    view: CatalogView, ddl: CatalogChanges, secrets: SecretStore, statement: ast.CreateConnection
) -> Plan:
    schema, name, existing = item_at(view, statement.name)
    if isinstance(existing, Connection) and statement.if_not_exists:
        return ddl.skip("CREATE CONNECTION", f'connection "{name}" already exists, skipping', "42710")
    if existing is not None:
        raise already_exists(existing)
    kind = statement.kind
    options = given_options(kind, statement.options, partial(_secret, view))
    connection_options.check(kind, options)
    op = CreateConnectionOp(schema.id, name, kind, _kept(options), secrets_in(options))
    return _changing(
        ddl, secrets, "CREATE CONNECTION", op, kind, options, view.state, validate=statement.validate
    )


def plan_alter_connection(
    view: CatalogView, ddl: CatalogChanges, secrets: SecretStore, statement: ast.AlterConnection
) -> Plan:
    kind = ast.ObjectKind.CONNECTION
    item, notice = find_or_none(view, kind, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change("ALTER CONNECTION", (), [notice] if notice else [])
    if not isinstance(item, Connection):
        raise Internal(f"{item.id} is no connection")
    options: dict[str, Any] = json.loads(item.options)
    options |= given_options(item.type, statement.changed, partial(_secret, view))
    for field in connection_options.reset_fields(item.type, statement.reset):
        options.pop(field, None)
    connection_options.check(item.type, options)
    op = AlterConnectionOp(item.id, item.options, _kept(options), secrets_in(options))
    return _changing(
        ddl, secrets, "ALTER CONNECTION", op, item.type, options, view.state, validate=statement.validate
    )


def _changing(
    ddl: CatalogChanges,
    secrets: SecretStore,
    verb: str,
    op: CreateConnectionOp | AlterConnectionOp,
    kind: str,
    options: Mapping[str, Any],
    catalog: CatalogState,
    *,
    validate: bool,
) -> Plan:
    def look() -> None:
        check_reachable(kind, with_secrets(catalog, completed(kind, options), secrets))

    async def act() -> Outcome:
        if validate:
            await ddl.execution.interrupt.guard(ddl.execution.blocking(look))
        await ddl.transact(verb, [op])
        return Complete(verb)

    return Action(act)


def _secret(view: CatalogView, name: ast.Name) -> ItemId:
    item = view.resolver().any_item(name, "secret")
    if not isinstance(item, Secret):
        raise WrongObjectType(f'"{item.name}" is not a secret', position=name.offset + 1)
    view.privileges().check(item, "USAGE")
    return item.id


def _kept(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def create_connection_sql(catalog: CatalogState, name: ast.Name, connection: Connection) -> str:
    """The statement that creates the connection, with the current names of its secrets."""

    def secret_name(secret: ItemId) -> ast.Name:
        return ast.Name(catalog.full_name(catalog.get(secret, Secret)))

    options = statement_options(connection.type, json.loads(connection.options), secret_name)
    return to_sql(ast.CreateConnection(name, connection.type, options))
