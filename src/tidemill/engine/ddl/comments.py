"""COMMENT ON. `relations.comments` shows the comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.catalog.comment_ops import SetComment
from tidemill.catalog.items import RELATIONS, Item
from tidemill.catalog.privileges import PermissionDenied
from tidemill.catalog.state import CatalogState
from tidemill.engine.session.plan import Plan
from tidemill.errors import UndefinedObject, WrongObjectType
from tidemill.sql import ast

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession


def plan_comment(session: EngineSession, statement: ast.CommentOn, catalog: CatalogState) -> Plan:
    from tidemill.engine.ddl.catalog_changes import change

    item = _item(session, statement, catalog)
    column = None if statement.column is None else statement.column.value
    if column is not None:
        _check_column(item, column, statement.name.offset + 1)
    return change("COMMENT", [SetComment(item.id, column, statement.text)])


def _item(session: EngineSession, statement: ast.CommentOn, catalog: CatalogState) -> Item:
    from tidemill.engine.ddl.catalog_changes import find

    if statement.column is not None:
        item = session.resolver(catalog).any_item(statement.name)
        session.identity.privileges(catalog).check_owner(item)
        return item
    if statement.kind is None:
        return _role(session, statement.name, catalog)
    return find(session, statement.kind, statement.name, catalog)


def _role(session: EngineSession, name: ast.Name, catalog: CatalogState) -> Item:
    role = catalog.find_role(name.parts[-1])
    if role is None:
        raise UndefinedObject(
            f'role "{name.parts[-1]}" does not exist', sqlstate="42704", position=name.offset + 1
        )
    mine = session.identity.privileges(catalog)
    if not mine.superuser and (role.superuser or not mine.role.createrole):
        raise PermissionDenied(
            f'permission denied to comment on role "{role.name}"',
            detail="Only roles with the CREATEROLE attribute, and for superusers those with the SUPERUSER "
            "attribute, may comment on roles.",
        )
    return role


def _check_column(item: Item, column: str, position: int) -> None:
    if not isinstance(item, RELATIONS):
        raise WrongObjectType(f'"{item.name}" has no columns', position=position)
    if item.desc is None or column not in item.desc.names:
        raise UndefinedObject(
            f'column "{column}" of relation "{item.name}" does not exist', sqlstate="42703", position=position
        )
