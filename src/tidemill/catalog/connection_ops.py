"""Catalog operations that create and alter secrets and connections; applied by `ops`.

The text of a secret is in the secret store before the change that names it (`before` of `Catalog.transact`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.catalog.items import Connection, ItemId, Secret
from tidemill.catalog.source_ops import SourceDraft
from tidemill.catalog.state import CatalogState
from tidemill.errors import SerializationFailure


@dataclass(frozen=True, slots=True)
class CreateSecretOp:
    schema: ItemId
    name: str


@dataclass(frozen=True, slots=True)
class AlterSecretOp:
    """It has another text from now on."""

    secret: ItemId


@dataclass(frozen=True, slots=True)
class CreateConnectionOp:
    """`options` as `Connection` has them; `secrets` are the ids among them."""

    schema: ItemId
    name: str
    type: str
    options: str
    secrets: tuple[ItemId, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterConnectionOp:
    """Replaces all options of a connection; they were computed from its previous options, `was`."""

    connection: ItemId
    was: str
    options: str
    secrets: tuple[ItemId, ...] = ()


ConnectionOp = CreateSecretOp | AlterSecretOp | CreateConnectionOp | AlterConnectionOp


def apply(draft: SourceDraft, op: ConnectionOp) -> None:
    match op:
        case CreateSecretOp():
            draft.check_name(op.schema, op.name)
            draft.put(Secret(draft.new_id(), op.name, op.schema, draft.time))
        case AlterSecretOp():
            draft.put(replace(draft.state.get(op.secret, Secret), version=draft.time))
        case CreateConnectionOp():
            draft.check_name(op.schema, op.name)
            _check_secrets(draft.state, op.secrets)
            draft.put(Connection(draft.new_id(), op.name, op.schema, op.type, op.options, op.secrets))
        case AlterConnectionOp():
            _check_secrets(draft.state, op.secrets)
            connection = draft.state.get(op.connection, Connection)
            if connection.options != op.was:
                raise SerializationFailure(
                    f'connection "{connection.name}" was altered meanwhile', hint="Run the statement again."
                )
            draft.put(replace(connection, options=op.options, depends_on=op.secrets))


def _check_secrets(state: CatalogState, secrets: tuple[ItemId, ...]) -> None:
    """They are still there."""
    for secret in secrets:
        state.get(secret, Secret)
